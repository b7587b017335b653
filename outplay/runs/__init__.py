"""Runs: experiment files, run folders, checkpoints, metrics. Light to import: nothing is imported here."""
