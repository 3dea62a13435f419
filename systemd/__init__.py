"""The systemd units that ship with the grid, read through importlib.resources."""
