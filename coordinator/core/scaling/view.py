"""What a plan is made from: the machines' nodes, what waits, and what is known of pools and providers."""

from collections.abc import Mapping

import msgspec

from distributed_grid.coordinator.core.scaling.packing import Ask, Bin
from distributed_grid.coordinator.core.scaling.state import AsJoined, Key
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.scaling.plans import DrainCause, NotDone


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's node as it is now: whether it has joined, its allocations and earmarks, since when it has none (0: it
    has some), when the last of them ends at the latest, and whether one of them may not be moved or a waiting job
    reserves the node."""

    joined: bool = True
    allocations: int = 0
    idle_since: float = 0.0
    ends: float = 0.0
    fixed: bool = False
    reserved: bool = False
    usable: bool = False
    coming: bool = True
    """It is usable, or may be so in a moment: it is not without an offer for long."""
    lost: bool = False
    """It is silent for so long that its jobs were given up."""
    cause: DrainCause | None = None
    """Why it is drained, if the grid has drained it."""


class View(msgspec.Struct, kw_only=True):
    """What a plan is made from, beside demand and machines. `soon`: existing nodes with what is free of them before a
    machine could be up. `seen`: machines' nodes, by machine. `boots`: how long machines take to boot (median and 90th
    percentile), by pool and type; `as_joined`: what the one that joined last has in fact. `backoffs`: what providers
    have refused, and until when; `paused`: pools and why. `unrecorded`: machines that are the grid's and that no record
    knows, by pool. `utilisation` over the last window (None: not known for that long), `capacity` what that is a part
    of, and when machines were added or removed because of it."""

    soon: list[Bin] = []
    seen: Mapping[str, Seen] = {}
    boots: Mapping[tuple[str, str], tuple[float, float]] = {}
    as_joined: Mapping[tuple[str, str], AsJoined] = {}
    backoffs: Mapping[Key, tuple[float, str]] = {}
    paused: Mapping[str, str] = {}
    unrecorded: Mapping[str, int] = {}
    utilisation: float | None = None
    capacity: Resources = Resources()
    raised: float = 0.0
    lowered: float = 0.0


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that wait and could start on one more machine, in the order of service; and those that could not."""

    asks: tuple[Ask, ...] = ()
    left_out: tuple[NotDone, ...] = ()
