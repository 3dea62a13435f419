"""Who belongs to the grid: its authority, certificates, tokens."""
