"""What the past use of nodes shows: statistics of windows, forecasts. Pure: numbers in, numbers out."""
