"""Scaling: pools of machines that the grid creates and ends by itself, the machines, and plans."""
