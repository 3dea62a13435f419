"""How much the tests try at random: enough for each change, and forty times as much under `make deep`."""

import os

DEEP = "GRID_DEEP" in os.environ


def tries(number: int) -> int:
    """How many examples, seeds or states a test tries."""
    return number * 40 if DEEP else number
