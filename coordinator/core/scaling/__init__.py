"""Scaling: the waiting jobs that could start on one more machine, machines for them within hard budgets, and the lives
of machines."""
