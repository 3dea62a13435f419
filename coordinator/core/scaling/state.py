"""What the ledger remembers of scaling: the machines, what their providers have refused, how long they take to boot,
and how much of the grid was used.
"""

import math
from enum import StrEnum

import msgspec

from distributed_grid.protocol.resources import Count, Finite, Text, Word
from distributed_grid.protocol.scaling.machines import Machine
from distributed_grid.protocol.scaling.plans import ScalePlan

Key = tuple[str, str, str]
"""Pool, zone and type: what a provider refuses together."""

INTERVAL = 1.0
"""Least time between two plans (s)."""
PER_LINE = 0.005
"""Added to it for each different request that waits, so that planning stays a small part of the time (s)."""
BOOTS_KEPT = 32
"""Number of boots of a type that are remembered, the newest."""
BACKOFF_FIRST, BACKOFF_MOST = 60.0, 3600.0
"""For how long a type of a zone is left alone that its provider has refused: at first, and at most, doubled (s)."""
NEVER_JOINED_MOST, REFUSED_MOST = 3, 10
"""A pool is paused when so many of its machines in a row have never joined, or were refused."""


class CallKind(StrEnum):
    """What a provider is asked for a machine."""

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
    waits in its provider's queue, and does not run yet. `ended`: it is there no more, and its provider still knows how
    it ended; `failed`: by what was to run there, rather than by its provider. `why`: what it waits for, or how it
    ended."""

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


class Backoff(msgspec.Struct, frozen=True):
    """What a provider has refused: until when it is not asked for it again, the seconds of that, and why."""

    until: float
    seconds: float
    why: str


class Paused(msgspec.Struct, frozen=True, omit_defaults=True):
    """Nothing is created in a pool, since then: by the operator of this name, or by the grid itself (empty)."""

    since: Finite
    why: Text = ""
    by: Word = ""


class Provider(msgspec.Struct, omit_defaults=True):
    """A provider as the ledger knows it. `listing`: number of the list that was asked for last, `listed` of the one
    that was answered last. `trouble`: why it does not answer; `halted`: it is asked for nothing more until the
    configuration changes. `unrecorded`: in how many lists in a row each machine was that no record knows."""

    listing: Count = 0
    listing_since: float = 0.0
    answered: Count = 0
    seen: float = 0.0
    trouble: str = ""
    halted: bool = False
    slow_until: float = 0.0
    unrecorded: dict[str, int] = {}
    unknown: list[Listed] = []


class ScalingState(msgspec.Struct, omit_defaults=True):
    """All that is remembered. `machines` by name, with those that are gone, for the time that they are remembered;
    `idle`: since when a joined one has no allocation; `draining`: those that end when they have none; `number`: how
    many were named in this epoch. `used`: utilisation at the last passes."""

    machines: dict[str, Machine] = {}
    number: Count = 0
    idle: dict[str, float] = {}
    draining: dict[str, None] = {}
    backoffs: dict[str, Backoff] = {}
    paused: dict[str, Paused] = {}
    refused: dict[str, int] = {}
    never_joined: dict[str, int] = {}
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
            idle=dict(self.idle),
            draining=dict(self.draining),
            backoffs=dict(self.backoffs),
            paused=dict(self.paused),
            refused=dict(self.refused),
            never_joined=dict(self.never_joined),
            boots={key: list(times) for key, times in self.boots.items()},
            providers={
                name: msgspec.structs.replace(one, unrecorded=dict(one.unrecorded), unknown=list(one.unknown))
                for name, one in self.providers.items()
            },
            used=list(self.used),
        )

    def provider(self, name: str) -> Provider:
        """What is known of a provider."""
        if (found := self.providers.get(name)) is None:
            found = self.providers[name] = Provider()
        return found

    def next_pass(self, lines: int) -> float:
        """When the next plan may be made, while so many different requests wait."""
        return self.passed + INTERVAL + PER_LINE * lines

    def used_by(self, node: str) -> None:
        """Something is granted on this machine."""
        self.idle.pop(node, None)
        machine = self.machines[node]
        if not machine.ran:
            self.machines[node] = msgspec.structs.replace(machine, ran=True)

    # --- boots --------------------------------------------------------------------------------------------------------

    def booted(self, machine: Machine) -> None:
        """Learn how long a machine took from its creation until it joined."""
        if machine.born and machine.joined:
            times = self.boots.setdefault(f"{machine.pool}/{machine.type}", [])
            times.append(machine.joined - machine.born)
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

    # --- what was refused ---------------------------------------------------------------------------------------------

    def back_off(self, machine: Machine, why: str, now: float) -> Backoff:
        """Leave a type in a zone alone for a while: twice as long as the last time, unless that is long ago."""
        key = "/".join((machine.pool, machine.zone, machine.type))
        before = self.backoffs.get(key)
        again = before is not None and now < before.until + before.seconds
        seconds = min(BACKOFF_MOST, before.seconds * 2) if before is not None and again else BACKOFF_FIRST
        one = self.backoffs[key] = Backoff(now + seconds, seconds, why[:500])
        return one

    def backoffs_now(self) -> dict[Key, tuple[float, str]]:
        """What is left alone, by pool, zone and type."""
        found: dict[Key, tuple[float, str]] = {}
        for key, one in self.backoffs.items():
            pool, _, rest = key.partition("/")
            zone, _, type = rest.partition("/")
            found[pool, zone, type] = (one.until, one.why)
        return found

    # --- utilisation --------------------------------------------------------------------------------------------------

    def note_used(self, part: float, now: float, window: float) -> None:
        """Note how much of the grid is used now."""
        self.used.append((now, part))
        while len(self.used) > 1 and self.used[1][0] <= now - window:
            del self.used[0]

    def utilisation(self, now: float, window: float) -> float | None:
        """The mean over the window, by time; None: it was not looked at for so long."""
        if not self.used or self.used[0][0] > now - window:
            return None
        total, times = 0.0, [*self.used, (now, 0.0)]
        for (at, part), (until, _) in zip(times, times[1:], strict=False):
            total += part * (until - max(at, now - window))
        return total / window
