"""Messages about what the grid does by itself: scaling (the existing machines, the current plan, orders of operators)
and rebalancing (mode and policy, what the last pass did, and what a pass would do now)."""

import msgspec

from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.resources import Count, Finite, Number, Text, Word
from distributed_grid.protocol.scaling.machines import Machine
from distributed_grid.protocol.scaling.plans import ScaleOrder, ScalePlan
from distributed_grid.protocol.scaling.pools import Pool, ScalingMode
from distributed_grid.protocol.sharing.moves import Barred, LenderView, Move, Pass
from distributed_grid.protocol.sharing.policies import NO_ORDER, Balancing, BalancingOrder, OffloadingMode, PolicyName

MACHINES_MOST = 1000
"""Maximum number of machines in one answer: those that are there, then those that ended last."""


class PoolView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A pool as it is now. `paused`: why nothing is created there; `trouble`: why its provider does not answer;
    `refused`: what its provider has refused, and until when (seconds from now). `boots`: median and 90th percentile of
    the seconds that its machines take to join, by type, as learned. `room`: how many more machines of each type the
    limits of numbers and costs allow now, up to a hundred where they limit costs."""

    pool: Pool
    paused: Text = ""
    trouble: Text = ""
    refused: tuple[tuple[Word, Finite, Text], ...] = ()
    boots: dict[str, tuple[Finite, Finite]] = {}
    room: dict[str, Count] = {}


class GetScaling(Message, frozen=True, tag="get-scaling"):
    """Which machines there are, and what a pass would do now: answered by ScalingStatus."""

    id: Number


class ScalingStatus(Message, frozen=True, tag="scaling-status"):
    """Mode, pools and machines, the newest first; those that are gone for as long as they are remembered, `left` more
    than are named. `plan`: what a pass would do `now`."""

    id: Number
    mode: ScalingMode
    now: Finite
    pools: tuple[PoolView, ...] = ()
    machines: tuple[Machine, ...] = ()
    left: Count = 0
    plan: ScalePlan | None = None
    limits: Text = ""


class OrderScaling(Message, frozen=True, tag="order-scaling"):
    """Carry out the plan of now, or pause or resume a pool; `pool` empty: all. Or create a machine of a pool, within
    its limits (`machine_type` empty: its first type that may be), or end one (`machine`) when it is empty. Answered by
    Done once it is on disk: for a creation its text is the machine's name."""

    id: Number
    order: ScaleOrder
    pool: Word = ""
    why: Text = ""
    machine_type: Word = ""
    machine: Word = ""


class GetBalancing(Message, frozen=True, tag="get-balancing"):
    """Request the state of rebalancing and its last moves: answered by BalancingStatus. `past` as in GetStatus."""

    id: Number
    past: Word = ""


class BalancingStatus(Message, frozen=True, tag="balancing-status"):
    """The mode and policy in effect, those `configured`, and those that operators have set instead. `address`: of the
    Ray cluster (empty: there is none); `last`: the last pass (None: none yet); `recent` moves, the oldest first;
    `barred`: lenders that may not make a move yet, and why; and the nodes, in the order of their names. `past` as in
    Status."""

    id: Number
    balancing: Balancing
    configured: Balancing
    order: BalancingOrder = NO_ORDER
    address: Word = ""
    last: Pass | None = None
    recent: tuple[Move, ...] = ()
    barred: tuple[Barred, ...] = ()
    nodes: tuple[LenderView, ...] = ()
    past: Word = ""


class SuggestBoosts(Message, frozen=True, tag="suggest-boosts"):
    """Query Ray now, and return what a pass would do: answered by Suggestions."""

    id: Number


class Suggestions(Message, frozen=True, tag="suggestions"):
    """The moves of a pass that ran now under this mode and policy."""

    id: Number
    balancing: Balancing
    found: Pass


class SetBalancing(Message, frozen=True, tag="set-balancing"):
    """Rebalance by this mode and policy from now on, over what is configured; None: as it is. `unset`: as configured,
    but for what is set here. Answered by Done once it is on disk."""

    id: Number
    mode: OffloadingMode | None = None
    policy: PolicyName | None = None
    unset: bool = False
