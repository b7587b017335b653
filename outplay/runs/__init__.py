"""Runs: experiment files, run folders, checkpoints, metrics. This module imports nothing, so that it loads fast."""
