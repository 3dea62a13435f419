"""The queue: which jobs wait, in what order they are served, and their groups."""
