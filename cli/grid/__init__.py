"""The grid as a whole: nodes, shares, access, configuration, replay."""
