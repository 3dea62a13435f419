"""Nodes: reports of their agents, orders of operators, and what is known of nodes after a restart."""
