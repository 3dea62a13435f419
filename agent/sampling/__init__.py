"""Measures the node: what the machine has, what the grid's own jobs use of it, and what everybody else uses."""
