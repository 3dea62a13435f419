"""What the ledger remembers about scaling: the machines, what their providers have refused, how long they take to boot,
and how much of the grid was used."""

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

import msgspec

from distributed_grid.protocol.nodes import NodeFacts
from distributed_grid.protocol.resources import Count, Finite, Resources, Span, Text, Word
from distributed_grid.protocol.scaling.machines import Machine
from distributed_grid.protocol.scaling.plans import NAMED, ScalePlan

T = TypeVar("T")
Key = tuple[str, str, str]
"""Pool, zone and type: what a provider refuses together."""

INTERVAL = 0.5
"""Least time between two plans (s)."""
PER_LINE = 0.005
"""Added to it for each different request that waits, so that planning stays a small part of the time (s)."""
OVERDUE = 60.0
"""Time after the end of its life at which a machine that is still there is ended (s)."""
BOOTS_KEPT = 32
"""Number of boots of a type that are remembered, the newest."""
BACKOFF_FIRST, BACKOFF_MOST = 60.0, 3600.0
"""For how long a type of a zone is left alone that its provider has refused: at first, and at most, doubled (s)."""
NEVER_JOINED_MOST, REFUSED_MOST = 3, 10
"""A pool is paused when so many of its machines in a row have never joined, or were refused."""


def backoff_key(pool: str, zone: str, type: str) -> str:
    """Format a back-off's pool, zone and type as one text, as in `ScalingState.backoffs`."""
    return "/".join((pool, zone.replace("%", "%25").replace("/", "%2F"), type))


class CallKind(StrEnum):
    """The operation that a provider is called for."""

    CREATE = "create"
    END = "end"


class Answer(StrEnum):
    """How a provider has answered a call for a machine."""

    DONE = "done"
    LOST = "lost"
    """Nobody knows whether it was done: no answer in time, or one that could not be read."""
    CAPACITY = "capacity"
    QUOTA = "quota"
    THROTTLED = "throttled"
    BAD_TYPE = "bad-type"
    CREDENTIALS = "credentials"
    REFUSED = "refused"
    GONE = "gone"
    """To END: there is no such machine."""


class Listed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A machine in its provider's list, by the tags that the grid gave it. `ending`: it is on its way out. `queued`: it
    waits in its provider's queue, and does not run yet. `ended`: it is gone, and its provider still knows how it ended.
    `failed`: it has ended by its own program, rather than by its provider; in a queue: it will never begin; else: its
    own program has ended, and is not restarted. `why`: what it waits for, or how it ended. `born` and `ends_by` as the
    provider was told at its creation, in grid time; `left`: seconds until the provider itself ends it (0: it does not
    say)."""

    handle: Word
    name: Word
    pool: Word = ""
    type: Word = ""
    zone: Word = ""
    born: Finite = 0.0
    ends_by: Finite = 0.0
    ending: bool = False
    queued: bool = False
    ended: bool = False
    failed: bool = False
    why: Text = ""
    left: Span = 0.0

    def end(self, now: float) -> float:
        """Return when it ends according to its provider; 0: the provider does not say."""
        return now + self.left if self.left else self.ends_by


class Backoff(msgspec.Struct, frozen=True):
    """A refusal of a provider: until when it is not asked again, the length of that (s), and why."""

    until: float
    seconds: float
    why: str


class Paused(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pool in which no machine is created, since then: paused by the operator of this name, or by the grid itself
    (empty)."""

    since: Finite
    why: Text = ""
    by: Word = ""


