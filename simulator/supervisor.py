"""A simulated supervisor: the real guarantees (`Allocations`), endings, freezes, leases and journal records of
agent/supervisor/, with simulated processes, disk and clock; and the agent's end of the connection to it, which replaces
agent/launch/launcher.py."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any
from zlib import crc32

import msgspec

from distributed_grid.agent.supervisor.allocations import Allocations, ReportBatch, Syncs, chain_of
from distributed_grid.agent.supervisor.endings import Endings, Freezer
from distributed_grid.agent.supervisor.job import NEVER, OWNER, Job, JobState, Leases, Recorded, never_ran, of_order
from distributed_grid.protocol.jobs import Outcome
from distributed_grid.protocol.messages import Exited, Started, Suspended
from distributed_grid.simulator.engine import Engine, Process
from distributed_grid.simulator.machine import Machine

PID = 7
"""Of every main process: nobody looks at it here."""
UNTOLD = 0.05
"""Seconds, once or twice, for which the start of a successor is not told: real ones wait for some milliseconds."""
LOOK = 0.2
"""Seconds between two looks whether what a main process left behind is gone."""
SLACK = 1e-6
"""Seconds by which a timer is late, so that what it is for is due in spite of rounding."""


class Journal:
    """A node's journal. What is appended is safe from a kill, and once it is synced from a power cut as well."""

    sound = True

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.jobs: dict[str, Job] = {}

    def append(self, *record: Any) -> None:
        if record[0] == "stop" and record[2] == "time-limit":
            job = self.jobs[record[1]]
            self._machine.had_its_time(job.id, job.limit, job.began)
        self._machine.journal.append([*record])


class JournaledJobs(Recorded):
    """All jobs of a node, and what of them waits for its disk."""

    unknown = False

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.syncs: Syncs[Job] = Syncs()
        self.journal = Journal(machine)
        self.journal.jobs = self.jobs


class Processes:
    """The processes of all jobs of a node, as the supervisor ends, stops and continues them."""

    due = NEVER

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def terminate(self, job: Job) -> None:
        self._machine.terminate(job.id)

    def kill(self, job: Job) -> None:
        self._machine.kill(job.id)

    def signal_group(self, job: Job, signum: int) -> None:
        """No job here asks for a warning."""

    def members(self, job: Job) -> dict[int, Any]:
        return {}

    def adopt(self, job: Job) -> None:
        """Adopt a job, frozen as it was."""

    def stop(self, job: Job) -> None:
        self._machine.freeze(job.id)

    def resume(self, job: Job) -> None:
        self._machine.thaw(job.id)

    def forget(self, job: Job) -> None:
        """No-op: nothing is kept of a job."""

    def tidy(self) -> None:
        """No-op: there is nothing to remove."""


class Launches(dict[str, dict[str, Any]]):
    """Launches that were not started yet."""

    def add(self, key: str, order: dict[str, Any]) -> None:
        self[key] = order

    def drop(self, key: str) -> None:
        self.pop(key, None)


