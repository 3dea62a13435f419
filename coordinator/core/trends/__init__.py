"""What the past use of nodes says: statistics of windows, forecasts. Pure: numbers in, numbers out."""
