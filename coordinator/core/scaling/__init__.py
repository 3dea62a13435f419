"""Scaling: what waits and could start on one more machine, machines for it within hard budgets, and their lives."""