class Supervisor(Process):
    """One life of a node's supervisor: its loop."""

    def __init__(self, engine: Engine, machine: Machine) -> None:
        super().__init__()
        self.engine, self.machine = engine, machine
        self.agent: Any = None
        self.journaled = JournaledJobs(machine)
        self.jobs = self.journaled.jobs
        self._launches = Launches()
        self._turn_due = False
        self._armed = NEVER
        self._batch = ReportBatch()
        self._busy_until = self._retry_at = 0.0
        self.syncs = self.journaled.syncs
        self._sync = 0
        """The number of the sync under way, or of the last one."""
        self._sync_covers = 0
        """Records of the journal that are durable with it."""
        processes, note, clock = Processes(machine), engine.note, machine.clock
        self.leases = Leases()
        self.freezer = Freezer(processes, self.journaled.journal, self._tell, note, clock)
        self.endings = Endings(processes, self.journaled.journal, self.freezer, lambda job: None, clock)
        decides = self.leases, self.endings, self._tell, self.freezer.forget, note, clock
        self.allocations = Allocations(self.journaled, self._launches, *decides)
        self._restore()

    def _restore(self) -> None:
        """Take over what an earlier supervisor left running."""
        machine, journaled = self.machine, self.journaled
        for record in machine.journal:
            journaled.take(record)
        before, journaled.boot = journaled.boot, f"boot{machine.boots}"
        if before != journaled.boot:
            journaled.jobs.update((key, Job(key, 0.0, *intent)) for key, intent in journaled.ahead.items())
        journaled.ahead.clear()
        self.leases.renewed = journaled.renewed
        for job in self.jobs.values():
            if job.over:
                continue
            job.adopted = True
            if before != journaled.boot:
                job.main_ended(-1)
                job.end({"cause": "rebooted", "text": "the node was restarted while it ran"})
                continue
            self.allocations.restore(job)
            if not job.pid and job.id in machine.noted:
                job.runs(PID)
            elif not job.pid:
                job.unsent = job.id not in machine.ordered
            if job.pid and machine.lives(job.id) and job.id not in machine.main_over:
                if job.cause:
                    self.endings.end(job, job.grace)
                self.freezer.restore(job)
                self.endings.arm(job)
            else:
                job.main_ended(-1)
        self._settle()
        machine.journal[:] = journaled.records()
        machine.synced = len(machine.journal)
        self.syncs.rewritten()
        self.syncs.take_released()
        self.endings.act()
        self._arm()

    # --- the agent ----------------------------------------------------------------------------------------------------

    def connect(self, agent: Any) -> list[dict[str, Any]]:
        """An agent comes and is told all there is."""
        self.agent = agent
        self._end_sync()
        self.allocations.drop_unstarted()
        known = self.allocations.known()
        for one in known:
            for frozen in one["frozen"] if one["outcome"] is None else ():
                self._tell(frozen)
        self._soon()
        return known

    def receive(self, agent: Any, number: int, op: dict[str, Any]) -> None:
        """Handle an order of the agent. The last orders of a killed agent may never have left it."""
        if agent.dead and number > agent.last_word:
            return
        if self._busy(self.receive, agent, number, op):
            return
        if op["op"] == "launch" and agent is not self.agent:
            return  # what an agent said is read before the next one is greeted, which drops what has no intent
        job = self.jobs.get(op.get("id", ""))
        match op["op"]:
            case "launch":
                self.allocations.launch(op)
            case "stop":
                self.allocations.stop(op["id"], op["cause"], op["text"], op["grace"], op["unless_started"])
            case "freeze" if job is not None:
                self.freezer.ask(job, op["why"], op["for"])
            case "thaw" if job is not None:
                self.endings.thaw(job)
            case "renew":
                self.allocations.renew(op["at"])
            case "forget":
                self.allocations.forget(op["ids"])
        self._soon()

    def _tell(self, message: dict[str, Any], patient: bool = False) -> None:
        if self.agent is not None:
            self.engine.later(0.0003, self.agent, self.agent.supervisor_message, self, message)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _busy(self, act: Callable[..., None], *args: Any) -> bool:
        """Whether its loop makes processes: then this happens afterwards."""
        if self.engine.now >= self._busy_until:
            return False
        self.engine.at(self._busy_until, self, act, *args)
        return True

    def _soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.engine.later(0.0002, self, self._turn)

    def _turn(self) -> None:
        if self._busy(self._turn):
            return
        self._turn_due = False
        now = self.machine.clock()
        self.allocations.end_unleased(now)
        self.endings.fire(now)
        self._settle()
        self._act(now)
        self.freezer.act()
        self.endings.act()
        self._arm()

    def _settle(self) -> None:
        """A job is over when nothing of it is alive. What its main process left behind is ended first."""
        for job in [*self.jobs.values()]:
            if job.state is not JobState.COMPLETING:
                continue
            if not self.machine.lives(job.id):
                self.allocations.is_over(job, job.ended(self.machine.clock()))
            elif job.kill_at == NEVER:
                self.endings.end(job, job.grace)
            else:
                self.endings.arm(job)

    def _arm(self) -> None:
        """Schedule the next turn when something is due."""
        freezes = (when for one in self.freezer.jobs.values() for when in one.until.values())
        due = [self.endings.due, self.leases.next, *freezes]
        if any(map(self._may_begin, self._launches)):
            due.append(self._retry_at)
        if not self.syncs.under_way:
            due.append(max(self._ends_due(self.machine.clock()), self._retry_at))
        if any(job.state is JobState.COMPLETING for job in self.jobs.values()):
            due.append(self.machine.clock() + LOOK)
        if (soonest := min(due)) < self._armed:
            self._armed = soonest
            seconds = max(0.0, self.machine.seconds(soonest - self.machine.clock())) + SLACK
            self.engine.later(seconds, self, self._wake, soonest)

    def _wake(self, when: float) -> None:
        if when == self._armed:
            self._armed = NEVER
            self._turn_due = True
            self._turn()

    def _ends_due(self, now: float) -> float:
        """Return when the ends that are not durable yet are to be made so."""
        youngest = max((job.began for job in self.jobs.values() if not job.over), default=-NEVER)
        ends = self.syncs.uncovered
        return now if ends and self.syncs.starts_wait else self._batch.due(bool(ends), youngest, now)

    def _may_begin(self, key: str) -> bool:
        return not self.syncs.under_way or self.allocations.is_durable(key)

    def _act(self, now: float) -> None:
        """One write for all intents of this turn and all ends, and one sync, unless one is under way; what needs
        another one waits for its end."""
        self._spawn(self.allocations.tell_durable().launches)
        may = [key for key in self._launches if self._may_begin(key)]
        due = not self.syncs.under_way and bool(self.syncs.uncovered) and now >= self._ends_due(now)
        if now < self._retry_at or not (may or due):
            return
        if self.machine.journal_bad:
            self._retry_at = now + 1.0
            for key in may:
                self._launches.drop(key)
                text = "the journal on the node cannot be written (is the disk full?)"
                self._tell({"op": "exited", "id": key, "outcome": never_ran("disk-failed", text)})
                self.allocations.launch_successor(key)
            return
        begun = []
        for key in may:
            job = self.jobs[key] = of_order(self._launches.pop(key), now)
            self.allocations.begin(job)
            begun.append(job)
        for job in self.syncs.take_unwritten():
            self.journaled.journal.append("exit", job.id, job.outcome)
        self._spawn([job for job in begun if job.intent_durable])  # what ended before them is synced a moment later
        fresh = [job for job in begun if not job.intent_durable]
        if fresh or due:
            self._batch.done()
            self.syncs.begin(fresh)
            self._sync, self._sync_covers = self._sync + 1, len(self.machine.journal)
            seconds = 0.0005 + self.machine.chance.random() * self.machine.sluggish
            self.engine.later(seconds, self, self._synced, self._sync)

    def _synced(self, number: int) -> None:
        if number != self._sync or not self.syncs.under_way or self._busy(self._synced, number):
            return
        self._end_sync()
        self._soon()

    def _end_sync(self) -> None:
        """The sync under way, if one is, has ended."""
        if self.syncs.under_way:
            self.machine.synced = max(self.machine.synced, self._sync_covers)
            self.syncs.succeeded()

    def _spawn(self, begun: list[Job]) -> None:
        started = []
        for job in begun:
            job.intent_durable = True
            if job.cause:  # it was to end before it was started
                self.allocations.is_over(job, never_ran(job.cause, job.text))
                continue
            self.machine.spawn(job.id)
            started.append(job)
        if started:
            self._busy_until = self.engine.now + 0.0001 + self.machine.sluggish / 4
            self.engine.at(self._busy_until, self, self._begun, started)

    def _begun(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.runs(PID)
            if chain_of(job.id, job.kept) == job.id:
                self._tell_start(job)
            else:
                self.machine.noted.add(job.id)
                self.engine.later(UNTOLD * (crc32(job.id.encode()) % 3), self, self._tell_start, job)
        self._arm()

    def _tell_start(self, job: Job) -> None:
        if job.over or job.state is JobState.COMPLETING:  # it is told with its end
            return
        self.journaled.journal.append(*job.begin())
        if not self.syncs.hold_start(job):  # an end is told before the start of what follows it
            self.allocations.tell(job)
        self.endings.arm(job)
        self._arm()

    def main_ended(self, key: str, code: int | None, signal: int) -> None:
        """Handle the end of a main process: it has exited with this code, or was killed by this signal."""
        if self._busy(self.main_ended, key, code, signal):
            return
        job = self.jobs.get(key)
        if job is not None and not job.over and job.state is not JobState.COMPLETING:
            job.main_ended(signal or (code or 0) << 8)
            self._soon()


class Launcher(Process, ABC):
    """The launcher part of every agent. `report` takes the supervisor's events. `last_word`: the number of the last
    order that left a dead agent."""

    def __init__(self, engine: Engine, machine: Machine) -> None:
        super().__init__()
        self.engine, self.machine = engine, machine
        self.last_word = 0
        self.lease_from = 0.0
        """When the newest heartbeat, or hello, was sent that the coordinator is known to have heard."""
        self.known_over: dict[str, None] = {}
        self._unanswered: dict[str, list[dict[str, Any]]] = {}
        self._ops = 0
        self._received_ops = 0

    @abstractmethod
    def report(self, event: Started | Exited) -> None:
        """The supervisor told this."""

    def supervisor(self) -> Supervisor:
        """The one that lives, or a new one."""
        machine = self.machine
        if machine.supervisor is None or machine.supervisor.dead:
            machine.supervisor = Supervisor(self.engine, machine)
            self.engine.note(f"a supervisor starts on {machine.name}")
        found: Supervisor = machine.supervisor
        return found

    def renew(self, at: float) -> None:
        """Renew all leases from this time, also those of launches on their way to a supervisor that are still
        leased."""
        now = self.machine.clock()
        for ops in self._unanswered.values():
            for op in ops:
                if op["op"] == "launch" and op["lease_from"] + op["lease"] > now:
                    op["lease_from"] = max(op["lease_from"], at)
        self._send({"op": "renew", "at": at})

    def ask(self, op: dict[str, Any]) -> None:
        """Send an order, and repeat it until it is answered."""
        if "id" in op:
            self._unanswered.setdefault(op["id"], []).append(op)
        self._send(op)

    def _send(self, op: dict[str, Any]) -> None:
        self._ops += 1
        supervisor = self.machine.supervisor
        if not supervisor.dead and supervisor.agent is self:
            self.engine.later(0.0003, supervisor, self._receive, supervisor, self._ops, op)

    def _receive(self, supervisor: Supervisor, number: int, op: dict[str, Any]) -> None:
        self._received_ops = number
        supervisor.receive(self, number, op)

    def supervisor_gone(self) -> None:
        """The supervisor was killed: another one takes over; what is not answered is asked again."""
        for known in self.supervisor().connect(self):
            key, outcome = known["id"], known["outcome"]
            if outcome is not None and key not in self.known_over:
                self._exited(key, outcome)
            elif outcome is None and key in self._unanswered:
                self.report(Started(allocation=key))
        if self.lease_from:
            self._send({"op": "renew", "at": self.lease_from})
        for ops in [*self._unanswered.values()]:
            for op in ops:
                self._send(op)

    def supervisor_message(self, supervisor: Supervisor, message: dict[str, Any]) -> None:
        """The supervisor says that this runs, is over, is frozen, or goes on."""
        if supervisor is not self.machine.supervisor or supervisor.agent is not self:
            return
        key = message["id"]
        match message["op"]:
            case "exited":
                self._exited(key, message["outcome"])
            case "started":
                asked = self._unanswered.pop(key, [])
                stops = [op for op in asked if op["op"] == "stop" and not op["unless_started"]]
                if stops:
                    self._unanswered[key] = stops
                self.report(Started(allocation=key))
            case "frozen" if message["cause"] == OWNER:
                why, lasted, in_all = message["why"], message["lasted"], message["in_all"]
                self.took(Suspended(allocation=key, why=why, lasted=lasted, in_all=in_all))

    @abstractmethod
    def took(self, told: Suspended) -> None:
        """Handle a confirmation."""

    def freeze(self, allocation: str, why: str, seconds: float) -> None:
        """Freeze an allocation for this long, unless it is ordered again. Not awaited: it is repeated with the next
        sample."""
        self._send({"op": "freeze", "id": allocation, "why": why, "for": seconds})

    def thaw(self, allocation: str) -> None:
        """Let an allocation continue."""
        self._send({"op": "thaw", "id": allocation})

    def _exited(self, key: str, outcome: dict[str, Any]) -> None:
        self._unanswered.pop(key, None)
        self.known_over[key] = None
        self.report(Exited(allocation=key, outcome=msgspec.convert(outcome, Outcome)))
