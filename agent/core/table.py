"""The table of allocations on this node: the state of each, and what it holds. Events in (orders of the coordinator,
reports of the launcher), commands out for the agent to perform.

Only this module guarantees that an allocation runs at most once, and that no resource is held twice. The end of an
allocation is kept until the coordinator has acknowledged it, whatever happens to connections. A successor
(`Launch.predecessor`) holds nothing until its predecessor is over; in that same step it gets what the predecessor held
(chains.py). A successor with shipped files is prepared only then, because they are unpacked where its predecessor ran.
"""

from collections.abc import Collection, Iterable, Mapping

from distributed_grid.agent.core.chains import Chains
from distributed_grid.agent.core.commands import (
    Command,
    Event,
    Forget,
    Kill,
    Prepare,
    Ready,
    Report,
    Run,
    SendSignal,
    SetLimit,
    SetNiceness,
    Withdraw,
)
from distributed_grid.agent.core.entry import (
    ENTRY_MOVES,
    Ended,
    Entry,
    IllegalMove,
    Kept,
    Preparing,
    Running,
    Stage,
    Starting,
    Stopping,
    keep,
)
from distributed_grid.agent.core.owner import RunningJob
from distributed_grid.agent.core.slack import SlackUser
from distributed_grid.agent.core.spare.claim import conflict, slack_conflict
from distributed_grid.agent.core.spare.holdings import Holdings
from distributed_grid.agent.core.spare.thresholds import Holding
from distributed_grid.agent.core.usage import Usage
from distributed_grid.protocol.jobs import Cause, Outcome, State, bounded
from distributed_grid.protocol.messages import Ack, Exited, Extend, Launch, Renice, Signal, Stale, Started, Stop
from distributed_grid.protocol.nodes import Known, NodeFacts, Stamp
from distributed_grid.protocol.placement import unfit
from distributed_grid.protocol.resources import MILLI, Grant
from distributed_grid.protocol.sharing.slack import left_to

ALREADY_OVER = Outcome(Cause.NODE_LOST, text="it was over and acknowledged before; nothing is started twice")
"""The outcome of what had ended and was acknowledged: only a coordinator that has lost it asks again. It may have run,
and how it ended is not known (agent/supervisor/allocations.py says the same)."""


_NOTHING = Usage()
REMEMBERED = 10_000
"""Maximum number of acknowledged ends (also kept by the supervisor) and of declined launches that are remembered."""


