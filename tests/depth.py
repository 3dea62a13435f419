"""How much the tests try at random: enough for each change, and forty times as much or more under `make deep`."""

import os

DEEP = "GRID_DEEP" in os.environ


def tries(number: int, here: int | None = None) -> int:
    """Return how many examples, seeds or states a test tries: `number`, or at most `here` if that many take long, and
    in depth forty times `number`."""
    return number * 40 if DEEP else here or number
