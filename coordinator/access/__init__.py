"""The members of the grid: its certificate authority, certificates, tokens."""
