"""What nodes measured over time: the last hour in memory, months in a database of its own. No job waits for it, and it
is neither in the ledger nor in the event log."""
