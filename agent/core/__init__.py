"""What a node can spare and what it has lent, as pure functions of samples and a given time."""
