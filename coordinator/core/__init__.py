"""The decisions of the grid as pure functions of events and a given time."""
