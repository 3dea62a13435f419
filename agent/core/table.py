"""The agent's own books: which allocations there are on this node, where each one stands, and who holds which core and
GPU. Events come in (what the coordinator asks, what the launcher tells), commands go out for the shell to perform.

Two promises are kept here and nowhere else: an allocation is run at most once, and nothing is held by two at a time.
An end is kept until the coordinator has acknowledged it, whatever happens to connections meanwhile.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from distributed_grid.agent.core.owner import Running
from distributed_grid.agent.core.spare.lender import Holding
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.messages import Ack, Exited, Extend, Launch, Signal, Stale, Started, Stop
from distributed_grid.protocol.nodes import Known, NodeFacts, Stamp
from distributed_grid.protocol.placement import unfit
from distributed_grid.protocol.resources import MILLI, Grant, format_milli


def was_over(cause: str) -> Outcome:
    """It was over, and its end acknowledged. `cause`: as it was asked to end now."""
    known = Cause(cause) if cause in [*Cause] else Cause.CANCELLED
    return Outcome(known, text="it was over and acknowledged before; nothing is started twice", started=False)


D = TypeVar("D")

REMEMBERED = 10_000
"""Ends that were acknowledged and are still known as over (the supervisor remembers them as well), and launches that
were declined."""


# --- events beside the messages -----------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True):
    """All that the allocation's command needs is there: measured again, unpacked."""

    allocation: str


Event = Launch | Stop | Signal | Extend | Ack | Ready | Stale | Started | Exited


# --- commands -----------------------------------------------------------------------------------------------------


class Prepare(msgspec.Struct, frozen=True):
    """Measure again and lay out what it needs; then say Ready, Stale, or Exited (it could not be)."""

    launch: Launch


class Run(msgspec.Struct, frozen=True):
    """Hand it to the launcher."""

    launch: Launch


class Kill(msgspec.Struct, frozen=True):
    """Have the launcher end it, and give up preparing it."""

    stop: Stop


class SendSignal(msgspec.Struct, frozen=True):
    """Have the launcher signal it."""

    allocation: str
    signal: int


class Forget(msgspec.Struct, frozen=True):
    """Have the launcher forget these ends."""

    allocations: tuple[str, ...]


class Report(msgspec.Struct, frozen=True):
    """Tell the coordinator. `freed` is what was held until now and is not any more."""

    message: Started | Stale | Exited
    freed: Grant | None = None


class SetLimit(msgspec.Struct, frozen=True):
    """Have the launcher give it another time limit, in seconds from its start."""

    allocation: str
    limit: float


Command = Prepare | Run | Kill | SendSignal | SetLimit | Forget | Report


@dataclass(slots=True)
class Entry:
    """One allocation. `launch` is there until it is handed to the launcher; `began` is when its command started."""

    state: State
    launch: Launch | None = None
    outcome: Outcome | None = None
    began: float = 0.0
    pid: int = 0
    raylet: bool = False
    walls: str = ""
    stamp: Stamp | None = None


