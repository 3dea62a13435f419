"""One job in the supervisor: its state and transitions (`MOVES`), its journal records, its outcome (`Job`, `Recorded`);
how long each job may run without contact to the coordinator (`Leases`); and the constants that the agent shares with
it.

No process, file or clock is accessed here. Times are seconds since boot, sizes bytes. Stdlib only.
"""

from collections.abc import Iterator
from enum import Enum
from os import WCOREDUMP, waitstatus_to_exitcode
from signal import SIGRTMIN, Signals
from typing import Any, NamedTuple

VERSION = 4
"""Version of the protocol with the agent and of the journal. Another version needs another supervisor."""
OUTPUT_LIMIT = 256 << 20
"""Maximum bytes of one output stream on disk, if the agent says nothing else."""
SLOT_LOST = "its slot on the node was lost before it began, with what had been unpacked there"
"""Why a launch is taken back: its directory was made in the slot of a spawner that has died, or of an earlier
supervisor, and elsewhere it would begin without its files."""
UNSENT = "the node's supervisor was killed before it started this"
"""Why a launch is taken back whose intent is all that there is of it."""
UNBEGUN = "its spawner on the node was killed before it started this"
"""Why a launch is taken back that was ordered, and of which no process can have been made."""
NEVER = float("inf")
MOST_TEXT = 2000
"""Characters of a reason, which the node's agent and the coordinator take in messages of bounded size."""
OWNER, READER = "owner", "reader"
"""Causes of a freeze: the node's owner is active; the reader of the output has not read what is kept for it. Each is
ended by itself, and a job continues when there is none left. Time frozen for the owner extends the time limit; time
frozen for the reader alone does not, as at a pipe."""
Record = list[Any]
"""A record of the journal: its kind, the id concerned, and its data."""


class JobState(Enum):
    """`INTENDED`: its intent is in the journal, and no process of it is known. `RUNNING`: its main process runs.
    `FROZEN`: all of it is stopped, for one or more causes. `STOPPING`: it is to end, and its main process is alive.
    `COMPLETING`: its main process has ended, and leftovers are being killed. `ENDED`: nothing of it is alive; reported
    once durable, and kept until acknowledged."""

    INTENDED = "intended"
    RUNNING = "running"
    FROZEN = "frozen"
    STOPPING = "stopping"
    COMPLETING = "completing"
    ENDED = "ended"


# The law. What is refused or cannot be started ends without ever having run.
MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.INTENDED: frozenset({JobState.RUNNING, JobState.STOPPING, JobState.COMPLETING, JobState.ENDED}),
    JobState.RUNNING: frozenset({JobState.FROZEN, JobState.STOPPING, JobState.COMPLETING}),
    JobState.FROZEN: frozenset({JobState.RUNNING, JobState.STOPPING, JobState.COMPLETING}),
    JobState.STOPPING: frozenset({JobState.COMPLETING, JobState.ENDED}),
    JobState.COMPLETING: frozenset({JobState.ENDED}),
    JobState.ENDED: frozenset(),
}


class Place(NamedTuple):
    """Where a job's processes are, as the journal keeps it: the slot's name, walls and user, whether it alone has that
    user, its spawner's pid and start time (clock ticks since boot), and the session in which jobs begin."""

    name: str
    walls: str
    uid: int
    gid: int
    own: bool
    pid: int
    start: int
    session: int


