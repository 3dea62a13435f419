"""Records the ledger's events and decisions on disk, and replays them."""
