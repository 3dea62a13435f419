"""A simulated coordinator: the real ledger in the real commit pipeline, with models of the disk, of the sessions of
agents (the newest wins) and of requests. It replaces coordinator/driver.py, coordinator/api/server.py and
coordinator/api/requests.py."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from distributed_grid.coordinator.core.commands import (
    Accepted,
    AckExits,
    CancelRequested,
    Command,
    DemandReported,
    Event,
    ForecastsReported,
    Granted,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    RayletJoined,
    Rebalanced,
    Rejected,
    RunTimesPredicted,
    Send,
)
from distributed_grid.coordinator.core.model import Condition, End, Group, HeldBack, Job
from distributed_grid.coordinator.core.pipeline import NEVER, Pipeline
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.queue.dependencies import end_words, group_end
from distributed_grid.coordinator.core.trends.idle import HORIZONS
from distributed_grid.coordinator.core.trends.stay import IdleForecast
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.history.trends import IdleChance
from distributed_grid.protocol.jobs import Cause, State
from distributed_grid.protocol.link import PROTOCOL, SILENCE
from distributed_grid.protocol.messages import Ack, Heartbeat, Hello, Launch, Refused, Stop, Welcome
from distributed_grid.protocol.nodes import NodeFacts
from distributed_grid.protocol.sharing.moves import MoveKind
from distributed_grid.protocol.sharing.policies import OffloadingMode
from distributed_grid.simulator.disk import Disk, Snapshot, snapshot
from distributed_grid.simulator.engine import DOWN, Engine, Process, Wire
from distributed_grid.simulator.judging.grant_order import Watched
from distributed_grid.simulator.judging.judge import Judge
from distributed_grid.simulator.raycluster import RayCluster
from distributed_grid.simulator.workload import JobPlan

DISK_FAILS = GridError("the disk fails", "its weather is bad", "wait for better weather")
CHECK_EVERY = 100
"""Turns from one look at the whole ledger to the next: looking is dear."""


class Weather:
    """The state of the coordinator's disk: the maximum seconds of a commit, and whether it fails."""

    def __init__(self) -> None:
        self.sluggish = 0.0
        self.slow = 0.0
        self.bad = False


