"""What entered the ledger and what it decided, on disk, and deciding it again."""
