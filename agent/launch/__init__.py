"""Starts jobs on the node: files, users, ports, and the connection to the supervisor."""
