"""Attached to jobs: output, signals, progress, results."""
