"""What the ledger goes by where it could as well go by something else: patience, and the weights of a choice. It is
data, so that a replay can ask what another policy would have decided.
"""

from typing import Final

import msgspec

from distributed_grid.protocol.placement import Strategy


class Weights(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """How much each score counts when nodes are compared; together 1. See `placement/matching.py` for what they say."""

    fit: float = 0.0
    gpus_spared: float = 0.0
    quiet: float = 0.0
    preferred: float = 0.0
    priority: float = 0.0
    idle: float = 0.0
    in_use: float = 0.0
    alone: float = 0.0
    local: float = 0.0


WEIGHTS: Final = {
    Strategy.LOCAL_FIRST: Weights(local=0.50, fit=0.20, gpus_spared=0.10, preferred=0.10, priority=0.10),
    Strategy.BEST_FIT: Weights(fit=0.40, gpus_spared=0.20, quiet=0.15, preferred=0.15, priority=0.10),
    Strategy.LOAD_BALANCED: Weights(idle=0.45, quiet=0.20, gpus_spared=0.10, preferred=0.15, priority=0.10),
    Strategy.PACK: Weights(in_use=0.35, fit=0.30, gpus_spared=0.10, preferred=0.15, priority=0.10),
    Strategy.SPREAD: Weights(alone=0.45, idle=0.20, gpus_spared=0.10, preferred=0.15, priority=0.10),
}
"""The strategies, as what they weigh."""


class Preempting(msgspec.Struct, frozen=True, kw_only=True):
    """When an urgent request may take the place of others; times are seconds. A job keeps its place for `min_hold` from
    its start on, doubled with each time that its place was taken back, up to `min_hold_most`. It is told to stop and
    has `notice` and its own grace to end, together at most `grace_most`. What is freed is kept for who asked for
    `hold` beyond that, then it goes back. Not more than `badput_budget` core-seconds of work are lost by it in any hour
    (0: nobody gives way)."""

    min_hold: float = 10.0
    min_hold_most: float = 3600.0
    notice: float = 5.0
    grace_most: float = 60.0
    hold: float = 10.0
    badput_budget: float = 3_600_000.0


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """Fair share (docs/shares.md); times are seconds. What a user held counts half as much after each `half_life`, an
    attempt `charged_least` at least; `weights` are those of users, 1 where none is given. A share counts up to
    `aged_most` less while its user's first job waits, all of it after `aged_after`."""

    half_life: float = 86_400.0
    charged_least: float = 10.0
    weights: dict[str, float] = {}
    aged_most: float = 0.1
    aged_after: float = 3_600.0


class Unused(msgspec.Struct, frozen=True, kw_only=True):
    """What is held and not used (docs/unused.md); times are seconds. A job of whose cores, or of a GPU, every sample in
    `window` is below this share (`threshold`, 0 to 1) is told so; none of whose GPUs is used for `release_after` from
    then on is released (0: never)."""

    window: float = 600.0
    threshold: float = 0.15
    release_after: float = 0.0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds. After so much silence a node is suspect (no new work), then disconnected (its allocations are
    LOST and hold), and `lost_after` later it is taken for lost. A device that an agent answered stale for is left alone
    for `decline_first`, doubled each time up to `decline_most`. Of each tier `candidates` nodes are scored against each
    other, those that the strategy looks at first. `strategy` is that of requests that name none, with these weights. A
    gang meets at a port from the first to the last of `gang_ports`."""

    suspect_after: float = 6.0
    disconnected_after: float = 10.0
    lost_after: float = 60.0
    decline_first: float = 5.0
    decline_most: float = 300.0
    aside_after: int = 3
    aside_first: float = 30.0
    aside_most: float = 1800.0
    """A node that fails `aside_after` launches in a row is set aside for `aside_first`, doubled up to `aside_most`."""
    join_within: float = 60.0
    """A boost whose raylet Ray does not show within that time ends."""
    candidates: int = 4
    weights: Weights = WEIGHTS[Strategy.BEST_FIT]
    preempting: Preempting = Preempting()
    gang_ports: tuple[int, int] = (29500, 29999)
    sharing: Sharing = Sharing()
    strategy: Strategy = Strategy.BEST_FIT
    unused: Unused = Unused()
    by_ray: bool = False
    """Ray reserves what jobs are granted, before they are launched."""
    owner_rule: bool = False
    """A node whose walls are weaker than `namespace` runs jobs of its owners only, unless it trusts everyone."""
    reserve_within: float = 30.0
    """A job that Ray does not answer for within that time waits again."""

    def weights_of(self, strategy: Strategy | None) -> Weights:
        """What counts how much for a request that names this strategy, or none."""
        return self.weights if strategy is None or strategy is self.strategy else WEIGHTS[strategy]


DEFAULT: Final = Policy()
