"""What nodes measured over time: the last hour in memory, months in a database of its own. No job waits for it, and
nothing of it is in the ledger or the event log."""
