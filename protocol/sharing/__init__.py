"""Automatic sharing: the pressure of a node, and the policies by which the grid lends and takes back."""
