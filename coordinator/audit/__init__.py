"""The audit log of people's requests, and its verification."""
