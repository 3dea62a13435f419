"""Who waits, in what order they are served, and the groups that they are in."""
