"""The log of people's requests, and whether it is what was written."""
