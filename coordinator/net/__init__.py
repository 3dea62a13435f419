"""Sockets of the coordinator: who may connect, how many and how fast."""
