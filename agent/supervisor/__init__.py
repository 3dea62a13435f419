"""The process that owns all jobs of a node and outlives the agent. Stdlib only."""