class Orphan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A machine of this grid that no record knows: when it was listed first, and whether its provider was asked to end
    it."""

    first: Finite
    ended: bool = False


class Provider(msgspec.Struct, omit_defaults=True):
    """A provider as the ledger knows it. `listing`: number of the list that was asked for last, `listed` of the one
    that was answered last. `trouble`: why it does not answer; `halted`: it is asked for nothing more until the
    configuration changes. `unrecorded`: the machines of the last list that no record knows, by handle."""

    listing: Count = 0
    listing_since: float = 0.0
    answered: Count = 0
    seen: float = 0.0
    trouble: str = ""
    halted: bool = False
    unrecorded: dict[str, Orphan] = {}
    unknown: list[Listed] = []


class AsJoined(msgspec.Struct, frozen=True):
    """The actual resources of the machine of a pool and type that joined last. `offered`: the most that it has offered
    while nothing ran there; nothing before its first offer. That is less than it may lend, by the use of its own
    programs."""

    facts: NodeFacts
    offered: Resources = Resources()

    @property
    def lends(self) -> Resources:
        """The most that a job can get there, as far as it is known."""
        return self.offered if self.offered != Resources() else self.facts.lendable


class ScalingState(msgspec.Struct, omit_defaults=True):
    """The state of scaling. `machines` by name, with those that are gone, as long as they are remembered; `joined`:
    those that take jobs; `idle`: since when one has no allocation, `offerless`: since when it has no offer; `draining`:
    those that end when they have none; `number`: how many were named in this epoch. By pool and type: `as_joined`, the
    actual resources of the machine that joined last; `idled`, how many in a row were created for jobs and ran none.
    `used`: utilisation at the last passes."""

    machines: dict[str, Machine] = {}
    number: Count = 0
    joined: dict[str, None] = {}
    idle: dict[str, float] = {}
    offerless: dict[str, float] = {}
    draining: dict[str, None] = {}
    backoffs: dict[str, Backoff] = {}
    paused: dict[str, Paused] = {}
    refused: dict[str, int] = {}
    never_joined: dict[str, int] = {}
    idled: dict[str, int] = {}
    as_joined: dict[str, AsJoined] = {}
    boots: dict[str, list[float]] = {}
    providers: dict[str, Provider] = {}
    used: list[tuple[float, float]] = []
    raised: float = 0.0
    lowered: float = 0.0
    passed: float = 0.0
    last: ScalePlan | None = None

    def copy(self) -> "ScalingState":
        """A copy that shares nothing mutable."""
        return msgspec.structs.replace(
            self,
            machines=dict(self.machines),
            joined=dict(self.joined),
            idle=dict(self.idle),
            offerless=dict(self.offerless),
            draining=dict(self.draining),
            backoffs=dict(self.backoffs),
            paused=dict(self.paused),
            refused=dict(self.refused),
            never_joined=dict(self.never_joined),
            idled=dict(self.idled),
            as_joined=dict(self.as_joined),
            boots={key: list(times) for key, times in self.boots.items()},
            providers={
                name: msgspec.structs.replace(one, unrecorded=dict(one.unrecorded), unknown=list(one.unknown))
                for name, one in self.providers.items()
            },
            used=list(self.used),
        )

    def provider(self, name: str) -> Provider:
        """Return the state of a provider."""
        if (found := self.providers.get(name)) is None:
            found = self.providers[name] = Provider()
        return found

    def ends(self, machine: str) -> None:
        """Remove a machine from those that are joined: it has ended, or is about to end."""
        for one in (self.idle, self.offerless, self.draining):
            one.pop(machine, None)

    def next_pass(self, lines: int) -> float:
        """Return when the next plan may be made, while this many different requests wait."""
        return self.passed + INTERVAL + PER_LINE * lines

    def used_by(self, node: str) -> bool:
        """Something is granted on this machine; whether for the first time."""
        self.idle.pop(node, None)
        machine = self.machines[node]
        self.idled.pop(f"{machine.pool}/{machine.type}", None)
        if machine.ran:
            return False
        self.machines[node] = msgspec.structs.replace(machine, ran=True)
        return True

    # --- boots --------------------------------------------------------------------------------------------------------

    def booted(self, machine: Machine) -> None:
        """Record how long a machine took from its creation until it joined. A longer time than is allowed is not
        recorded: the clock has jumped, or the machine was found running."""
        took = machine.joined - machine.born
        if machine.born and 0 <= took <= machine.join_within:
            times = self.boots.setdefault(f"{machine.pool}/{machine.type}", [])
            times.append(took)
            del times[:-BOOTS_KEPT]

    def boot_times(self) -> dict[tuple[str, str], tuple[float, float]]:
        """Median and 90th percentile, by pool and type."""
        found = {}
        for key, times in self.boots.items():
            pool, _, type = key.partition("/")
            ordered = sorted(times)
            p90 = ordered[min(len(ordered) - 1, math.ceil(0.9 * len(ordered)) - 1)]
            found[pool, type] = (ordered[(len(ordered) - 1) // 2], p90)
        return found

    def as_joined_now(self) -> dict[tuple[str, str], AsJoined]:
        """Return the actual resources of machines, by pool and type."""
        found = {}
        for key, one in self.as_joined.items():
            pool, _, type = key.partition("/")
            found[pool, type] = one
        return found

    def offers(self, machine: Machine, free: Resources) -> None:
        """A machine on which nothing runs offers this much."""
        key = f"{machine.pool}/{machine.type}"
        one = self.as_joined.get(key)
        if one is not None and one.facts.name == machine.name:
            most = Resources(*map(max, msgspec.structs.astuple(one.offered), msgspec.structs.astuple(free)))
            self.as_joined[key] = AsJoined(one.facts, most)

    # --- what was refused ---------------------------------------------------------------------------------------------

    def back_off(self, machine: Machine, why: str, now: float) -> Backoff:
        """Leave a type in a zone alone for a while: twice as long as the last time, unless that is long ago. What was
        asked for before the last refusal, and is refused while this lasts, says nothing new."""
        key = backoff_key(machine.pool, machine.zone, machine.type)
        before = self.backoffs.get(key)
        if before is not None and now < before.until:
            return before
        again = before is not None and now < before.until + before.seconds
        seconds = min(BACKOFF_MOST, before.seconds * 2) if before is not None and again else BACKOFF_FIRST
        one = self.backoffs[key] = Backoff(now + seconds, seconds, why[:500])
        return one

    def idle_in_vain(self, machine: Machine, zones: Iterable[str], now: float) -> None:
        """A machine was created for jobs and ran none: leave its type alone for a while in all zones, doubled with each
        such machine in a row."""
        key = f"{machine.pool}/{machine.type}"
        count = self.idled[key] = self.idled.get(key, 0) + 1
        seconds = min(BACKOFF_MOST, BACKOFF_FIRST * 2.0 ** min(count - 1, 20))
        why = f"{machine.name} was created for {', '.join(machine.jobs[:NAMED])} and ran nothing"
        for zone in zones:
            self.backoffs[backoff_key(machine.pool, zone, machine.type)] = Backoff(now + seconds, seconds, why[:500])

    def begin_anew(self, pool: str = "") -> None:
        """Forget what was refused and what machines turned out to be, in this pool or in all: it may be another now."""

        def others(of: dict[str, T]) -> dict[str, T]:
            return {key: one for key, one in of.items() if pool and key.partition("/")[0] != pool}

        self.backoffs, self.idled, self.as_joined = others(self.backoffs), others(self.idled), others(self.as_joined)

    def backoffs_now(self) -> dict[Key, tuple[float, str]]:
        """Return the back-offs in effect, by pool, zone and type."""
        found: dict[Key, tuple[float, str]] = {}
        for key, one in self.backoffs.items():
            pool, _, rest = key.partition("/")
            zone, _, type = rest.partition("/")
            zone = zone.replace("%2F", "/").replace("%25", "%")
            found[pool, zone, type] = (one.until, one.why)
        return found

    # --- utilisation --------------------------------------------------------------------------------------------------

    def note_used(self, part: float, now: float, window: float) -> None:
        """Note how much of the grid is used now, if that has changed."""
        if not self.used or self.used[-1][1] != part:
            self.used.append((now, part))
        while len(self.used) > 1 and self.used[1][0] <= now - window:
            del self.used[0]

    def utilisation(self, now: float, window: float) -> float | None:
        """Return the mean utilisation over the window, weighted by time; None: it was not measured for that long."""
        if not self.used or self.used[0][0] > now - window:
            return None
        total, times = 0.0, [*self.used, (now, 0.0)]
        for (at, part), (until, _) in zip(times, times[1:], strict=False):
            total += part * (until - max(at, now - window))
        return total / window
