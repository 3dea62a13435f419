"""Predicts the needs of jobs, learned from what attempts used, by the shape of their command. Pure except for the
database and the service around it; no job waits for it."""
