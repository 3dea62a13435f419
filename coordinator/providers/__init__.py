"""Providers of machines, each in a child process of its own, and the coordinator's end of them."""
