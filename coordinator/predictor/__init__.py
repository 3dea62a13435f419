"""The prediction of jobs' needs, learned from what attempts used, by the shape of their command. Pure but for the
database and the service around it; no job waits for it."""
