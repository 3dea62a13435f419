"""The checks of a simulated grid at every moment, computed independently of the ledger."""
