"""What nodes use over time, on the wire: buckets of ten seconds from agents, trends for clients."""
