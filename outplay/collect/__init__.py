"""Collecting experience: workers, collectors, evaluation, video."""
