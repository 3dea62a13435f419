"""Distributed Grid lends the idle capacity of many machines to whoever needs it, safely for their owners."""

__version__ = "0.1.0"
