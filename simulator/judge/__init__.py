"""What must be true of a simulated grid, held against what really runs."""
