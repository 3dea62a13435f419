"""Messages about rebalancing: mode and policy, what the last pass did, and what one would do now."""

from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.resources import Number, Word
from distributed_grid.protocol.sharing.moves import Barred, LenderView, Move, Pass
from distributed_grid.protocol.sharing.policies import NO_ORDER, Balancing, BalancingOrder, OffloadingMode, PolicyName


class GetBalancing(Message, frozen=True, tag="get-balancing"):
    """How the grid rebalances, and what it did last: answered by BalancingStatus. `past` as in GetStatus."""

    id: Number
    past: Word = ""


class BalancingStatus(Message, frozen=True, tag="balancing-status"):
    """Mode and policy in effect, what is `configured`, and what operators have set over it. `address`: of the Ray
    cluster (empty: there is none); `last`: the last pass (None: none yet); `recent` moves, the oldest first; who is
    `barred` from what; and the nodes, in the order of their names. `past` as in Status."""

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
    """Ask Ray now, and say what a pass would do: answered by Suggestions."""

    id: Number


class Suggestions(Message, frozen=True, tag="suggestions"):
    """What a pass would do now under this mode and policy."""

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
