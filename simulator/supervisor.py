"""A simulated supervisor (intents are on disk before their process is made, ends before they are reported, and
both are known to the next one), and the agent's end of the connection to it. Stands for agent/supervisor/ and
agent/launch/launcher.py.
"""

from collections.abc import Callable
from typing import Any

from distributed_grid.protocol.jobs import Cause, Outcome
from distributed_grid.protocol.messages import Exited, Started, Suspended
from distributed_grid.simulator.engine import Engine, Process
from distributed_grid.simulator.machine import Machine

NEVER = float("inf")
LEASE_GRACE = 1.0
FROZEN_STAYS = 30.0


class Job:
    """An allocation from its intent to its end. `status` is (code, signal) of its main process, (None, -1) if nobody
    knows it, None while it lives. `leaseless`: its lease is over."""

    def __init__(self, id: str, limit: float = 0.0, grace: float = 5.0, lease: float = 0.0, since: float = 0.0) -> None:
        self.id, self.limit, self.grace, self.lease, self.since = id, limit, grace, lease, since
        self.leaseless = False
        self.outcome: Outcome | None = None
        self.status: tuple[int | None, int] | None = None
        self.cause = ""
        self.text = ""
        self.kill_at = NEVER
        self.spawned = False
        self.frozen_at: float | None = None
        self.frozen_for = 0.0
        self.frozen_why = ""
        self.frozen_until = 0.0
        self.limit_met = False
        """Its time limit came while it was frozen."""
        self.limit_counts = 0.0
        """The frozen seconds by which its time limit was put off."""


