"""Providers of machines, each in a child process of its own, and the coordinator's side of them."""
