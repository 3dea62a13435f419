"""Reads the GPUs of the machine, one file per vendor library."""