class Supervisor(Process):
    """One life of a node's supervisor."""

    def __init__(self, engine: Engine, machine: Machine) -> None:
        super().__init__()
        self.engine, self.machine = engine, machine
        self.agent: Any = None
        self.jobs: dict[str, Job] = {}
        self.forgotten: dict[str, None] = {}
        self._launches: dict[str, dict[str, Any]] = {}
        self._over: list[Job] = []
        self._due = False
        self._syncing_until = 0.0
        self.renewed = 0.0
        self._noted = 0.0
        self._restore()

    def _restore(self) -> None:
        boot = ""
        for kind, key, *rest in self.machine.journal:
            if kind == "boot":
                boot = key
            elif kind == "intent":
                self.jobs[key] = Job(key, *rest)
            elif kind == "start":
                self.jobs[key].spawned = True
            elif kind == "stop":
                self.jobs[key].cause, self.jobs[key].text = rest
            elif kind == "freeze":
                self.jobs[key].frozen_at, self.jobs[key].frozen_why = rest
            elif kind == "thaw":
                self.jobs[key].frozen_at, self.jobs[key].frozen_for = None, rest[0]
            elif kind == "renewed":
                self.renewed = key
            elif kind == "exit":
                self.jobs.setdefault(key, Job(key)).outcome = rest[0]
            elif kind == "forget":
                self.jobs.pop(key, None)
                self.forgotten[key] = None
        now = f"boot{self.machine.boots}"
        for job in [*self.jobs.values()]:
            if job.outcome is not None:
                continue
            if boot and boot != now:
                job.outcome = Outcome(Cause.REBOOTED, text="the node was restarted while it ran")
            elif job.spawned and self.machine.lives(job.id) and job.id not in self.machine.main_over:
                job.limit_counts = job.frozen_for
                if job.cause:
                    self._end(job, job.grace)
                elif job.frozen_at is not None:
                    self._stay_frozen(job, FROZEN_STAYS)
                self._arm(job)
                self._lease(job)
            else:
                self.main_ended(job.id, (None, -1))
        self._append("boot", now)
        for job in self.jobs.values():
            if job.outcome is not None:
                self._append("exit", job.id, job.outcome)
        self.machine.synced = len(self.machine.journal)

    def _append(self, *record: Any) -> None:
        self.machine.journal.append(record)

    # --- the agent ----------------------------------------------------------------------------------------------------

    def connect(self, agent: Any) -> list[tuple[Job, Outcome | None]]:
        """An agent comes and is told all there is. What is over and not on disk yet is told as running still."""
        self.agent = agent
        over = [job.id for job in self._over]
        for job in self.jobs.values():
            if job.outcome is None and job.frozen_at is not None:
                self._tell_frozen(job, 0.0)
        known = [job for job in self.jobs.values() if job.id not in over or (job.outcome and job.outcome.started)]
        return [(job, None if job.id in over else job.outcome) for job in known]

    def hear(self, agent: Any, number: int, op: dict[str, Any]) -> None:
        """What the agent asks for. Of what one said that was killed a little may never have left it."""
        if agent.dead and number > agent.last_word:
            return
        if self._syncing(self.hear, agent, number, op):
            return
        match op["op"]:
            case "launch":
                self._launch(op)
            case "stop":
                self._stop(op)
            case "freeze":
                self._freeze(op)
            case "thaw":
                if op["id"] in self.jobs:
                    self._thaw(self.jobs[op["id"]])
            case "renew":
                self._renew(op["at"])
            case "forget":
                for key in op["ids"]:
                    if key in self.jobs and self.jobs[key].outcome is not None and self.jobs[key] not in self._over:
                        del self.jobs[key]
                        self.forgotten[key] = None
                        self._append("forget", key)
        self._soon()

    def _launch(self, op: dict[str, Any]) -> None:
        key = op["id"]
        if key in self.jobs:
            self._tell(self.jobs[key])
        elif key in self.forgotten:
            self._was_over(key, Cause.SPAWN_FAILED)
        elif op["lease"] and op["lease_from"] + op["lease"] <= self.machine.clock():
            job = self.jobs[key] = Job(key)
            job.outcome = Outcome(Cause.LEASE_EXPIRED, text="its lease was over before it came", started=False)
            self._over.append(job)
        else:
            self._launches.setdefault(key, op)

    def _stop(self, op: dict[str, Any]) -> None:
        key = op["id"]
        self._launches.pop(key, None)
        job = self.jobs.get(key)
        if job is None:
            if key in self.forgotten:
                self._was_over(key, Cause(op["cause"]))
            else:
                job = self.jobs[key] = Job(key)
                job.outcome = Outcome(Cause(op["cause"]), text=op["text"], started=False)
                self._over.append(job)
        elif job.outcome is not None:
            self._tell(job)
        else:
            self._ask_end(job, op["cause"], op["text"], op["grace"])

    def _was_over(self, key: str, cause: Cause) -> None:
        self._say(key, Outcome(cause, text="it was over before; nothing is started twice", started=False))

    def _tell(self, job: Job) -> None:
        if job not in self._over:
            self._say(job.id, job.outcome)

    def _say(self, key: str, outcome: Outcome | None) -> None:
        if self.agent is not None:
            self.engine.later(0.0003, self.agent, self.agent.told, self, key, outcome)

    # --- a turn -------------------------------------------------------------------------------------------------------

    def _syncing(self, act: Callable[..., None], *args: Any) -> bool:
        """Whether its one thread waits for the disk: then this happens afterwards."""
        if self.engine.now >= self._syncing_until:
            return False
        self.engine.at(self._syncing_until, self, act, *args)
        return True

    def _soon(self, seconds: float = 0.0002) -> None:
        if not self._due and (self._launches or self._over):
            self._due = True
            self.engine.later(seconds, self, self._act)

    def _act(self) -> None:
        """One write and one sync for all intents and ends of this turn; what comes meanwhile waits."""
        if self._syncing(self._act):
            return
        self._due = False
        fresh = [*self._launches.values()]
        self._launches.clear()
        if self.machine.journal_bad:
            for op in fresh:
                self._say(op["id"], Outcome(Cause.SPAWN_FAILED, text="the journal cannot be written", started=False))
            self._soon(1.0)
            return
        begun = []
        for op in fresh:
            job = self.jobs[op["id"]] = Job(op["id"], op["limit"], op["grace"], op["lease"], op["lease_from"])
            self._append("intent", job.id, job.limit, job.grace, job.lease, job.since)
            begun.append(job)
        for job in self._over:
            self._append("exit", job.id, job.outcome)
        self._syncing_until = self.engine.now + 0.0005 + self.machine.chance.random() * self.machine.sluggish
        self.engine.at(self._syncing_until, self, self._synced, len(self.machine.journal), begun, [*self._over])

    def _synced(self, length: int, begun: list[Job], told: list[Job]) -> None:
        self.machine.synced = max(self.machine.synced, length)
        self._over = [job for job in self._over if job not in told]
        for job in told:
            self._tell(job)
        for job in begun:
            self.machine.spawn(job.id)
        if begun:
            self._syncing_until = self.engine.now + 0.0001 + self.machine.sluggish / 4
            self.engine.at(self._syncing_until, self, self._begun, begun)
        self._soon()

    def _begun(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._append("start", job.id)
            job.spawned = True
            self._tell(job)
            self._arm(job)
            self._lease(job)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _arm(self, job: Job) -> None:
        if job.limit:
            self.engine.later(self.machine.seconds(job.limit), self, self._limit, job)

    def _limit(self, job: Job) -> None:
        if self._syncing(self._limit, job):
            return
        if job.frozen_at is not None:
            job.limit_met = True
            return
        if job.frozen_for > job.limit_counts:
            put_off, job.limit_counts = job.frozen_for - job.limit_counts, job.frozen_for
            self.engine.later(self.machine.seconds(put_off), self, self._limit, job)
            return
        if job.outcome is None and job.status is None and not job.cause:
            self.machine.had_its_time(job.id, job.limit)
            self._ask_end(job, Cause.TIME_LIMIT, "ran longer than its time limit", job.grace)

    def _lease(self, job: Job) -> None:
        """Have its lease looked at when it ends, unless it is renewed until then."""
        if job.lease:
            due = self.machine.seconds(self._deadline(job) - self.machine.clock())
            self.engine.later(max(0.0, due), self, self._lease_due, job)

    def _deadline(self, job: Job) -> float:
        return max(job.since, self.renewed) + job.lease

    def _lease_due(self, job: Job) -> None:
        if self._syncing(self._lease_due, job):
            return
        if job.outcome is None and not job.leaseless:
            if self.machine.clock() < self._deadline(job) - 1e-6:
                self._lease(job)
                return
            self.engine.note(f"the lease of {job.id} on {self.machine.name} is over")
            job.leaseless = True
            self._ask_end(job, Cause.LEASE_EXPIRED, "its lease was not renewed", min(job.grace, LEASE_GRACE))

    def _renew(self, at: float) -> None:
        now = self.machine.clock()
        held = [job for job in self.jobs.values() if job.lease and job.outcome is None and not job.leaseless]
        for job in held:
            if self._deadline(job) <= now:
                self._lease_due(job)  # what is over by now is not revived
        self.renewed = max(self.renewed, min(at, now))
        if self.renewed - self._noted >= min((job.lease for job in held), default=NEVER) / 4:
            self._noted = self.renewed
            self._append("renewed", self.renewed)

    def _ask_end(self, job: Job, cause: str, text: str, grace: float) -> None:
        if job.status is None and not job.cause:
            job.cause, job.text = cause, text
            self._append("stop", job.id, cause, text)
        self._end(job, grace if grace >= 0 else job.grace)

    # --- the owner ----------------------------------------------------------------------------------------------------

    def _freeze(self, op: dict[str, Any]) -> None:
        job = self.jobs.get(op["id"])
        if job is None or not job.spawned or job.outcome is not None or job.cause or job.status is not None:
            return
        if job.frozen_at is None:
            job.frozen_at, job.frozen_why = self.machine.clock(), op["why"]
            self._append("freeze", job.id, job.frozen_at, job.frozen_why)
            self.machine.freeze(job.id)
            self._tell_frozen(job, 0.0)
        self._stay_frozen(job, op["for"])

    def _stay_frozen(self, job: Job, seconds: float) -> None:
        job.frozen_until = self.engine.now + self.machine.seconds(seconds)
        self.engine.at(job.frozen_until, self, self._frozen_long, job)

    def _frozen_long(self, job: Job) -> None:
        if self.engine.now >= job.frozen_until - 1e-6:
            self._thaw(job)

    def _thaw(self, job: Job) -> None:
        if job.frozen_at is None:
            return
        lasted = self.machine.clock() - job.frozen_at
        job.frozen_for, job.frozen_at = job.frozen_for + lasted, None
        self.machine.thaw(job.id)
        self._append("thaw", job.id, job.frozen_for)
        self._tell_frozen(job, lasted)
        if job.limit_met:
            job.limit_met = False
            self._limit(job)

    def _tell_frozen(self, job: Job, lasted: float) -> None:
        why = ""
        if job.frozen_at is not None:
            why, lasted = job.frozen_why, self.machine.clock() - job.frozen_at
        told = Suspended(allocation=job.id, why=why, lasted=lasted, in_all=job.frozen_for + (lasted if why else 0.0))
        if self.agent is not None:
            self.engine.later(0.0003, self.agent, self.agent.suspended, self, told)

    def _end(self, job: Job, grace: float) -> None:
        self._thaw(job)
        if grace > 0 and job.kill_at == NEVER:
            self.machine.terminate(job.id)
        kill_at = self.engine.now + grace
        if kill_at < job.kill_at:
            job.kill_at = kill_at
            self.engine.at(kill_at, self, self._kill, job)

    def _kill(self, job: Job) -> None:
        if self._syncing(self._kill, job):
            return
        if job.outcome is None:
            self.machine.kill(job.id)
            self._look(job)

    def main_ended(self, key: str, status: tuple[int | None, int]) -> None:
        """Its main process is gone, with this status."""
        if self._syncing(self.main_ended, key, status):
            return
        job = self.jobs.get(key)
        if job is not None and job.outcome is None and job.status is None:
            job.status = status
            self._look(job)

    def _look(self, job: Job) -> None:
        """It is over when nothing of it is alive; what its main process left behind is ended first."""
        if job.status is None or job.outcome is not None:
            return
        if self.machine.lives(job.id):
            if job.kill_at == NEVER:
                self._end(job, job.grace)
            self.engine.later(0.2, self, self._look, job)
            return
        code, signal = job.status
        if signal < 0:
            cause = Cause(job.cause or "supervisor-lost")
            job.outcome = Outcome(cause, text=job.text or "how it ended is not known")
        elif job.cause:
            job.outcome = Outcome(Cause(job.cause), code=code or 0, signal=signal, text=job.text)
        elif signal:
            job.outcome = Outcome(Cause.SIGNALLED, signal=signal)
        else:
            job.outcome = Outcome(Cause.EXITED, code=code or 0)
        self._over.append(job)
        self._soon()


class Launcher(Process):
    """What every agent is as well. `report` takes what the supervisor tells. `last_word`: how much of what it said left
    it, once it is dead."""

    def __init__(self, engine: Engine, machine: Machine) -> None:
        super().__init__()
        self.engine, self.machine = engine, machine
        self.last_word = 0
        self.lease_from = 0.0
        """When the newest heartbeat, or hello, was sent that the coordinator is known to have heard."""
        self.known_over: dict[str, None] = {}
        self._unanswered: dict[str, list[dict[str, Any]]] = {}
        self._ops = 0
        self._heard_ops = 0

    def report(self, event: Started | Exited) -> None:
        """The supervisor told this."""
        raise NotImplementedError

    def supervisor(self) -> Supervisor:
        """The one that lives, or a new one."""
        machine = self.machine
        if machine.supervisor is None or machine.supervisor.dead:
            machine.supervisor = Supervisor(self.engine, machine)
            self.engine.note(f"a supervisor starts on {machine.name}")
        found: Supervisor = machine.supervisor
        return found

    def renew(self, at: float) -> None:
        """All leases run anew from then, also of what is on its way to a supervisor and still leased."""
        now = self.machine.clock()
        for ops in self._unanswered.values():
            for op in ops:
                if op["op"] == "launch" and op["lease_from"] + op["lease"] > now:
                    op["lease_from"] = max(op["lease_from"], at)
        self._send({"op": "renew", "at": at})

    def ask(self, op: dict[str, Any]) -> None:
        """Ask for this, and again until it is answered."""
        if "id" in op:
            self._unanswered.setdefault(op["id"], []).append(op)
        self._send(op)

    def _send(self, op: dict[str, Any]) -> None:
        self._ops += 1
        supervisor = self.machine.supervisor
        if not supervisor.dead and supervisor.agent is self:
            self.engine.later(0.0003, supervisor, self._hears, supervisor, self._ops, op)

    def _hears(self, supervisor: Supervisor, number: int, op: dict[str, Any]) -> None:
        self._heard_ops = number
        supervisor.hear(self, number, op)

    def supervisor_gone(self) -> None:
        """The supervisor was killed: another one takes over; what is not answered is asked again."""
        for job, outcome in self.supervisor().connect(self):
            if outcome is not None and job.id not in self.known_over:
                self._exited(job.id, outcome)
            elif outcome is None and job.id in self._unanswered:
                self.report(Started(allocation=job.id))
        if self.lease_from:
            self._send({"op": "renew", "at": self.lease_from})
        for ops in [*self._unanswered.values()]:
            for op in ops:
                self._send(op)

    def told(self, supervisor: Supervisor, key: str, outcome: Outcome | None) -> None:
        """The supervisor says that this runs, or is over."""
        if supervisor is not self.machine.supervisor or supervisor.agent is not self:
            return
        if outcome is not None:
            self._exited(key, outcome)
            return
        stops = [op for op in self._unanswered.pop(key, []) if op["op"] == "stop"]
        if stops:
            self._unanswered[key] = stops
        self.report(Started(allocation=key))

    def suspended(self, supervisor: Supervisor, told: Suspended) -> None:
        """The supervisor says that this is frozen, or goes on."""
        if supervisor is self.machine.supervisor and supervisor.agent is self:
            self.took(told)

    def took(self, told: Suspended) -> None:
        """That is so."""
        raise NotImplementedError

    def freeze(self, allocation: str, why: str, seconds: float) -> None:
        """Have it frozen for so long, unless asked again. Not waited for: it is said again with the next sample."""
        self._send({"op": "freeze", "id": allocation, "why": why, "for": seconds})

    def thaw(self, allocation: str) -> None:
        """Have it go on."""
        self._send({"op": "thaw", "id": allocation})

    def _exited(self, key: str, outcome: Outcome) -> None:
        self._unanswered.pop(key, None)
        self.known_over[key] = None
        self.report(Exited(allocation=key, outcome=outcome))
