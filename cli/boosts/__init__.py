"""Boosts: those that people request, and those that the grid lends by itself."""
