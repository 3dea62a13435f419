"""The node's resources and allocations, as pure functions of samples and a given time."""
