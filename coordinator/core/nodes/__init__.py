"""Nodes: what their agents tell, what operators order, and what is known of them after a restart."""
