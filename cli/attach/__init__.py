"""Standing by jobs: output, signals, progress, results."""
