"""One job as the supervisor sees it: what was asked, what is left of it, how it ended, what the journal has to say
of it; and the leases of all jobs, until when each may run on without word from the coordinator. Stdlib only.
"""

import os
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

NEVER = float("inf")


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
    """An allocation from its intent to its end. Times are seconds since boot, sizes bytes. `lease` and `since` are what
    leases.py is told of it.

    `limits` is what it may take, as the agent said: `memory` bytes, `pids` processes and threads at once, `cpu`
    thousandths of a core, and `signal` is sent to it `before` seconds ahead of its time limit; what is not there is not
    limited. `confined` names the controllers whose cgroup it is in.

    `pid` names its main process, 0 until it is spawned; `spawned` is the time before and after that in clock ticks,
    and `start` the process's own start time, known only where it was looked up. `status` is that one's wait status,
    None while it lives, -1 if nobody knows it. `cause` and `text` say who ends it, empty if nobody does. `adopted`: it
    was spawned by a supervisor that is dead, and `pidfd` watches its main process, which is not our child.

    `place` is where its processes are. `left`: its spawner says that something of it lives; `orphaned`: its spawner is
    dead, and what lives of it became our child; `swept`: its spawner was told to end all of it; `grouped`: all was
    ended that its control group named.

    `frozen_at` is since when it is frozen (0: it is not), for `frozen_why`, and `frozen_for` how many seconds it was
    before that.

    `kill_at` is when it gets (the next) SIGKILL, `killed_at` when it got the first one (0: it did not), `unended` why
    it lives all the same, once it should not, `wake` when the loop looks at it again, `look` that it is due.
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
        outcome: dict[str, Any] | None = None,
    ) -> None:
        self.id = id
        self.began = began
        self.limit = limit
        self.grace = grace
        self.cores = frozenset(cores)
        self.lease = lease
        self.since = since
        self.limits = limits or {}
        self.memory = int(self.limits.get("memory", 0))
        self.pids = int(self.limits.get("pids", 0))
        self.cpu_limit = int(self.limits.get("cpu", 0))
        self.nice = int(self.limits.get("nice", 0))
        self.gently = bool(self.limits.get("gently", False))
        self.confined: frozenset[str] = frozenset()
        self.warn_signal = int(self.limits.get("signal", 0))
        self.warned = False
        self.outcome = outcome
        self.pid = 0
        self.start = 0
        self.spawned = (0, 0)
        self.pidfd = -1
        self.adopted = False
        self.place: Place | None = None
        self.orphaned = self.left = self.swept = self.grouped = False
        self.status: int | None = None
        self.cause = ""
        self.text = ""
        self.frozen_at = 0.0
        self.frozen_why = ""
        self.frozen_for = 0.0
        self.kill_at = NEVER
        self.killed_at = 0.0
        self.unended = ""
        self.pause = 0.0
        self.wake = NEVER
        self.look = True
        self.cpu = 0.0
        self.peak = 0

    def records(self) -> Iterator[list[Any]]:
        """What the journal has to say of it now."""
        if self.place is not None:
            yield self.where()
        if self.outcome is not None:
            yield ["exit", self.id, self.outcome]
            return
        yield self.intent()
        if self.pid:
            yield self.begin()
        if self.cause:
            yield ["stop", self.id, self.cause, self.text]
        if self.warned:
            yield ["warned", self.id]
        if self.frozen_for:
            yield ["thaw", self.id, self.frozen_for]
        if self.frozen_at:
            yield ["freeze", self.id, self.frozen_at, self.frozen_why]

    def where(self) -> list[Any]:
        return ["slot", self.id, *(self.place or ())]

    def begin(self) -> list[Any]:
        return ["start", self.id, self.pid, *self.spawned]

    def intent(self) -> list[Any]:
        cores = sorted(self.cores)
        return ["intent", self.id, self.began, self.limit, self.grace, cores, self.lease, self.since, self.limits]

    def deadline(self) -> float:
        """When its time is up: NEVER without a time limit, and once it is ending anyway. Frozen time does not count."""
        if not self.limit or self.status is not None or self.cause or self.frozen_at:
            return NEVER
        return self.began + self.limit + self.frozen_for

    def warn_at(self) -> float:
        """When it is to be told that its time will be up soon; NEVER if it is not, or was told."""
        if not self.warn_signal or self.warned:
            return NEVER
        return self.deadline() - float(self.limits["before"])

    def used(self, usage: Any) -> None:
        """Add what the kernel says that a process of this job, and all it waited for, have used."""
        self.cpu += usage.ru_utime + usage.ru_stime
        self.peak = max(self.peak, usage.ru_maxrss << 10)

    def ended(self, now: float) -> dict[str, Any]:
        """Its outcome, now that nothing of it is alive."""
        said: dict[str, Any] = {"seconds": round(now - self.began, 6) if self.began else 0.0, "peak_memory": self.peak}
        said["cpu_seconds"] = round(self.cpu, 6)
        if frozen := self.frozen_for + (now - self.frozen_at if self.frozen_at else 0.0):
            said["suspended"] = round(frozen, 6)
        if self.status is None or self.status < 0:
            said["cause"] = self.cause or "supervisor-lost"
            lost = "its spawner was" if self.orphaned else "the node's supervisor was"
            said["text"] = self.text or f"{lost} killed; how the job ended is not known"
            return said
        code = os.waitstatus_to_exitcode(self.status)
        if code >= 0:
            said |= {"cause": "exited", "code": code, "text": f"exited with code {code}" if code else ""}
        else:
            core = ", core dumped" if os.WCOREDUMP(self.status) else ""
            text = f"killed by signal {-code} ({signal_name(-code)}){core}"
            said |= {"cause": "signalled", "signal": -code, "text": text}
        if self.cause:
            how = f"; {said['text']}" if said["text"] else ""
            said |= {"cause": self.cause, "text": (self.text or self.cause) + how}
        return said


def never_ran(cause: str, text: str) -> dict[str, Any]:
    """The outcome of an allocation of which no process ever existed."""
    return {"cause": cause, "text": text, "started": False}


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; real-time signals by their distance from the first."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else f"signal {number}"


LEASE_GRACE = 1.0
"""Seconds that a job has at most between SIGTERM and SIGKILL when its lease is over."""


class Leases:
    """The leases of all allocations that run or wait to be spawned. `renewed` is when the agent sent the newest
    heartbeat that the coordinator answered, `next` when something is due, or earlier. Times are seconds since boot."""

    def __init__(self) -> None:
        self.renewed = 0.0
        self.next = NEVER
        self._held: dict[str, tuple[float, float]] = {}  # seconds, and since when
        self._noted = 0.0

    def hold(self, key: str, lease: float, since: float) -> None:
        """Lease this allocation for so many seconds from `since` or the newest renewal on; 0 is no lease."""
        if lease:
            self._held[key] = lease, since
            self.next = min(self.next, self._deadline(key))

    def drop(self, key: str) -> None:
        """It is over, or nobody cares any more."""
        self._held.pop(key, None)

    def renew(self, at: float, now: float) -> bool:
        """All leases run anew from `at`. Call `over` with the same `now` first, or what is over is revived. True if
        this one is to be noted in the journal."""
        self.renewed = max(self.renewed, min(at, now))
        shortest = min((lease for lease, _ in self._held.values()), default=NEVER)
        if self.renewed - self._noted < shortest / 4:
            return False
        self._noted = self.renewed
        return True

    def over(self, now: float) -> dict[str, float]:
        """What is over, with the seconds of its lease. Each is told once."""
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
    """For people: why a leased job was ended."""
    return f"no word from the coordinator for {lease:g} s; a leased job does not run on without it"