class Table:
    """All allocations of this node. Only `handle` changes them, apart from `restore` at the start. Times are of one
    monotonic clock."""

    def __init__(self, facts: NodeFacts | None = None) -> None:
        self.facts = facts
        self.entries: dict[str, Entry] = {}
        self.held = Holdings()
        self.chains = Chains()
        self._over: dict[str, None] = {}
        self._declined: dict[str, Stale] = {}
        self._lost: set[str] = set()
        self._grid = ""
        self._epoch = 0
        self._instance = ""
        self.renewed = 0.0
        """When the newest heartbeat was sent that the coordinator is known to have heard."""

    # --- at the start, and with a new connection ----------------------------------------------------------------------

    def restore(self, known: Iterable[tuple[Known, Kept | None, int]], now: float) -> None:
        """Take in what the launcher found at the start, each with what was kept of its launch (None: nothing), and its
        pid (0: unknown)."""
        for one, kept, pid in known:
            key = one.allocation
            if one.outcome is not None:
                self._move(key, Ended(one.outcome), kept)
                continue
            stage = Stopping if one.state is State.STOPPING else Running
            self._move(key, stage(now - one.started_for, pid, one.walls), kept)
            if kept is not None:
                self.chains.join(key, kept.chain or key)
                self.held.add(Holding(key, kept.grant))

    def refuses(self, grid: str, epoch: int, instance: str) -> str:
        """Why a coordinator is refused; empty: it is obeyed. Only the highest epoch of a grid is, and of two with the
        same epoch the first: they have one state directory, or a copy of it."""
        if grid != self._grid:
            return ""
        if epoch < self._epoch:
            return f"it is at epoch {epoch} of grid {grid}, and this node has obeyed epoch {self._epoch}"
        if epoch == self._epoch and instance and self._instance and instance != self._instance:
            return f"this node obeys another coordinator of grid {grid} at the same epoch {epoch}"
        return ""

    def welcome(self, grid: str, epoch: int, instance: str = "") -> None:
        """Obey the coordinator that says this of itself, unless it is refused."""
        if not self.refuses(grid, epoch, instance):
            self._grid, self._epoch, self._instance = grid, epoch, instance

    @property
    def epoch(self) -> tuple[str, int, str]:
        """The grid, the highest epoch seen of its coordinator, and that coordinator's instance."""
        return self._grid, self._epoch, self._instance

    def lose(self, known: Collection[str] | None) -> None:
        """Handle the report that the launcher lost its records, except these (None: it did not). Other allocations that
        it had and that have not ended are dropped, and never started here; so are successors of theirs that are being
        prepared."""
        if known is None:
            return
        handed = [key for key, one in self.entries.items() if not isinstance(one.stage, Preparing | Ended)]
        lost = {key for key in handed if key not in known}
        behind = [key for key, first in self.chains.successors() if first in lost]
        for key in (*behind, *(key for key in handed if key in lost and key not in behind)):
            self._move(key, None)
            self._free(key)
            self._lost.add(key)

    # --- queries ------------------------------------------------------------------------------------------------------

    def inventory(self, now: float) -> tuple[Known, ...]:
        """Return all allocations. Ends come without their outcomes, which are sent separately: together they could
        exceed a frame."""
        return tuple(self._known(key, entry, now) for key, entry in self.entries.items())

    def unacknowledged(self) -> list[Exited]:
        """Return all ends that the coordinator has not acknowledged, in order of arrival."""
        return [self._end_of(key, one) for key, one in self.entries.items() if one.over]

    def holdings(self) -> list[Holding]:
        """The holdings of all allocations, with what they use of memory as last set by `measured`."""
        return [*self.held.all.values()]

    def measured(self, trees: Mapping[int, Usage]) -> None:
        """Set what each job's process tree has of memory and on GPUs, by the job's pid."""
        for key in self.held.all:
            used = trees.get(_pid(self.entries[key]), _NOTHING)
            self.held.uses(key, used.rss, used.gpus)

    def running(self) -> list[RunningJob]:
        """Jobs that run and were not told to end, if their holdings are known."""
        return [
            RunningJob(held, entry.stage.began, entry.kept.raylet)
            for key, held in self.held.all.items()
            if isinstance((entry := self.entries[key]).stage, Running)
        ]

    def on_slack(self) -> list[SlackUser]:
        """The jobs that run on cores of others and were not told to end."""
        users: dict[str, list[tuple[str, Grant]]] = {}
        for key, held in self.held.all.items():
            if held.grant.slack and isinstance(self.entries[key].stage, Running):
                users.setdefault(held.grant.holder, []).append((key, held.grant))
        found, smt = [], self.facts.smt if self.facts is not None else ()
        for name, there in users.items():
            left, pid = None, 0
            if (holder := self.held.all.get(name)) is not None:
                left = left_to(holder.grant, [grant for _, grant in there], smt) / MILLI
                pid = _pid(self.entries[name])
            found += [SlackUser(key, name, left, pid) for key, _ in there]
        return found

    def has_on_slack(self) -> bool:
        """Whether anything is here that runs on cores of others, or is about to."""
        return any(held.grant.slack for held in self.held.all.values())

    def is_on_slack(self, allocation: str) -> bool:
        """Whether this allocation is here and runs on cores of another one."""
        held = self.held.all.get(allocation)
        return held is not None and bool(held.grant.slack)

    def pids(self) -> dict[str, int]:
        """The known pids of running jobs."""
        return {key: pid for key, one in self.entries.items() if (pid := _pid(one))}

    def live(self) -> list[str]:
        """The allocations that are not over."""
        return [key for key, one in self.entries.items() if not one.over]

    def waiting(self) -> dict[str, str]:
        """The successors that wait, each with the allocation that holds what they wait for. Those that were told to
        end, and what a node may have started already, are left out."""
        waits = self.chains.successors()
        return {key: first for key, first in waits if isinstance(self.entries[key].stage, Preparing | Starting)}

    def runs(self, allocation: str) -> bool:
        """Whether it may produce more output: it is known and not over."""
        entry = self.entries.get(allocation)
        return entry is not None and not entry.over

    def may_be_raylet(self, allocation: str) -> bool:
        """Whether it is a boost, or it is not known what it is."""
        entry = self.entries.get(allocation)
        return entry is None or entry.kept.raylet or entry.kept == Kept()

    def grace(self, stop: Stop) -> float:
        """The job's grace after this stop: its own, if the stop has none."""
        if stop.grace >= 0:
            return stop.grace
        entry = self.entries.get(stop.allocation)
        return entry.kept.grace if entry is not None else 0.0

    def leases(self) -> bool:
        """Whether any allocation here has a lease."""
        return any(one.kept.lease and not one.over for one in self.entries.values())

    def renew(self, at: float, now: float) -> None:
        """Renew all leases from then, except expired ones: their jobs may be given up by now."""
        self.renewed = max(self.renewed, at)
        for one in self.entries.values():
            if one.kept.lease and one.leased_from + one.kept.lease > now:
                one.leased_from = max(one.leased_from, at)

    # --- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """Handle an event; returns the commands, in order."""
        match event:  # the most frequent first
            case Launch():
                return self._launch(event, now)
            case Ready():
                return self._ready(event)
            case Started():
                return self._started(event, now)
            case Exited():
                return self._exited(event)
            case Ack():
                return self._ack(event)
            case Stop(unless_started=True):
                return self._withdraw(event)
            case Stop():
                return self._stop(event)
            case Signal():
                live = isinstance(self._stage(event.allocation), Running | Stopping)
                return [SendSignal(event.allocation, event.signal)] if live else []
            case Extend():
                return [SetLimit(event.allocation, event.limit)] if self.runs(event.allocation) else []
            case Renice():
                return [SetNiceness(event.allocation)] if self.runs(event.allocation) else []
            case Stale():
                return self._stale(event)

    def _launch(self, launch: Launch, now: float) -> list[Command]:
        key = launch.allocation
        if (entry := self.entries.get(key)) is not None:
            return self._as_it_stands(key, entry)
        if key in self._lost:
            return []  # lost: it may be alive, or have run; the inventory shows it as unknown
        if key in self._over:
            return [Report(Exited(allocation=key, outcome=ALREADY_OVER))]
        if key in self._declined:
            return [Report(self._declined[key])]
        before = self.entries.get(launch.predecessor) if launch.predecessor else None
        if before is not None and before.over:
            before = None
        why, device = self._refusal(launch, before)
        if why:
            stale = Stale(allocation=key, reason=why, device=device)
            return [Report(stale) if launch.epoch < self._epoch else self._decline(stale)]
        heard = launch.heard if launch.heard <= now else 0.0
        chain = self.chains.of(launch.predecessor) if before is not None else ""
        begun = before is None or not launch.spec.bundle
        self._move(key, Preparing(launch, begun=begun), keep(launch, chain), max(self.renewed, heard))
        self.chains.join(key, chain or key)
        if before is None:
            self.held.add(Holding(key, launch.grant))
        return [Prepare(launch)] if begun else []

    def _as_it_stands(self, key: str, entry: Entry) -> list[Command]:
        """The answer to a launch of a known allocation; none while it is starting or stopping, as a report will
        follow."""
        match entry.stage:
            case Ended():
                return [Report(self._end_of(key, entry))]
            case Running(_, pid, walls):
                return [Report(Started(allocation=key, pid=pid, walls=walls))]
        return []

    def _stop(self, stop: Stop) -> list[Command]:
        key = stop.allocation
        match self._stage(key):
            case None if key in self._over:
                return [Report(Exited(allocation=key, outcome=ALREADY_OVER))]
            case Ended():
                return [Report(self._end_of(key, self.entries[key]))]
            case Stopping():
                pass
            case Running(began, pid, walls):
                self._move(key, Stopping(began, pid, walls))
            case _:
                # Also an unknown one: the supervisor records it as over, so that a late launch is refused by any agent.
                self._move(key, Stopping())
                return [Kill(stop), *self._hand_over(key)]
        return [Kill(stop)]

    def _withdraw(self, stop: Stop) -> list[Command]:
        """Withdraw an allocation. One that has started goes on; for one that the launcher has, the launcher decides."""
        key = stop.allocation
        match self._stage(key):
            case Running() | Stopping():
                return []  # its start was reported, or its end will be
            case Starting():
                return [Withdraw(stop)]
            case None if key not in self._over:
                self._move(key, Starting())
                return [Withdraw(stop)]
        return self._stop(stop)

    def _ack(self, ack: Ack) -> list[Command]:
        done = [key for key in ack.allocations if key in self.entries and self.entries[key].over]
        for key in done:
            self._move(key, None)
            self._over[key] = None
        while len(self._over) > REMEMBERED:
            del self._over[next(iter(self._over))]
        return [Forget(tuple(done))] if done else []

    def _ready(self, ready: Ready) -> list[Command]:
        match self._stage(ready.allocation):
            case Preparing(launch):
                self._move(ready.allocation, Preparing(launch, ready=True))
                return self._hand_over(ready.allocation)
        return []  # it was stopped meanwhile

    def _hand_over(self, key: str) -> list[Command]:
        """Hand the ready allocations of a chain to the launcher in their order, and prepare the next one if it is its
        turn."""
        return self._hand_over_chain(self.chains.of(key)) if key in self.chains else []

    def _hand_over_chain(self, chain: str) -> list[Command]:
        commands: list[Command] = []
        for key in self.chains.members(chain):
            match self.entries[key]:
                case Entry(stage=Preparing(launch, ready=True), leased_from=leased_from):
                    self._move(key, Starting())
                    commands.append(Run(launch, leased_from, "" if chain == key else chain))
                case Entry(stage=Preparing(launch, begun=False)) if not self.chains.waits(key):
                    self._move(key, Preparing(launch))
                    commands.append(Prepare(launch))
                    break
                case Entry(stage=Preparing()):
                    break
        return commands

    def _stale(self, stale: Stale) -> list[Command]:
        """Handle a refused preparation: nothing of the allocation ran, or ever will."""
        match self.entries.get(stale.allocation):
            case Entry(stage=Preparing()):
                chain = self.chains.of(stale.allocation)
                self._move(stale.allocation, None)
                return [self._decline(stale, self._free(stale.allocation)), *self._hand_over_chain(chain)]
        return []

    def _decline(self, stale: Stale, freed: Grant | None = None) -> Report:
        """Remember the refusal: the launch may be repeated behind this answer, when the job runs elsewhere."""
        self._declined[stale.allocation] = stale
        if len(self._declined) > REMEMBERED:
            del self._declined[next(iter(self._declined))]
        return Report(stale, freed)

    def _started(self, started: Started, now: float) -> list[Command]:
        key = started.allocation
        if self.chains.waits(key):  # nothing of those before it is alive, then
            self.held.remove(self.chains.head(key))
            self.chains.make_head(key)
            self._hold(key)
        match self._stage(key):
            case Ended():
                return []
            case (Running(began, pid, walls) | Stopping(began, pid, walls)) as stage:
                self._move(key, type(stage)(began or now, started.pid or pid, started.walls or walls))
                return []
        self._move(key, Running(now, started.pid, started.walls))
        return [Report(started)]

    def _exited(self, exited: Exited) -> list[Command]:
        """Handle an end reported by the launcher, or by a failed preparation."""
        key = exited.allocation
        if key in self._over:
            return [Forget((key,))]  # the acknowledgement did not reach the supervisor
        if isinstance(self._stage(key), Ended):
            return []
        chain = self.chains.of(key) if key in self.chains else ""
        self._move(key, Ended(bounded(exited.outcome), exited.walls))
        return [Report(self._end_of(key, self.entries[key]), self._free(key)), *self._hand_over_chain(chain)]

    # --- the one mutator ----------------------------------------------------------------------------------------------

    def _stage(self, key: str) -> Stage | None:
        entry = self.entries.get(key)
        return None if entry is None else entry.stage

    def _move(self, key: str, to: Stage | None, kept: Kept | None = None, leased_from: float = 0.0) -> None:
        """Change an allocation's stage: add it (with what is `kept` of its launch), advance it, or remove it (None). A
        stage may also be replaced by itself with more detail. Raises IllegalMove."""
        entry = self.entries.get(key)
        now = None if entry is None else type(entry.stage)
        then = None if to is None else type(to)
        if then not in ENTRY_MOVES[now] and (entry is None or then is not now):
            raise IllegalMove(f"{key} cannot go from {_name(now)} to {_name(then)}")
        if to is None:
            del self.entries[key]
        elif entry is not None:
            entry.stage = to
        else:
            self.entries[key] = Entry(to, kept or Kept(), leased_from)

    # --- what is said of one ------------------------------------------------------------------------------------------

    def _end_of(self, key: str, entry: Entry) -> Exited:
        assert isinstance(entry.stage, Ended)  # noqa: S101
        ended = entry.stage
        return Exited(allocation=key, outcome=ended.outcome, stamp=self._shown(entry), walls=ended.walls)

    def _known(self, key: str, entry: Entry, now: float) -> Known:
        stamp = self._shown(entry)
        match entry.stage:
            case Ended():
                return Known(key, State.ENDED, stamp=stamp)
            case (Running(began, _, walls) | Stopping(began, _, walls)) as stage if began:
                state = State.RUNNING if isinstance(stage, Running) else State.STOPPING
                return Known(key, state, started_for=max(0.0, now - began), walls=walls, stamp=stamp)
        return Known(key, State.STARTING, stamp=stamp)  # also while stopping: it is not known to have run

    def _shown(self, entry: Entry) -> Stamp | None:
        """A stamp is not needed for what the current coordinator granted itself."""
        stamp = entry.kept.stamp
        return stamp if stamp is not None and stamp.epoch < self._epoch else None

    # --- who holds what -----------------------------------------------------------------------------------------------

    def _refusal(self, launch: Launch, before: Entry | None) -> tuple[str, str]:
        """Why this launch is refused by the table alone, and the core or GPU concerned. `before` is its predecessor, if
        that is not over."""
        grant = launch.grant
        if launch.epoch < self._epoch:
            return f"it comes from epoch {launch.epoch} of the coordinator, which is at {self._epoch} already", ""
        of = self.facts
        if of is not None and of.walls and (why := unfit(of.walls, of.owners, of.trusts, launch.user, launch.walls)):
            return why, ""
        if grant.slack:
            if launch.predecessor:
                return "it runs on cores of another allocation, and cannot follow one", ""
            return slack_conflict(self.held, grant), ""
        if before is None:
            return conflict(self.held, grant)
        after = launch.predecessor
        if launch.gang is not None or launch.spec.boost is not None:
            return f"it cannot follow {after}: a boost or a member of a gang follows nobody", ""
        if after not in self.chains or before.kept.grant != grant:
            return f"it cannot follow {after}: its predecessor holds something else", ""
        if not self.chains.is_tail(after):
            return f"it cannot follow {after}: another allocation does", ""
        return "", ""

    def _free(self, key: str) -> Grant | None:
        """Release the resources of an allocation that is gone. Returns what is free now; None: nothing, as a successor
        takes it over."""
        successor = self.chains.leave(key)
        holding = self.held.remove(key)
        if successor:
            self._hold(successor)
            return None
        return holding.grant if holding is not None else None

    def _hold(self, key: str) -> None:
        if key not in self.held.all:
            self.held.add(Holding(key, self.entries[key].kept.grant))


def _pid(entry: Entry) -> int:
    """The first process of what runs; 0: unknown."""
    return entry.stage.pid if isinstance(entry.stage, Running | Stopping) else 0


def _name(stage: type[Stage] | None) -> str:
    return stage.__name__ if stage is not None else "nothing"
