"""Preemption: which jobs give way to an urgent one, and what is held for it meanwhile."""
