"""What is kept of each preemption: who took whose place, why just these, what it cost, and what came of it."""

import msgspec

from distributed_grid.protocol.bounds import Count, Finite
from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.resources import Grant, Resources


class Victim(msgspec.Struct, frozen=True, omit_defaults=True):
    """An allocation whose place is taken back. `seconds` it had run, `lost` in core-seconds: see docs/preemption.md.
    `gang`: how many members its gang has, which all end with it and are in what is lost; 0: it has none. `node`: where
    it gives way, if that is for a gang; else it is the one node that all is about. `walls`: behind which it ran."""

    allocation: str
    job: str
    user: str
    priority: Priority
    grant: Grant
    seconds: Finite = 0.0
    lost: Finite = 0.0
    gang: Count = 0
    node: str = ""
    walls: str = ""


class Place(msgspec.Struct, frozen=True, gc=False):
    """What is kept on a node for one member of a gang."""

    node: str
    grant: Grant


class Alternative(msgspec.Struct, frozen=True, omit_defaults=True):
    """Another node that was considered: how many victims it would have taken there, and what they would have lost; or
    `why` it could not be there."""

    node: str
    victims: Count = 0
    lost: Finite = 0.0
    why: str = ""


class Preemption(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What would be taken from whom for a request that was only asked about, as things are: these victims would lose
    `lost` core-seconds and have ended `within` so many seconds, and `grant` would be kept for it; of a gang that is the
    place of its first member, and `more` are those of the others."""

    node: str
    grant: Grant
    victims: tuple[Victim, ...]
    lost: Finite = 0.0
    within: Finite = 0.0
    alternatives: tuple[Alternative, ...] = ()
    more: tuple[Place, ...] = ()


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One preemption. `grant` is the set that is kept for the preemptor, `lost` what all victims lose (core-seconds).
    Of a gang, the `job` is its first member, `node` and `grant` are its place, and `more` are those of the others.
    `result` is empty while it is under way, then `started` (after `waited` seconds, on that set) or `returned` (to the
    victims), and `text` says why. Times are grid time."""

    id: str
    job: str
    user: str
    priority: Priority
    wanted: Resources
    node: str
    grant: Grant
    at: Finite
    victims: tuple[Victim, ...]
    lost: Finite = 0.0
    why: str = ""
    alternatives: tuple[Alternative, ...] = ()
    result: str = ""
    closed: Finite = 0.0
    waited: Finite = 0.0
    text: str = ""
    more: tuple[Place, ...] = ()