class Job:
    """An allocation from its intent to its end. `lease` and `since` are what Leases is told of it.

    `limits` is what it may take, as the agent said: `memory` bytes, `pids` processes and threads at once, `cpu`
    thousandths of a core, and `signal` is sent to it `before` seconds ahead of its time limit; a missing one is not
    limited. `gently`: it is a raylet; `attached`: its submitter reads its output as it runs. `confined` names the
    controllers whose cgroup it is in. `nice` is its niceness: that of its start, and, if it is `eager`, `nice_later`
    once it is told to give way, or `nice_after` seconds after its start. `idle`: it runs on slack.

    `state` is changed by `move` alone. `pid` names its main process, 0 until it is spawned; `spawned` is the time
    before and after that in clock ticks, and `start` the process's own start time, known only where it was looked up.
    `status` is the wait status of that process, None while it lives, -1 if unknown, and `recorded` whether the journal
    has it, which is needed only if its spawner has no note of it any more. `cause` and `text` say why it is ended,
    empty if it is not. `adopted`: it was spawned by a supervisor that is dead, and `pidfd` watches its main process,
    which is no child of this one. `unsent`: that supervisor never ordered a spawner to start it, or the spawner of this
    one was killed before it did.

    `kept` is the data of its launch that the supervisor keeps for the next agent; only its `chain` is used here, by
    Allocations.

    `intent_durable`: its intent is on disk; until then it does not start.

    `place` is where its processes are. `left`: its spawner says that something of it lives; `orphaned`: its spawner is
    dead, and what lives of it became a child of the supervisor; `swept`: its spawner was told to end all of it;
    `slot_ended`: all processes of its slot are being ended, its spawner too, which may take a moment; `grouped`: all
    was ended that its control group named. `followed`: it is over, its successor is launched in its place, and (2)
    others wait behind that.

    `freezes` has since when it is frozen and why, by cause; `frozen_for` is how many seconds it was frozen for the
    owner before that.

    `kill_at` is when it gets (the next) SIGKILL, `killed_at` when it got the first one (0: it did not), `unended` why
    it lives all the same, once it should not, `wake` when the loop looks at it again, `to_check` that it is due.
    """

    def __init__(
        self,
        id: str,
        began: float = 0.0,
        limit: float = 0.0,
        grace: float = 5.0,
        cores: list[int] | tuple[int, ...] = (),
        lease: float = 0.0,
        since: float = 0.0,
        limits: dict[str, Any] | None = None,
        kept: dict[str, Any] | None = None,
        outcome: dict[str, Any] | None = None,
    ) -> None:
        self.id = id
        self.state = JobState.INTENDED if outcome is None else JobState.ENDED
        self.began = began
        self.limit = limit
        self.grace = grace
        self.cores = frozenset(cores)
        self.lease = lease
        self.since = since
        self.limits = limits or {}
        self.kept = kept
        self.memory = int(self.limits.get("memory", 0))
        self.pids = int(self.limits.get("pids", 0))
        self.cpu_limit = int(self.limits.get("cpu", 0))
        self.nice = int(self.limits.get("nice", 0))
        self.idle = bool(self.limits.get("idle", False))
        self.nice_later = int(self.limits.get("nice_later", 0))
        self.gently = bool(self.limits.get("gently", False))
        self.attached = bool(self.limits.get("attached", False))
        self.confined: frozenset[str] = frozenset()
        self.warn_signal = int(self.limits.get("signal", 0))
        self.warned = False
        self.outcome = outcome
        self.pid = 0
        self.start = 0
        self.spawned = (0, 0)
        self.pidfd = -1
        self.adopted = False
        self.unsent = False
        self.place: Place | None = None
        self.followed = 0
        self.intent_durable = True
        self.orphaned = self.left = self.swept = self.slot_ended = self.grouped = False
        self.status: int | None = None
        self.recorded = False
        self.cause = ""
        self.text = ""
        self.freezes: dict[str, tuple[float, str]] = {}
        self.frozen_for = 0.0
        self.kill_at = NEVER
        self.killed_at = 0.0
        self.unended = ""
        self.pause = 0.0
        self.wake = NEVER
        self.to_check = True
        self.cpu = 0.0
        self.peak = 0

    # --- what happens to it -------------------------------------------------------------------------------------------

    def move(self, to: JobState) -> None:
        """The only way to change the state."""
        if to not in MOVES[self.state]:
            raise AssertionError(f"{self.id} cannot go from {self.state.value} to {to.value}")
        self.state = to

    @property
    def over(self) -> bool:
        """Whether nothing of it is alive."""
        return self.state is JobState.ENDED

    @property
    def unasked(self) -> bool:
        """Whether its main process may be alive, and it was not told to end."""
        return self.state in (JobState.INTENDED, JobState.RUNNING, JobState.FROZEN)

    def runs(self, pid: int) -> None:
        """Set its main process, which is known now. A job that is to end continues ending."""
        self.pid = pid
        if self.state is JobState.INTENDED:
            self.move(JobState.RUNNING)

    @property
    def eager(self) -> bool:
        """Whether it has a weight that it is to give up once it is told to."""
        return self.nice < self.nice_later

    @property
    def reniced(self) -> bool:
        """Whether it has given up the weight of its start."""
        return bool(self.nice_later) and not self.eager

    def renice(self) -> None:
        """Set its niceness to the later one."""
        self.nice = self.nice_later

    def freeze(self, now: float, why: str, cause: str = OWNER) -> None:
        """Mark all of it as frozen, for this cause, possibly beside others."""
        if self.state is not JobState.FROZEN:
            self.move(JobState.FROZEN)
        self.freezes[cause] = now, why

    def thaw(self, frozen_for: float, cause: str = OWNER) -> None:
        """End a cause for which it was frozen; it continues if there is no other, also to receive SIGTERM.
        `frozen_for`: seconds frozen for the owner in total."""
        self.frozen_for = frozen_for
        self.freezes.pop(cause, None)
        if self.state is JobState.FROZEN and not self.freezes:
            self.move(JobState.RUNNING)

    def frozen_since(self, cause: str) -> float:
        """Since when it is frozen for this cause; 0: it is not."""
        return self.freezes[cause][0] if cause in self.freezes else 0.0

    def stop(self, cause: str, text: str) -> None:
        """Mark it as told to end."""
        self.move(JobState.STOPPING)
        self.cause, self.text = cause, text[:MOST_TEXT]

    def main_ended(self, status: int) -> None:
        """Record the wait status of its main process, which has ended."""
        self.move(JobState.COMPLETING)
        self.status = status

    def end(self, outcome: dict[str, Any]) -> None:
        """Record its end: nothing of it is alive, or ever was."""
        self.move(JobState.ENDED)
        self.outcome = outcome

    # --- the journal --------------------------------------------------------------------------------------------------

    def records(self) -> Iterator[Record]:
        """Yield its present state as journal records."""
        if self.outcome is not None:
            yield ["exit", self.id, self.outcome, self.kept, self.place]
            return
        yield self.intent()
        if self.pid:
            yield self.begin()
        if self.cause:
            yield ["stop", self.id, self.cause, self.text]
        if self.warned:
            yield ["warned", self.id]
        if self.reniced:
            yield ["renice", self.id]
        if self.frozen_for:
            yield ["thaw", self.id, self.frozen_for]
        for cause, (since, why) in self.freezes.items():
            yield ["freeze", self.id, since, why, cause]
        if self.recorded:
            yield self.completing()

    @property
    def unrecorded(self) -> bool:
        """Whether the status of its main process is to be journaled: something is left, its spawner's note is gone or
        may never have had it, and the journal does not have it."""
        nowhere = (self.orphaned or self.adopted) and not self.recorded
        return nowhere and self.state is JobState.COMPLETING and self.status != -1

    def completing(self) -> Record:
        self.recorded = True
        return ["status", self.id, self.status, round(self.cpu, 6), self.peak]

    def begin(self) -> Record:
        return ["start", self.id, self.pid, *self.spawned]

    def intent(self) -> Record:
        return ["intent", self.id, self.place, self.began, *self._asked()]

    def go(self) -> Record:
        return ["go", self.id, self.place, self.began]

    def _asked(self) -> Record:
        return [self.limit, self.grace, sorted(self.cores), self.lease, self.since, self.limits, self.kept]

    def take(self, kind: str, rest: Record) -> None:
        """Apply its next journal record. Records that do not follow, as lines of a damaged journal are missing, are
        ignored."""
        if kind == "start" and self.state in (JobState.INTENDED, JobState.STOPPING):
            self.spawned = (rest[1], rest[2])
            self.runs(rest[0])
        elif kind == "stop" and self.unasked:
            self.stop(*rest)
        elif kind == "limit":
            self.limit = rest[0]
        elif kind == "warned":
            self.warned = True
        elif kind == "renice":
            self.renice()
        elif kind == "freeze" and self.state in (JobState.RUNNING, JobState.FROZEN):
            self.freeze(*rest)
        elif kind == "thaw":
            self.thaw(*rest)
        elif kind == "status" and self.state not in (JobState.COMPLETING, JobState.ENDED):
            self.main_ended(rest[0])
            self.recorded, self.cpu, self.peak = True, *rest[1:]

    # --- when ---------------------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When its time limit ends; NEVER without one, and once it is ending. Time frozen for the owner does not
        count."""
        if not self.limit or not self.unasked or OWNER in self.freezes:
            return NEVER
        return self.began + self.limit + self.frozen_for

    def warn_at(self) -> float:
        """When to send the signal before its time limit; NEVER if there is none, or it was sent."""
        if not self.warn_signal or self.warned:
            return NEVER
        return self.deadline() - float(self.limits["before"])

    def renice_at(self) -> float:
        """When it takes its later niceness without being told to; NEVER if it has, or is ending."""
        if not self.eager or not self.unasked:
            return NEVER
        return self.began + float(self.limits["nice_after"])

    # --- its end ------------------------------------------------------------------------------------------------------

    def used(self, usage: Any) -> None:
        """Add the kernel's resource usage of a process of this job and of its reaped children."""
        self.cpu += usage.ru_utime + usage.ru_stime
        self.peak = max(self.peak, usage.ru_maxrss << 10)

    def ended(self, now: float) -> dict[str, Any]:
        """Return its outcome, once nothing of it is alive."""
        said: dict[str, Any] = {"seconds": round(now - self.began, 6) if self.began else 0.0, "peak_memory": self.peak}
        said["cpu_seconds"] = round(self.cpu, 6)
        since = self.frozen_since(OWNER)
        if frozen := self.frozen_for + (now - since if since else 0.0):
            said["suspended"] = round(frozen, 6)
        if self.status is None or self.status < 0:
            if self.unsent:
                return never_ran(self.cause or "withdrawn", self.text or (UNBEGUN if self.orphaned else UNSENT))
            said["cause"] = self.cause or "supervisor-lost"
            lost = "its spawner was" if self.orphaned else "the node's supervisor was"
            said["text"] = self.text or f"{lost} killed; how the job ended is not known"
            return said
        code = waitstatus_to_exitcode(self.status)
        if code >= 0:
            said |= {"cause": "exited", "code": code, "text": f"exited with code {code}" if code else ""}
        else:
            core = ", core dumped" if WCOREDUMP(self.status) else ""
            text = f"killed by signal {-code} ({signal_name(-code)}){core}"
            said |= {"cause": "signalled", "signal": -code, "text": text}
        if self.cause:
            how = f"; {said['text']}" if said["text"] else ""
            said |= {"cause": self.cause, "text": (self.text or self.cause) + how}
        return said


