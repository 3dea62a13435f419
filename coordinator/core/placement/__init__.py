"""Where a request goes: the nodes by their free capacity, constraints, scores, and Ray."""
