"""What must be true of a simulated grid at every moment, worked out without the ledger's own reckoning."""
