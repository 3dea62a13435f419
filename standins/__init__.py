"""Stand-ins for hardware that a laptop lacks, put on the path of the processes that ask for them."""
