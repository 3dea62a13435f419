"""Reads the GPUs of the machine, by one file a vendor's library."""