class Driver(Process, ABC):
    """One life of a coordinator, from the opening of its store to its kill: the real commit pipeline over a simulated
    disk and clock. `wall` is what the wall clock shows."""

    def __init__(
        self, engine: Engine, disk: Disk, weather: Weather, judge: Judge, chance: random.Random, policy: Policy,
        wall: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.engine, self.disk, self.weather, self.judge, self.chance = engine, disk, weather, judge, chance
        self._turn_due = False
        self._turns = 0
        self._snapshot: Snapshot | None = None
        self._armed = NEVER
        disk.epoch += 1
        self.epoch = disk.epoch
        self._clock_from = max(wall, disk.clock) - engine.now
        self.ledger = Watched(self.epoch, policy)
        self.ledger.state.preempting.remember(disk.receipts.values())
        restored = self.ledger.restore(
            disk.jobs(),
            disk.allocations(),
            disk.facts(),
            self.clock(),
            ordered=disk.orders(),
            many=disk.groups(),
            past=disk.shares,
            granted=disk.rights,
            spent=disk.spent,
            lent=disk.loans,
            returns=disk.returns,
        )
        self.ledger.check()
        self.pipeline = Pipeline(self.ledger)
        self.pipeline.take(restored)
        self._advance()

    @abstractmethod
    def perform(self, commands: list[Command]) -> None:
        """Carry out the ledger's commands, beside recording."""

    def clock(self) -> float:
        """Grid time: it never jumps, whatever the wall clock does."""
        return self._clock_from + self.engine.now

    def put(self, event: Event) -> None:
        """Something happened."""
        self.pipeline.put(event)
        self._turn_soon()

    def _turn_soon(self) -> None:
        if self.pipeline.queue and not self._turn_due:
            self._turn_due = True
            self.engine.later(0.0001, self, self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self._turn_now()

    def _turn_now(self) -> None:
        self.pipeline.turn(self.clock())
        self._check_now_and_then()
        self._advance()

    def _check_now_and_then(self) -> None:
        self._turns += 1
        if self._turns % CHECK_EVERY == 0:
            self.ledger.check()

    def _advance(self) -> None:
        """Carry out the next steps of the pipeline."""
        now, pipeline = self.clock(), self.pipeline
        if commands := pipeline.performable(now):
            self.perform(commands)
        if pipeline.write_due(now):
            self._snapshot = snapshot(pipeline.begin_write(now), now)
            seconds = 0.0005 + self.chance.random() * (0.001 + max(self.weather.sluggish, self.weather.slow))
            self.engine.later(seconds, self, self._commit_returns)
        if pipeline.take_secure(now):
            pipeline.secured(None, now)
        self._turn_soon()
        when = pipeline.next_time()
        if when < self._armed:
            self._armed = when
            self.engine.at(when - self._clock_from + 0.001, self, self._tick, when)

    def _tick(self, when: float) -> None:
        if when == self._armed:
            self._armed = NEVER
            self.pipeline.tick(self.clock())
            self._advance()

    def _commit_returns(self) -> None:
        if self.weather.bad:
            if self.chance.random() < 0.3:
                self._apply()  # a commit that failed may be there all the same
            self.engine.note("a commit of the coordinator fails")
            self.pipeline.refuse(DISK_FAILS, self.clock())
        else:
            self._apply()
            self._snapshot = None
            self.pipeline.written()
        self._advance()

    def _apply(self) -> None:
        if self._snapshot is not None:
            self.disk.apply(self._snapshot)
            for row in self._snapshot.rows:
                self.judge.stored(row)
            self.judge.ends_as_one(self.disk, self._snapshot.rows)
            for node, orders in self._snapshot.orders:
                self.judge.ordered(node, orders)
            for key, _ in self._snapshot.rights:
                self.judge.rights_stored(key)
            for receipt in self._snapshot.receipts:
                self.judge.receipt_stored(receipt, self.disk.last_of)

    def lost(self) -> None:
        """kill -9: of what was not committed nothing is left, of a commit under way all or nothing."""
        self.dead = True
        if self.chance.random() < 0.5:
            self._apply()


PREDICTED_EVERY = 1.0
DOUBT_SECONDS = 0.5
PROBE_SECONDS = 1.0


class Session:
    """An agent that was let in."""

    def __init__(self, facts: NodeFacts, name: str, wire: Wire) -> None:
        self.facts = facts
        self.name = name
        self.wire = wire


class Coordinator(Driver):
    """One life of a coordinator. `instance` identifies it."""

    def __init__(
        self, engine: Engine, disk: Disk, weather: Weather, judge: Judge, chance: random.Random, policy: Policy,
        wall: float, instance: str, stays: Mapping[str, float], ray: RayCluster | None = None,
        run_time: Callable[[str], float] | None = None,
    ) -> None:  # fmt: skip
        self.instance = instance
        self._stays = stays
        """How likely nodes stay idle, where that is forecast."""
        self._ray = ray
        self.agents: dict[str, Session] = {}
        self.wires: list[Wire] = []
        self._answers: dict[int, Callable[[Any], None]] = {}
        self._token = 0
        self._sessions = 0
        super().__init__(engine, disk, weather, judge, chance, policy, wall)
        if judge.moves is not None:
            jobs = self.ledger.state.jobs.values()
            lent = (job for job in jobs if job.spec.boost is not None and job.spec.boost.automatic)
            judge.moves.restored({job.id: job.submitted for job in lent})
        if policy.balancing.mode is OffloadingMode.DYNAMIC_BALANCING:
            self.engine.later(policy.balancing.interval, self, self._pass)
        if run_time is not None:
            self.engine.later(PREDICTED_EVERY, self, self._predict, run_time)

    def _predict(self, run_time: Callable[[str], float]) -> None:
        """Predict of some of the jobs that wait how long they run. Stands for coordinator/predictor."""
        state, chance = self.ledger.state, self.chance
        waiting = (
            job for job in state.jobs.values() if job.id in state.queue and not (job.spec.hold or job.spec.boost)
        )
        of = [job.id for job in waiting if chance.random() < 0.5]
        told = tuple((job, min(60.0, run_time(job)) * chance.choice((0.0, 0.3, 1.0, 1.1, 3.0))) for job in of)
        if told:
            self.put(RunTimesPredicted(told))
        self.engine.later(PREDICTED_EVERY, self, self._predict, run_time)

    def _pass(self) -> None:
        """Forecasts are told, and a pass of rebalancing is due."""
        now = self.clock()
        told: dict[str, IdleForecast | None] = {
            name: IdleForecast(now, 600.0, tuple(IdleChance(seconds, part, 31, 25) for seconds in HORIZONS))
            for name, part in self._stays.items()
        }
        self.put(ForecastsReported(told))
        if self._ray is None:
            self.put(DemandReported(None))
        else:
            for allocation in self._ray.joined():
                if (one := self.ledger.state.allocations.get(allocation)) and one.state is State.STARTING:
                    self.put(RayletJoined(allocation, "simulated"))
            self.put(DemandReported(self._ray.look(), self._ray.ids()))
        self.engine.later(self.ledger.state.policy.balancing.interval, self, self._pass)

    def killed(self) -> None:
        """kill -9: all connections end as well."""
        self.lost()
        for wire in [*self.wires]:
            wire.close(DOWN, lose=True)

    # --- what the ledger commands -------------------------------------------------------------------------------------

    def perform(self, commands: list[Command]) -> None:
        """Send and answer; what goes to one agent goes in one frame."""
        outbox: dict[str, list[Any]] = {}
        for command in commands:
            match command:
                case Send(node, message):
                    if isinstance(message, Launch):
                        if self._overtaken(message, node):
                            continue
                        self.judge.launched(message.allocation, node)
                    elif isinstance(message, Stop):
                        self.judge.told_to_stop(message.allocation, message.cause)
                    outbox.setdefault(node, []).append(message)
                case Rebalanced(moves, True) if self.judge.moves is not None:
                    if self.judge.moves.watching and all(one.kind is not MoveKind.LEAVE for one in moves):
                        self.judge.moves.seen(self.at_rest(), self.engine.now)  # it may have changed a moment ago
                    self.judge.moves.made(moves, self.instance, self.engine.now, self.judge.runs)
                case AckExits(node, allocations):
                    for allocation in allocations:
                        self.judge.acknowledged(allocation)
                    outbox.setdefault(node, []).append(Ack(allocations=allocations))
                case Accepted() | Rejected() | Granted():
                    if (answer := self._answers.pop(command.token, None)) is not None:
                        answer(command)
        for node, messages in outbox.items():
            if (session := self.agents.get(node)) is not None:
                session.wire.send(DOWN, messages)

    def at_rest(self) -> object:
        """Return what the grid's own jobs do, each by its attempt, what waits in Ray, and which nodes lend less for a
        while since something failed there: as long as this stays, no move is to be made."""
        state = self.ledger.state
        own = [(one.id, one.state, one.allocation) for one in state.jobs.values() if one.spec.boost is None]
        less = [(name, tuple(sorted(node.closed))) for name, node in state.nodes.items() if node.closed]
        return own, less, [] if self._ray is None else self._ray.demanded()

    def _overtaken(self, launch: Launch, node: str) -> bool:
        """Whether it was given up while its launch waited for the disk, or the node has begun another life."""
        granted, session = self.ledger.state.allocations.get(launch.allocation), self.agents.get(node)
        if granted is None or session is None:
            return True
        return granted.boot not in ("", session.facts.boot_id) or granted.instance not in ("", session.facts.instance)

    # --- agents -------------------------------------------------------------------------------------------------------

    def receive(self, wire: Wire, frame: Any) -> None:
        """A frame came on a wire: a hello, or messages of a session."""
        if isinstance(frame, Hello):
            self._called(wire, frame)
            return
        name = wire.link_name
        session = self.agents.get(name)
        if session is None or session.wire is not wire:
            self._end(wire)
            return
        for message in frame:
            if type(message) is Heartbeat:
                self.put(HeartbeatReceived(name, message.sample, message.at))
            else:
                self.put(MessageReceived(name, message))

    def heartbeat(self, wire: Wire, message: Heartbeat) -> bool:
        """Handle a heartbeat that arrives at once on a quiet wire, as nearly all do: a turn of its own, without the
        waiting. False if it must come as all other messages do."""
        session = self.agents.get(wire.link_name)
        if self.pipeline.queue or message.at or session is None or session.wire is not wire:
            return False
        wire.heard, wire.doubted = self.engine.now, False
        now = self.clock()
        followed = self.pipeline.heartbeat(HeartbeatReceived(session.facts.name, message.sample), now)
        self._check_now_and_then()
        if followed or (when := self.pipeline.next_time()) < self._armed or when <= now:
            self._advance()
        return True

    def _called(self, wire: Wire, hello: Hello) -> None:
        assert hello.facts is not None
        self.wires.append(wire)
        wire.link_name = hello.facts.name
        self._settle_name(wire, hello.facts, None)

    def _settle_name(self, wire: Wire, facts: NodeFacts, asked: Session | None) -> None:
        """Allow one agent per name: a newer incarnation wins, and so does another agent if the old one does not
        answer."""
        if wire.closed[DOWN]:
            return
        old = self.agents.get(facts.name)
        if old is not None:
            same = facts.boot_id == old.facts.boot_id and facts.instance == old.facts.instance
            restarted = same and facts.incarnation > old.facts.incarnation
            if not restarted:
                if old is not asked:
                    self.engine.later(PROBE_SECONDS, self, self._settle_name, wire, facts, old)
                    return
                if old.wire.well:
                    wire.send(DOWN, Refused(what=f"a node named {facts.name!r} is connected already", final=True))
                    self._end(wire)
                    return
            self._left(old)
            old.wire.close(DOWN, lose=True)
        self._welcome(wire, facts)

    def _welcome(self, wire: Wire, facts: NodeFacts) -> None:
        self._sessions += 1
        session = Session(facts, f"{self.instance}-{self._sessions}", wire)
        self.agents[facts.name] = session
        welcome = Welcome(
            protocol=PROTOCOL, software="sim", epoch=self.epoch, grid="grid", session=session.name,
            instance=self.instance,
        )  # fmt: skip
        wire.send(DOWN, welcome)
        wire.heard = self.engine.now
        self.put(NodeUp(facts, session.name))
        self.engine.note(f"the coordinator lets {facts.name} in, session {session.name}")
        self.engine.later(SILENCE, self, self._watch, session)

    def _watch(self, session: Session) -> None:
        """An agent is heard every few seconds, or its connection is dead."""
        wire = session.wire
        if wire.closed[DOWN]:
            return
        due = wire.heard + SILENCE
        if due > self.engine.now:
            self.engine.at(due + 0.001, self, self._watch, session)
        elif not wire.doubted:
            wire.doubted = True
            self.engine.later(DOUBT_SECONDS, self, self._watch, session)
        else:
            self.engine.note(f"the coordinator has not heard {session.facts.name} and cuts the connection")
            self._end(wire, lose=True)
            self._left(session)

    def hung_up(self, wire: Wire) -> None:
        """The agent's end is closed."""
        self._end(wire)
        session = self.agents.get(wire.link_name)
        if session is not None and session.wire is wire:
            self._left(session)

    def _left(self, session: Session) -> None:
        if self.agents.get(session.facts.name) is session:
            del self.agents[session.facts.name]
            self.put(NodeDown(session.facts.name, session.name))

    def _end(self, wire: Wire, lose: bool = False) -> None:
        wire.close(DOWN, lose)
        if wire in self.wires:
            self.wires.remove(wire)

    # --- clients ------------------------------------------------------------------------------------------------------

    def submit(self, job: Job, plan: JobPlan, answer: Callable[[Any], None]) -> None:
        """A client submits. The answer is the id of the job its key stands for, or why not."""
        key = (job.user, job.key)
        if (known := self.disk.keys.get(key)) is not None:
            answer(Accepted(0, (known,), 0, 0))
        elif self.pipeline.trouble and key not in self.ledger.state.keys:
            answer(Rejected(0, "unavailable", "the disk is in trouble"))
        else:
            if isinstance(job.phase, HeldBack):
                job.phase.after = tuple(map(self._looked_up, job.after))
            many = (_group_of(job, plan),) if job.request.gang or plan.members else ()
            self.put(JobsSubmitted(self._expect(answer), (job,), many))

    def _looked_up(self, condition: Condition) -> Condition:
        """Return a condition with how the other job ended, if that is on disk and not in the ledger."""
        name, ledger = condition.on, self.ledger
        if name in ledger.state.jobs or name in ledger.state.groups or name in ledger.state.dependencies.ends:
            return condition
        if (group := self.disk.group(name)) is not None:
            return msgspec.structs.replace(condition, end=group_end(group) if group.ended else None)
        row = self.disk.rows.get(name)
        if row is None or row.outcome is None:
            return condition
        outcome = row.outcome
        end = End(outcome.cause is Cause.EXITED and outcome.code == 0, outcome.started, end_words(outcome))
        return msgspec.structs.replace(condition, end=end)

    def cancel(self, job: str, answer: Callable[[Any], None]) -> None:
        """A client cancels."""
        if job not in self.ledger.state.jobs and job not in self.ledger.state.groups:
            answer(Granted(0, "ended already"))
        elif self.pipeline.trouble:
            answer(Rejected(0, "unavailable", "the disk is in trouble"))
        else:
            self.put(CancelRequested(self._expect(answer), (job,)))

    def order(self, event: Callable[[int], Event], answer: Callable[[Any], None]) -> None:
        """An operator orders something; it is not heard before it is on disk."""
        if self.pipeline.trouble:
            answer(Rejected(0, "unavailable", "the disk is in trouble"))
        else:
            self.put(event(self._expect(answer)))

    def _expect(self, answer: Callable[[Any], None]) -> int:
        self._token += 1
        self._answers[self._token] = answer
        return self._token


def _group_of(template: Job, plan: JobPlan) -> Group:
    """The gang or array that a job stands for."""
    gang = template.request.gang
    count = gang or plan.members
    array = Array(((0, count - 1, 1),), plan.most, plan.max_fails)
    return Group(
        id=template.id, key=template.key, user=template.user, kind=GroupKind.GANG if gang else GroupKind.ARRAY,
        spec=template.spec, request=template.request, submitted=template.submitted, count=count, array=array,
        after=template.after, begin=template.begin,
    )  # fmt: skip
