"""A simulated agent: the real table, lender and owner policy, with models of the shell around them. It replaces
agent/runtime.py, agent/session.py, agent/owner_policy.py and agent/fencing.py."""

from typing import Any

import msgspec

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
from distributed_grid.agent.core.entry import Kept, keep
from distributed_grid.agent.core.owner import Freeze, Owner, Recall, Thaw
from distributed_grid.agent.core.slack import SlackWatch
from distributed_grid.agent.core.spare.lender import Lender
from distributed_grid.agent.core.table import Table
from distributed_grid.protocol.jobs import Cause, Outcome, State, Use
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import (
    Exited,
    Heartbeat,
    Hello,
    InUse,
    Inventory,
    Launch,
    Recalled,
    Refused,
    Renewed,
    Stale,
    Started,
    Stop,
    Suspended,
    Welcome,
)
from distributed_grid.protocol.nodes import Known, Offer, Sample
from distributed_grid.protocol.resources import Grant
from distributed_grid.simulator.engine import UP, Engine, Wire
from distributed_grid.simulator.machine import Machine
from distributed_grid.simulator.supervisor import Launcher

HOLDS = 30.0


class Owning:
    """The owner of an agent's node and its jobs."""

    def __init__(self, agent: Any, machine: Machine, cores: int) -> None:
        self._agent, self._machine = agent, machine
        self._owner = Owner(machine.limits, cores)
        self._recalled: dict[str, Recalled] = {}
        self._withdrawn: set[str] = set()
        self._slack = SlackWatch()
        self._spent: dict[str, float] = {}

    @property
    def closed(self) -> str:
        """Why nothing more is lent now."""
        return self._owner.presence()

    @property
    def stirs(self) -> bool:
        """Whether the next sample may change something for a job."""
        return any(case.since is not None or case.frozen is not None for case in self._owner.cases.values())

    def measured(self, sample: Sample, clock: float) -> None:
        """Handle a new sample."""
        agent = self._agent
        self._recalled = {key: told for key, told in self._recalled.items() if agent.table.runs(key)}
        for order in self._owner.observe(sample, agent.table.running(), clock):
            if not isinstance(order, Thaw):
                self._withdraw(f"the owner is back ({order.why})", order.allocation)
            if isinstance(order, Freeze):
                agent.freeze(order.allocation, order.why, HOLDS)
            elif isinstance(order, Recall):
                self._recall(order.allocation, order.why, f"the owner is back ({order.why})")
            elif not self._slack.wants(order.allocation):
                agent.thaw(order.allocation)

    def look_at_holders(self, clock: float) -> None:
        """Let the holders whose cores run other jobs want more from time to time."""
        agent = self._agent
        if not (users := agent.table.on_slack()):
            return
        for one in users:
            wants = ((one.left or 0.0) + 1.0) * self._machine.chance.choice((0.0, 0.2, 1.0))
            self._spent[one.holder] = self._spent.get(one.holder, 0.0) + BEAT * wants
        for order in self._slack.observe(clock, users, self._spent):
            if isinstance(order, Freeze):
                agent.freeze(order.allocation, order.why, HOLDS)
            elif isinstance(order, Recall):
                self._recall(order.allocation, order.why, order.why, by_holder=True)
            elif not self._owner.active_for(order.allocation):
                agent.thaw(order.allocation)

    def withdraw(self) -> None:
        """Take back the successors that wait for what the node does not lend now."""
        for key, first in self._agent.table.waiting().items():
            if (stale := self._agent.verify(key, self._agent.table.entries[key].kept.grant, first)) is not None:
                self._withdraw(stale.reason, key)

    def _withdraw(self, why: str, whose: str) -> None:
        waiting = self._agent.table.waiting()
        self._withdrawn &= waiting.keys()
        for key, first in waiting.items():
            if whose in (key, first) and key not in self._withdrawn:
                self._withdrawn.add(key)
                self._machine.judge.told_to_stop(key, Cause.RECALLED)
                self._agent.engine.note(f"{key} is taken back from {self._machine.name}: {why}")
                self._agent.feed(Stop(allocation=key, cause=Cause.RECALLED, text=why, unless_started=True))

    def _recall(self, key: str, why: str, text: str, by_holder: bool = False) -> None:
        agent = self._agent
        self._machine.judge.told_to_stop(key, Cause.RECALLED)
        agent.engine.note(f"{key} is recalled from {self._machine.name}: {why}")
        stop = Stop(allocation=key, grace=-1.0, cause=Cause.RECALLED, text=text)
        told = Recalled(allocation=key, why=why, grace=agent.table.grace(stop), by_holder=by_holder)
        self._recalled[key] = told
        agent.feed(stop)
        agent.say(told)

    def took(self, told: Suspended, clock: float) -> None:
        """The supervisor has frozen it, or let it go on."""
        if told.why and self._slack.wants(told.allocation):
            self._agent.say(msgspec.structs.replace(told, by_holder=True))
            return
        self._owner.took(told.allocation, told.why, told.lasted, told.in_all, clock)
        self._agent.say(told)

    def introduction(self, clock: float) -> list[Suspended | Recalled]:
        """Return the messages for a coordinator that has just connected."""
        told: list[Suspended | Recalled] = [*self._owner.suspended(clock), *self._recalled.values()]
        return [one for one in told if self._agent.table.runs(one.allocation)]


