"""Backup, restore and check of a coordinator's state."""
