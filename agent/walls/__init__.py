"""Isolation of jobs from their node: how their processes are made, and how files that they can change are opened."""
