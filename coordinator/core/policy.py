"""What the ledger goes by where it could as well go by something else: patience, and the weights of a choice. It is
data, so that a replay can ask what another policy would have decided.
"""

from typing import Final

import msgspec


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """How much each score counts when nodes are compared; together 1. See `matching.py` for what they score."""

    fit: float = 0.40
    gpus_spared: float = 0.20
    quiet: float = 0.15
    preferred: float = 0.15
    priority: float = 0.10


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds. After so much silence a node is suspect (no new work), then disconnected (its allocations are
    LOST and hold), and `lost_after` later it is taken for lost. A device that an agent answered stale for is left alone
    for `decline_first`, doubled each time up to `decline_most`. Of each tier `candidates` nodes, the tightest fits, are
    scored against each other."""

    suspect_after: float = 6.0
    disconnected_after: float = 10.0
    lost_after: float = 60.0
    decline_first: float = 5.0
    decline_most: float = 300.0
    candidates: int = 4
    weights: Weights = Weights()


DEFAULT: Final = Policy()