class Table:
    """All allocations of this node. `handle` is the only thing that changes them, apart from `restore` at the start.
    Times are seconds of one clock that only ever goes forward."""

    def __init__(self, facts: NodeFacts | None = None) -> None:
        self._facts = facts
        self.entries: dict[str, Entry] = {}
        self._held: dict[str, Holding] = {}
        self._cores: dict[int, str] = {}
        self._shared: dict[int, dict[str, int]] = {}
        self._gpus: dict[str, dict[str, int]] = {}
        self._over: dict[str, None] = {}
        self._declined: dict[str, Stale] = {}
        self._lost: set[str] = set()
        self._grid = ""
        self._epoch = 0
        self._instance = ""

    def know(self, facts: NodeFacts) -> None:
        """These are the node's facts from now on."""
        self._facts = facts

    # --- at the start, and with a new connection ----------------------------------------------------------------------

    def restore(self, known: Iterable[tuple[Known, Launch | None, int]], now: float) -> None:
        """Take in what the launcher found at the start, each with what was asked for as far as that is known, and the
        pid it began with (0: not known)."""
        for one, launch, pid in known:
            entry = Entry(one.state, outcome=one.outcome, began=now - one.started_for, pid=pid, walls=one.walls)
            self.entries[one.allocation] = entry
            if one.outcome is None and launch is not None:
                entry.raylet = launch.spec.boost is not None
                self._take(one.allocation, launch.grant)
            if launch is not None:
                entry.stamp = launch.stamp

    def refuses(self, grid: str, epoch: int, instance: str) -> str:
        """Why a coordinator is not obeyed; empty: it is. Of one grid only the newest life of its coordinator is, and of
        two that claim the same one only the first: they have one state directory, or a copy of it."""
        if grid != self._grid:
            return ""
        if epoch < self._epoch:
            return f"it is at epoch {epoch} of grid {grid}, and this node has obeyed epoch {self._epoch}"
        if epoch == self._epoch and instance and self._instance and instance != self._instance:
            return f"this node obeys another coordinator of grid {grid} at the same epoch {epoch}"
        return ""

    def welcome(self, grid: str, epoch: int, instance: str = "") -> None:
        """Obey the coordinator that says this of itself, if it is not refused."""
        if not self.refuses(grid, epoch, instance):
            self._grid, self._epoch, self._instance = grid, epoch, instance

    @property
    def epoch(self) -> tuple[str, int, str]:
        """The grid, the newest epoch of its coordinator that was ever seen, and which one that was."""
        return self._grid, self._epoch, self._instance

    def lose(self, known: Collection[str] | None) -> None:
        """The launcher lost its records, but for these (None: it did not): what it was handed and is not over is not
        known any more, and is never started here."""
        for key in [key for key, one in self.entries.items() if one.outcome is None and one.launch is None]:
            if known is not None and key not in known:
                del self.entries[key]
                self._free(key)
                self._lost.add(key)

    # --- what others ask ----------------------------------------------------------------------------------------------

    def inventory(self, now: float) -> tuple[Known, ...]:
        """The whole set. What is over is named without its outcome, which is told by itself: all of them together may
        be more than a frame carries."""
        return tuple(self._known(key, entry, now) for key, entry in self.entries.items())

    def unacknowledged(self) -> list[Exited]:
        """All ends that the coordinator has not acknowledged, in the order they were heard of."""
        entries = self.entries.items()
        return [self._over_there(key, entry.outcome, entry) for key, entry in entries if entry.outcome is not None]

    def holdings(self) -> list[Holding]:
        """Who holds what, with what is resident of each as last told by `resident`."""
        return [*self._held.values()]

    def resident(self, by_pid: dict[int, int]) -> None:
        """Take in how many bytes the process tree of each job has resident, by the pid that it began with."""
        for key, holding in self._held.items():
            rss = by_pid.get(self.entries[key].pid, 0)
            if rss != holding.rss:
                self._held[key] = Holding(key, holding.grant, rss)

    def running(self) -> list[Running]:
        """Those that run and were not told to end, as far as it is known what they hold."""
        entries = self.entries
        return [
            Running(held, entry.began, entry.raylet)
            for key, held in self._held.items()
            if (entry := entries[key]).state is State.RUNNING
        ]

    def pids(self) -> dict[str, int]:
        """The pids that the jobs which run here began with, as far as they are known."""
        return {key: one.pid for key, one in self.entries.items() if one.pid and one.outcome is None}

    def live(self) -> int:
        """How many allocations are not over."""
        return sum(entry.outcome is None for entry in self.entries.values())

    def runs(self, allocation: str) -> bool:
        """Whether more may come of it: it is known and not over."""
        entry = self.entries.get(allocation)
        return entry is not None and entry.outcome is None

    # --- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in what happened; what is to be done about it, in order."""
        match event:
            case Launch():
                return self._launch(event)
            case Stop():
                return self._stop(event)
            case Signal():
                entry = self.entries.get(event.allocation)
                live = entry is not None and entry.state in (State.RUNNING, State.STOPPING)
                return [SendSignal(event.allocation, event.signal)] if live else []
            case Extend():
                return [SetLimit(event.allocation, event.limit)] if self.runs(event.allocation) else []
            case Ack():
                return self._ack(event)
            case Ready():
                return self._ready(event)
            case Stale():
                return self._stale(event)
            case Started():
                return self._started(event, now)
            case Exited():
                return self._exited(event)

    def _launch(self, launch: Launch) -> list[Command]:
        key = launch.allocation
        if (entry := self.entries.get(key)) is not None:
            return self._as_it_stands(key, entry)
        if key in self._lost:
            return []  # it may live, or have run: the inventory says that it is not known
        if key in self._over:
            return [Report(Exited(allocation=key, outcome=was_over(Cause.CANCELLED)))]
        if key in self._declined:
            return [Report(self._declined[key])]
        why, device = self._in_the_way(launch)
        if why:
            stale = Stale(allocation=key, reason=why, device=device)
            return [Report(stale) if launch.epoch < self._epoch else self._decline(stale)]
        self.entries[key] = Entry(State.STARTING, launch, raylet=launch.spec.boost is not None, stamp=launch.stamp)
        self._take(key, launch.grant)
        return [Prepare(launch)]

    def _as_it_stands(self, key: str, entry: Entry) -> list[Command]:
        """The answer to a launch of what is known already. While it is starting or stopping the answer is to come."""
        if entry.outcome is not None:
            return [Report(self._over_there(key, entry.outcome, entry))]
        if entry.state is State.RUNNING:
            return [Report(Started(allocation=key, pid=entry.pid, walls=entry.walls))]
        return []

    def _stop(self, stop: Stop) -> list[Command]:
        key = stop.allocation
        entry = self.entries.get(key)
        if entry is None:
            if key in self._over:
                return [Report(Exited(allocation=key, outcome=was_over(stop.cause)))]
            # The supervisor keeps it as a job that is over, so that a late launch is refused, by whatever agent.
            entry = self.entries[key] = Entry(State.STOPPING)
        elif entry.outcome is not None:
            return [Report(self._over_there(key, entry.outcome, entry))]
        entry.state, entry.launch = State.STOPPING, None
        return [Kill(stop)]

    def _ack(self, ack: Ack) -> list[Command]:
        done = [key for key in ack.allocations if key in self.entries and self.entries[key].outcome is not None]
        for key in done:
            del self.entries[key]
            self._over[key] = None
        while len(self._over) > REMEMBERED:
            del self._over[next(iter(self._over))]
        return [Forget(tuple(done))] if done else []

    def _ready(self, ready: Ready) -> list[Command]:
        entry = self.entries.get(ready.allocation)
        if entry is None or entry.launch is None:
            return []  # it was stopped meanwhile
        launch, entry.launch = entry.launch, None
        return [Run(launch)]

    def _stale(self, stale: Stale) -> list[Command]:
        """Nothing of it ran, and nothing ever will."""
        entry = self.entries.get(stale.allocation)
        if entry is None or entry.launch is None:
            return []
        del self.entries[stale.allocation]
        return [self._decline(stale, self._free(stale.allocation))]

    def _decline(self, stale: Stale, freed: Grant | None = None) -> Report:
        """Not this one, now or later: its launch may be on its way once more, behind this answer, and by the time it is
        here the job runs elsewhere."""
        self._declined[stale.allocation] = stale
        if len(self._declined) > REMEMBERED:
            del self._declined[next(iter(self._declined))]
        return Report(stale, freed)

    def _started(self, started: Started, now: float) -> list[Command]:
        entry = self.entries.setdefault(started.allocation, Entry(State.STARTING))
        if entry.outcome is not None:
            return []
        entry.pid = started.pid or entry.pid
        entry.walls = started.walls or entry.walls
        entry.launch = None
        if entry.state is not State.STARTING:
            entry.began = entry.began or now
            return []
        entry.state, entry.began = State.RUNNING, now
        return [Report(started)]

    def _exited(self, exited: Exited) -> list[Command]:
        """From the launcher, or from preparing it in vain."""
        key = exited.allocation
        if key in self._over:
            return [Forget((key,))]  # the acknowledgement did not reach the supervisor
        entry = self.entries.setdefault(key, Entry(State.STOPPING))
        if entry.outcome is not None:
            return []
        entry.state, entry.outcome, entry.launch = State.ENDED, exited.outcome, None
        return [Report(self._over_there(key, exited.outcome, entry), self._free(key))]

    # --- what is said of one ------------------------------------------------------------------------------------------

    def _over_there(self, key: str, outcome: Outcome, entry: Entry) -> Exited:
        return Exited(allocation=key, outcome=outcome, stamp=self._shown(entry))

    def _known(self, key: str, entry: Entry, now: float) -> Known:
        stamp = self._shown(entry)
        if entry.outcome is not None:
            return Known(key, State.ENDED, stamp=stamp)
        if not entry.began:  # also where it is stopping: nothing of it is known to have run
            return Known(key, State.STARTING, stamp=stamp)
        return Known(key, entry.state, started_for=max(0.0, now - entry.began), walls=entry.walls, stamp=stamp)

    def _shown(self, entry: Entry) -> Stamp | None:
        """What was granted by the coordinator that is obeyed now need not be proven to it."""
        return entry.stamp if entry.stamp is not None and entry.stamp.epoch < self._epoch else None

    # --- who holds what -----------------------------------------------------------------------------------------------

    def _in_the_way(self, launch: Launch) -> tuple[str, str]:
        """Why this launch cannot be taken by the books alone, and the core or GPU it is about."""
        grant = launch.grant
        if launch.epoch < self._epoch:
            return f"it comes from epoch {launch.epoch} of the coordinator, which is at {self._epoch} already", ""
        of = self._facts
        if of is not None and of.walls and (why := unfit(of.walls, of.owners, of.trusts, launch.user, launch.walls)):
            return why, ""
        for core in (*grant.cores, grant.shared_core) if grant.shared_core >= 0 else grant.cores:
            if core in self._cores:
                return f"core {core} is held by {self._cores[core]}", str(core)
            if core in self._shared and core != grant.shared_core:
                return f"core {core} is shared by {', '.join(self._shared[core])}", str(core)
        if len(set(grant.cores)) < len(grant.cores) or grant.shared_core in grant.cores:
            return "a core is named twice", ""
        shared = sum(self._shared.get(grant.shared_core, {}).values())
        if shared + grant.shared_milli > MILLI:
            return f"core {grant.shared_core} has only {format_milli(MILLI - shared)} left", str(grant.shared_core)
        for share in grant.gpus:
            holders = self._gpus.get(share.uuid, {})
            if sum(holders.values()) + share.milli > MILLI:
                return f"GPU {share.uuid} is held by {', '.join(holders) or 'nobody, and has less'}", share.uuid
        if len({share.uuid for share in grant.gpus}) < len(grant.gpus):
            return "a GPU is named twice", ""
        return "", ""

    def _take(self, key: str, grant: Grant) -> None:
        self._held[key] = Holding(key, grant)
        self._cores.update(dict.fromkeys(grant.cores, key))
        if grant.shared_core >= 0:
            self._shared.setdefault(grant.shared_core, {})[key] = grant.shared_milli
        for share in grant.gpus:
            self._gpus.setdefault(share.uuid, {})[key] = share.milli

    def _free(self, key: str) -> Grant | None:
        holding = self._held.pop(key, None)
        if holding is None:
            return None
        grant = holding.grant
        for core in grant.cores:
            if self._cores.get(core) == key:
                del self._cores[core]
        _drop(self._shared, grant.shared_core, key)
        for share in grant.gpus:
            _drop(self._gpus, share.uuid, key)
        return grant


def _drop(holders: dict[D, dict[str, int]], device: D, key: str) -> None:
    """Take one holder off a device, and the device off the books when it was the last."""
    there = holders.get(device)
    if there is not None:
        there.pop(key, None)
        if not there:
            del holders[device]
