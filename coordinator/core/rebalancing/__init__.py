"""Rebalancing: the grid lends boosts by itself for demand that waits in Ray, and takes them back when they are
unused."""
