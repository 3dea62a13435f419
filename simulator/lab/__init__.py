"""The policy lab: a workload trace run through the real ledger, and through plain baselines, under simulated time."""
