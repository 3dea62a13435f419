"""A grid in one process and one thread: the real cores, and time, links, disks and crashes made from a seed."""
