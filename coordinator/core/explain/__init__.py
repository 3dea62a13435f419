"""Explanations: why a job waits or where a request would go, and what would help. Nothing is changed here."""
