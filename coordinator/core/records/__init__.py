"""Parts of jobs, groups and nodes as they are stored, and the events and commands about them."""
