"""Shipped files at the coordinator: the cache of their contents, and the quota of each user."""
