"""The grid as a whole: nodes, boosts, shares, access, configuration, replay."""
