"""What nodes use over time, as it travels: buckets of ten seconds from agents, trends for clients."""
