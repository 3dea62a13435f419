"""Who gives way to an urgent job, and what is held for it meanwhile."""