def of_order(order: dict[str, Any], began: float = 0.0) -> Job:
    """The job of a launch order of the agent."""
    asked = order["limit"], order["grace"], order.get("cores", ()), order["lease"], order["lease_from"]
    return Job(order["id"], began, *asked, order.get("limits"), order.get("kept"))


def ahead(order: dict[str, Any]) -> Record:
    """The intent of a launch order that waits for the end of another one; the job's `go` follows when it is started."""
    cores = sorted(set(order.get("cores", ())))
    limits, kept = order.get("limits") or {}, order.get("kept")
    return [
        "ahead", order["id"], order["limit"], order["grace"], cores, order["lease"], order["lease_from"], limits, kept,
    ]  # fmt: skip


def never_ran(cause: str, text: str) -> dict[str, Any]:
    """The outcome of an allocation that never had a process. The reason may name what its submitter wrote, of any
    length."""
    return {"cause": cause, "text": text[:MOST_TEXT], "started": False}


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; real-time signals by their distance from the first."""
    try:
        return Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - SIGRTMIN}" if number > SIGRTMIN else f"signal {number}"


# --- what a journal says ----------------------------------------------------------------------------------------------


class Loss:
    """The journal was damaged: what ran then is unknown. `id` names the loss, `since` is when it was found (wall
    clock), in the boot `boot`. `open`: something of it may still be alive."""

    def __init__(self, id: str, since: float, why: str, boot: str, open: bool = True) -> None:
        self.id = id
        self.since = since
        self.why = why
        self.boot = boot
        self.open = open

    def as_message(self) -> dict[str, Any]:
        """The loss as a message."""
        return {"id": self.id, "since": self.since, "why": self.why, "open": self.open}


class Recorded:
    """State from the records of a journal: their `boot`, `jobs` that run or are not acknowledged, ids of those that are
    (`forgotten`), the latest renewal of leases, and the latest loss."""

    def __init__(self) -> None:
        self.boot = ""
        self.jobs: dict[str, Job] = {}
        self.forgotten: dict[str, None] = {}
        self.renewed = 0.0
        self.loss: Loss | None = None
        self.ahead: dict[str, Record] = {}
        """Intents of successors that were not started: nothing of them has begun, unless the power was cut."""

    def take(self, record: Record) -> None:
        """Apply the next record."""
        kind, key, *rest = record
        if kind == "boot":
            self.boot = key
        elif kind == "intent":
            self.jobs[key] = Job(key, *rest[1:])
            self.jobs[key].place = _place(rest[0])
        elif kind == "ahead":
            self.ahead[key] = rest
        elif kind == "go":
            if (intent := self.ahead.pop(key, None)) is not None:
                self.jobs[key] = Job(key, rest[1], *intent)
                self.jobs[key].place = _place(rest[0])
        elif kind == "exit":  # what is kept of it and its place follow, or its intent had them
            before = self.jobs.get(key, Job(key))
            kept, place = (rest[1], _place(rest[2])) if len(rest) > 1 else (before.kept, before.place)
            self.jobs[key] = Job(key, outcome=rest[0], kept=kept)
            self.jobs[key].place = place
            self.ahead.pop(key, None)
        elif kind == "forget":
            self.jobs.pop(key, None)
            self.forgotten[key] = None
        elif kind == "loss":
            self.loss = Loss(key, *rest)
        elif kind == "proven" and self.loss is not None:
            self.loss.open = False
        elif kind == "renewed":
            self.renewed = key
        elif (job := self.jobs.get(key)) is not None:
            job.take(kind, rest)

    def records(self) -> Iterator[Record]:
        """A minimal journal of the same state."""
        yield ["boot", self.boot]
        if self.renewed:
            yield ["renewed", self.renewed]
        if self.loss is not None:
            yield ["loss", self.loss.id, self.loss.since, self.loss.why, self.loss.boot, self.loss.open]
        for key in self.forgotten:
            yield ["forget", key]
        for job in self.jobs.values():
            yield from job.records()


def _place(fields: Record | None) -> Place | None:
    return Place(*fields) if fields is not None else None


# --- leases -----------------------------------------------------------------------------------------------------------
#
# A leased job may be run again elsewhere once its node has been silent for so long that its lease is over. That is safe
# only if the job is over by then, so this end of the bargain trusts nobody: the deadline is a point on the boot clock,
# which counts a machine's sleep and which nobody can set; it is kept by the process that is the job's parent; and a
# word that is heard after the deadline revives nothing. It counts from the *sending* of the heartbeat that the
# coordinator answered. The coordinator counts from a receipt, which is later.
#
# The next supervisor, after this one was killed, must not take a deadline for later than it was. It reads since when
# each job is leased from its intent, and the newest renewal from the journal, where one is noted now and then, not
# synced: a killed process's writes are safe, and after a power cut no job is left. So it may miss what was renewed in
# the last quarter of the shortest lease, and the agent says the newest one again when it connects; if no agent does in
# the three quarters that are left, the job ends a little early, never late.
LEASE_GRACE = 1.0
"""Maximum grace between SIGTERM and SIGKILL at the end of a lease (s)."""


class Leases:
    """The leases of all allocations that run or wait to be spawned. `renewed` is when the agent sent the newest
    heartbeat that the coordinator answered, `next` when something is due, or earlier. Times are seconds since boot."""

    def __init__(self) -> None:
        self.renewed = 0.0
        self.next = NEVER
        self._held: dict[str, tuple[float, float]] = {}  # seconds, and since when
        self._noted = 0.0

    def hold(self, key: str, lease: float, since: float) -> None:
        """Lease an allocation for this many seconds from `since` or the newest renewal on; 0 is no lease."""
        if lease:
            self._held[key] = lease, since
            self.next = min(self.next, self._deadline(key))

    def drop(self, key: str) -> None:
        """Remove the lease."""
        self._held.pop(key, None)

    def renew(self, at: float, now: float) -> bool:
        """Renew all leases from `at`. Call `over` with the same `now` first, or expired ones are revived. True if this
        renewal is to be noted in the journal."""
        self.renewed = max(self.renewed, min(at, now))
        shortest = min((lease for lease, _ in self._held.values()), default=NEVER)
        if self.renewed - self._noted < shortest / 4:
            return False
        self._noted = self.renewed
        return True

    def over(self, now: float) -> dict[str, float]:
        """Expired leases, each returned once, with their duration."""
        if now < self.next:
            return {}
        found = {key: lease for key, (lease, _) in self._held.items() if self._deadline(key) <= now}
        for key in found:
            del self._held[key]
        self.next = min(map(self._deadline, self._held), default=NEVER)
        return found

    def _deadline(self, key: str) -> float:
        lease, since = self._held[key]
        return max(since, self.renewed) + lease


def lease_text(lease: float) -> str:
    """Why a leased job was ended."""
    return f"no word from the coordinator for {lease:g} s; a leased job does not run on without it"
