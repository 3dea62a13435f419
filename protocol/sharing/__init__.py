"""Sharing by itself: what a node's pressure is, and the policies by which the grid lends and takes back."""
