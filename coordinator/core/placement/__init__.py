"""Placement: where a request goes. The nodes by their free capacity, constraints, scores, and Ray."""