BEAT = 2.0
OPEN_SECONDS = 5.0
FRESH = 1.0
PATIENCE = 5.0
BACK_OFF_LEAST, BACK_OFF_MOST, STEADY = 0.1, 10.0, 10.0
SILENCE = 15.0
"""A ping every 5 s that has 10 s to be answered."""
START_SECONDS = 0.05
CALM = 3.5
"""Seconds after which a node where nothing changed has nothing new to offer but a repetition."""


class Agent(Launcher):
    """One life of a node's agent. `dial` opens a wire to the process at the coordinator's address, or returns None."""

    def __init__(self, engine: Engine, machine: Machine, dial: Any) -> None:
        super().__init__(engine, machine)
        self.table = Table(machine.facts())
        self.session = ""
        self._dial = dial
        self._wire: Wire | None = None
        self._dialled = 0.0
        self._tries = 0
        self._outbox: list[Any] = []
        self._flush_due = False
        self._offer_due = False
        self._preparing: dict[str, object] = {}
        self._sampled = 0.0
        self._stirred = 0.0
        self._again = 0.0
        machine.incarnation += 1
        self.facts = machine.facts()
        self._lender = Lender(machine.limits, self.facts)
        self._owning = Owning(self, machine, len(self.facts.cores))
        self._heartbeat: Heartbeat | None = None
        engine.later(START_SECONDS, self, self._start)

    # --- life ---------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        known = []
        for said in self.supervisor().connect(self):
            one = _known(said)
            known.append((one, msgspec.convert(said["kept"], Kept | None), 0))
            if one.outcome is not None:
                self.known_over[one.allocation] = None
        self.table.restore(known, self.machine.clock())
        if self.machine.newest is not None:
            self.table.welcome(*self.machine.newest)
        self.stir()
        self._observe()
        self.engine.later(self.machine.chance.random() * BEAT, self, self._beat)
        self._connect()

    def killed(self) -> None:
        """kill -9: what it said last may not have left it."""
        self.dead = True
        self.last_word = self.machine.chance.randint(self._received_ops, self._ops)
        if self._wire is not None:
            self._wire.close(UP, lose=True)

    # --- the coordinator ----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._dialled = self.engine.now
        wire = None if any(self.machine.link.cut) else self._dial(self)
        if wire is None:
            self.engine.later(OPEN_SECONDS if any(self.machine.link.cut) else 0.001, self, self._back_off)
            return
        self._wire = wire
        hello = Hello(protocol=PROTOCOL, software="sim", role="agent", name=self.machine.name, facts=self.facts)
        self._hello_at = self.machine.clock()
        wire.send(UP, hello)
        self.engine.later(OPEN_SECONDS, self, self._not_welcomed, wire)

    def _not_welcomed(self, wire: Wire) -> None:
        if wire is self._wire and not self.session:
            self.hung_up(wire)

    def _back_off(self) -> None:
        self._tries = 1 if self.engine.now - self._dialled > STEADY else self._tries + 1
        most = min(BACK_OFF_MOST, BACK_OFF_LEAST * 2 ** min(self._tries, 10))
        self.engine.later(self.machine.chance.uniform(BACK_OFF_LEAST / 2, most), self, self._connect)

    def hung_up(self, wire: Wire) -> None:
        """The coordinator's end is closed, or to be left."""
        if wire is not self._wire:
            return
        self._flush()
        wire.close(UP)
        self._wire, self.session = None, ""
        self._outbox.clear()
        self._back_off()

    def receive(self, wire: Wire, frame: Any) -> None:
        """A frame of the coordinator."""
        if wire is not self._wire:
            return
        match frame:
            case Welcome():
                self._welcomed(wire, frame)
            case Refused():
                self.engine.note(f"{self.machine.name} is refused: {frame.what}")
                if frame.final:
                    self.dead = True
                wire.close(UP)
                self._wire = None
                if not frame.final:
                    self._back_off()
            case _:
                for message in frame:
                    if isinstance(message, Renewed):
                        self._renewed(message.at)
                    else:
                        self.feed(message)

    def knows(self, epoch: int, instance: str) -> bool:
        """Whether it has obeyed this very coordinator."""
        return self.table.epoch == ("grid", epoch, instance)

    def _welcomed(self, wire: Wire, welcome: Welcome) -> None:
        whom = welcome.grid, welcome.epoch, welcome.instance
        if why := self.table.refuses(*whom):
            self.engine.note(f"{self.machine.name} does not obey this coordinator: {why}")
            self.hung_up(wire)
            return
        self.table.welcome(*whom)
        self.machine.newest = self.table.epoch
        self.session = welcome.session
        wire.answered = self.engine.now
        self._renewed(self._hello_at)  # the coordinator has heard the hello
        self._offer_due = False
        self.say(Inventory(known=self.table.inventory(self.machine.clock())), self._whole_offer())
        self.say(*self._owning.introduction(self.machine.clock()), *self.table.unacknowledged())

    def say(self, *messages: Any) -> None:
        """Send messages to the coordinator, if it is connected, with those that this turn adds."""
        if not self.session:
            return
        self._outbox += messages
        if not self._flush_due:
            self._flush_due = True
            self.engine.later(0.0001, self, self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._wire is None or not self.session:
            return
        if self._offer_due:
            self._offer_due = False
            self._outbox.append(self._whole_offer())
        if self._outbox:
            self._wire.send(UP, [*self._outbox])
            self._outbox.clear()

    # --- measuring, offers, heartbeats --------------------------------------------------------------------------------

    def _beat(self) -> None:
        self.engine.later(self.machine.seconds(BEAT), self, self._beat)
        now, wire = self.engine.now, self._wire
        if now < self._stirred or now >= self._again or self._owning.stirs or self.machine.tells_use:
            self._observe()
        if wire is None or not self.session:
            return
        if wire.well:
            wire.answered = now
        elif now - wire.answered > SILENCE:
            self.engine.note(f"{self.machine.name} has no answer from the coordinator and hangs up")
            self.hung_up(wire)
            return
        sample = self.machine.sample()
        if self.machine.dates:
            sample = msgspec.structs.replace(sample, at=self.machine.clock())
        if self.table.leases():
            self.say(Heartbeat(sample=sample, at=self.machine.clock()))
            return
        if self._heartbeat is None or self._heartbeat.sample is not sample:
            self._heartbeat = Heartbeat(sample=sample)
        if self._outbox or not wire.quick or not wire.ends[1].heartbeat(wire, self._heartbeat):
            self.say(self._heartbeat)

    def _renewed(self, at: float) -> None:
        self.lease_from = max(self.lease_from, at)
        self.table.renew(at, self.machine.clock())
        self.renew(at)

    def stir(self) -> None:
        """Something changed on this node: it is measured at every beat for a while."""
        self._stirred = self.engine.now + CALM

    def _observe(self) -> None:
        clock = self.machine.clock()
        self._sampled = clock
        self._again = self.engine.now + self.machine.limits.check_interval
        sample = msgspec.structs.replace(self.machine.sample(), at=clock)
        offer = self._lender.observe(sample, self.table.holdings(), clock)
        if offer is not None:
            self.say(offer)
        self._owning.measured(sample, clock)
        if self.machine.tells_use:
            self._tell_use(clock)
        if self._lender.closed != self._owning.closed:
            self._lender.closed = self._owning.closed
            self._offer_soon()
        self._owning.withdraw()

    def _tell_use(self, clock: float) -> None:
        self._owning.look_at_holders(clock)
        running = [one.holding for one in self.table.running() if one.holding.grant.cores]
        if running:
            usual = [self.machine.chance.choice((0.0, 0.5, 1.5)) for _ in running]
            self.say(InUse(uses=tuple(
                Use(allocation=one.allocation, seconds=BEAT, usual=used, usual_for=600.0)
                for one, used in zip(running, usual, strict=True)
            )))  # fmt: skip

    def took(self, told: Suspended) -> None:
        """Handle that the supervisor has frozen jobs, or let them continue."""
        self._owning.took(told, self.machine.clock())
        self.stir()

    def _whole_offer(self) -> Offer:
        clock = self.machine.clock()
        sample = msgspec.structs.replace(self.machine.sample(), at=self._sampled)
        return self._lender.observe(sample, self.table.holdings(), clock) or self._lender.current(clock)

    def _offer_soon(self) -> None:
        self._offer_due = True
        self.say()

    # --- the table ----------------------------------------------------------------------------------------------------

    def report(self, event: Started | Exited) -> None:
        """Pass an event of the supervisor to the table."""
        self.feed(event)

    def feed(self, event: Event) -> None:
        for command in self.table.handle(event, self.machine.clock()):
            self._perform(command)

    def _perform(self, command: Command) -> None:
        self.stir()
        match command:
            case Prepare(launch):
                self._prepare(launch)
            case Run(launch, leased_from, chain):
                self._run(launch, leased_from, chain)
            case Kill(stop):
                self._preparing.pop(stop.allocation, None)
                self._stop(stop)
            case Withdraw(stop):
                self._stop(stop, unless_started=True)
            case Forget(allocations):
                for one in allocations:
                    self.known_over.pop(one, None)
                self.ask({"op": "forget", "ids": allocations})
            case SendSignal() | SetLimit() | SetNiceness():
                pass
            case Report():
                self._report(command)

    def _report(self, report: Report) -> None:
        message = report.message
        if isinstance(message, Exited) and not message.outcome.started:
            self.machine.judge.never_runs(message.allocation)
        if isinstance(message, Exited) and report.freed is not None:
            if self._lender.would_return(report.freed, self.table.held):
                message = msgspec.structs.replace(message, returned=True)
            else:
                self._offer_soon()
        elif isinstance(message, Stale):
            self.engine.note(f"{message.allocation} is not started on {self.machine.name}: {message.reason}")
            self._offer_soon()
        self.say(message)

    # --- a launch -----------------------------------------------------------------------------------------------------

    def _prepare(self, launch: Launch) -> None:
        fresh = self._sampled >= self.machine.clock() - FRESH
        if fresh and not launch.grant.gpus and not launch.spec.bundle:
            self._claim(launch)
            return
        task = self._preparing[launch.allocation] = object()
        chance, slow = self.machine.chance, self.machine.slow_measure
        seconds = chance.random() * (0.05 + self.machine.sluggish) + slow
        self.engine.later(min(seconds, PATIENCE), self, self._prepared, launch, task, seconds > PATIENCE)

    def _prepared(self, launch: Launch, task: object, hangs: bool) -> None:
        if self._preparing.get(launch.allocation) is not task:
            return
        del self._preparing[launch.allocation]
        if hangs:
            self.feed(Stale(allocation=launch.allocation, reason="measuring this node hangs"))
        else:
            self._sampled = self.machine.clock()
            self._claim(launch)

    def _claim(self, launch: Launch) -> None:
        key = launch.allocation
        self.feed(self.verify(key, launch.grant, self.table.chains.head(key)) or Ready(key))

    def verify(self, key: str, grant: Grant, first: str) -> Stale | None:
        """Return why an allocation cannot be given these resources now, which `first` holds: itself, or the one before
        it in its chain."""
        sample = msgspec.structs.replace(self.machine.sample(), at=self._sampled)
        if first == key:
            return self._lender.verify(grant, sample, self.table.held, key)
        return self._lender.verify_next(grant, sample, self.table.held, key, first)

    # --- the supervisor -----------------------------------------------------------------------------------------------

    def _run(self, launch: Launch, leased_from: float, chain: str) -> None:
        self.machine.specs[launch.allocation] = launch
        spec = launch.spec
        self.ask({
            "op": "launch", "id": launch.allocation, "limit": spec.time_limit, "grace": spec.grace,
            "lease": launch.lease, "lease_from": leased_from, "kept": msgspec.to_builtins(keep(launch, chain)),
        })  # fmt: skip

    def _stop(self, stop: Stop, unless_started: bool = False) -> None:
        asked = {"op": "stop", "id": stop.allocation, "grace": stop.grace, "cause": stop.cause, "text": stop.text}
        self.ask(asked | {"unless_started": unless_started})


def _known(said: dict[str, Any]) -> Known:
    """Convert a supervisor's report on an allocation."""
    if said["outcome"] is not None:
        return Known(said["id"], State.ENDED, msgspec.convert(said["outcome"], Outcome))
    return Known(said["id"], State.STOPPING if said["stopping"] else State.RUNNING)
