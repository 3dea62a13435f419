"""The tunable parameters of the ledger's decisions: timeouts, limits and the weights of the scores. They are data, so
that a replay can decide by another policy.
"""

from functools import cache
from typing import Final

import msgspec

from distributed_grid.protocol.jobs import Request, ServiceOrder
from distributed_grid.protocol.messages.rights import Rules
from distributed_grid.protocol.placement import Strategy
from distributed_grid.protocol.scaling.pools import NO_SCALING, Scaling
from distributed_grid.protocol.sharing.policies import Balancing

LASTING: Final = 0.1
"""The weight of how likely a node stays idle, where that is known."""


class Weights(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """The weight of each score when nodes are compared; their sum is 1. `placement/matching.py` has the scores."""

    fragmentation: float = 0.0
    fit: float = 0.0
    gpus_spared: float = 0.0
    quiet: float = 0.0
    preferred: float = 0.0
    priority: float = 0.0
    idle: float = 0.0
    in_use: float = 0.0
    alone: float = 0.0
    local: float = 0.0
    lasting: float = 0.0


@cache
def with_lasting(weights: Weights) -> Weights:
    """Return these weights with one for the forecasts of idleness; the others keep their proportions. Unchanged if the
    policy has such a weight already, as a replay may."""
    if weights.lasting:
        return weights
    parts = {name: value * (1.0 - LASTING) for name, value in msgspec.structs.asdict(weights).items()}
    return Weights(**(parts | {"lasting": LASTING}))


WEIGHTS: Final = {
    Strategy.LOCAL_FIRST: Weights(local=0.50, fit=0.20, gpus_spared=0.10, preferred=0.10, priority=0.10),
    Strategy.BEST_FIT: Weights(fit=0.40, gpus_spared=0.20, quiet=0.15, preferred=0.15, priority=0.10),
    Strategy.LOAD_BALANCED: Weights(idle=0.45, quiet=0.20, gpus_spared=0.10, preferred=0.15, priority=0.10),
    Strategy.PACK: Weights(in_use=0.35, fit=0.30, gpus_spared=0.10, preferred=0.15, priority=0.10),
    Strategy.SPREAD: Weights(alone=0.45, idle=0.20, gpus_spared=0.10, preferred=0.15, priority=0.10),
}
"""The weights of each strategy."""
GPU_WEIGHTS: Final = WEIGHTS | {
    Strategy.BEST_FIT: Weights(fragmentation=0.48, fit=0.012, quiet=0.036, preferred=0.436, priority=0.036)
}
"""The weights of each strategy for requests with GPUs."""


class Preempting(msgspec.Struct, frozen=True, kw_only=True):
    """When an urgent request may preempt others; times are seconds. A job is protected for `min_hold` from its grant
    on, doubled with each time that it was preempted, up to `min_hold_most`. After the stop order it has `notice` plus
    its own grace to end, together at most `grace_most`. Freed resources stay earmarked for `hold` beyond that, then
    they are returned. At most `badput_budget` core-seconds of work are lost by preemption in any hour (0: no
    preemption)."""

    min_hold: float = 10.0
    min_hold_most: float = 3600.0
    notice: float = 5.0
    grace_most: float = 60.0
    hold: float = 10.0
    badput_budget: float = 3_600_000.0


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """Fair share (docs/shares.md); times are seconds. Past use counts half as much after each `half_life`; an attempt
    is charged `charged_least` at least. `weights`: of users, 1 by default. `owners`: of nodes, as users of the grid;
    who has lent more of theirs than they borrowed has a credit, which counts as `credit` of a share at most.

    Jobs are served in this `order`. By share: while a user's first job waits, the share is lowered by up to
    `aged_most`, which is reached after `aged_after`. By waiting time: every job counts as having waited `head_start`
    longer, a time limit counts as `shortest` at least, and where nothing is known of it as `usual`; a job that has
    waited `overdue_after` times its limit comes first."""

    half_life: float = 86_400.0
    charged_least: float = 10.0
    weights: dict[str, float] = {}
    owners: dict[str, str] = {}
    credit: float = 0.1
    aged_most: float = 0.1
    aged_after: float = 3_600.0
    order: ServiceOrder = ServiceOrder.WAITING
    head_start: float = 3_600.0
    shortest: float = 60.0
    usual: float = 3_600.0
    overdue_after: float = 10.0


class Unused(msgspec.Struct, frozen=True, kw_only=True):
    """Unused allocations (docs/unused.md); times are seconds. A job is warned when every sample of its cores, or of a
    GPU, in `window` is below `threshold` (0 to 1); it is released when none of its GPUs is used for `release_after`
    after that (0: never)."""

    window: float = 600.0
    threshold: float = 0.15
    release_after: float = 0.0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds. A silent node becomes suspect (no new work), then disconnected (its allocations are LOST and
    keep their grants), and `lost_after` later lost. A refused device is in back-off for `decline_first`, doubled each
    time up to `decline_most`. In each tier up to `candidates` nodes are scored, in the strategy's search order
    (`gpu_candidates`, where fragmentation counts). `strategy` is the default, with these weights; `gpu_weights` are
    those for requests with GPUs. `gang_ports` is the range of the rendezvous ports of gangs."""

    suspect_after: float = 6.0
    disconnected_after: float = 10.0
    lost_after: float = 60.0
    decline_first: float = 5.0
    decline_most: float = 300.0
    aside_after: int = 3
    aside_first: float = 30.0
    aside_most: float = 1800.0
    """A node that fails `aside_after` launches in a row is set aside for `aside_first`, doubled up to `aside_most`."""
    candidates: int = 4
    gpu_candidates: int = 16
    weights: Weights = WEIGHTS[Strategy.BEST_FIT]
    gpu_weights: Weights = GPU_WEIGHTS[Strategy.BEST_FIT]
    preempting: Preempting = Preempting()
    gang_ports: tuple[int, int] = (29500, 29999)
    sharing: Sharing = Sharing()
    strategy: Strategy = Strategy.BEST_FIT
    unused: Unused = Unused()
    by_ray: bool = False
    """Grants are reserved in Ray before they are launched."""
    owner_rule: bool = False
    """A node whose walls are weaker than `namespace` runs jobs of its owners only, unless it trusts everyone."""
    reserve_within: float = 30.0
    """A job is requeued if Ray does not answer its reservation within that time."""
    rights: Rules = Rules()
    """The configured rights of users and groups (docs/rights.md)."""
    balancing: Balancing = Balancing()
    """What the grid does by itself with idle capacity (docs/sharing.md)."""
    scaling: Scaling = NO_SCALING
    """The machines that it creates and ends by itself (docs/scaling.md)."""

    def weights_of(self, request: Request) -> Weights:
        """The weights for a request."""
        strategy, gpu = request.strategy, request.resources.gpu
        if strategy is None or strategy is self.strategy:
            return self.gpu_weights if gpu else self.weights
        return GPU_WEIGHTS[strategy] if gpu else WEIGHTS[strategy]

    def by_strategy(self, strategy: Strategy) -> "Policy":
        """Return this policy with another default strategy, and the weights of that strategy."""
        weights = {"weights": WEIGHTS[strategy], "gpu_weights": GPU_WEIGHTS[strategy]}
        return msgspec.structs.replace(self, strategy=strategy, **weights)


DEFAULT: Final = Policy()
