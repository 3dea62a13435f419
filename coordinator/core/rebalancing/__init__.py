"""Rebalancing: boosts that the grid lends by itself to whom Ray says waits, and takes back when they are not used."""
