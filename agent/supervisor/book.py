"""What the supervisor knows of its jobs, in memory and in its journal. Stdlib only."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import Job, Place
from distributed_grid.agent.supervisor.journal import Journal
from distributed_grid.agent.supervisor.leases import Leases

REMEMBERED = 10_000
"""Forgotten allocations whose ids are still known, so that a very late launch is still refused."""
_COMPACT_AT = 4 << 20
_CLOCKS = 60.0  # seconds by which the wall clock may have been set since the boot
_RETRY = 1.0  # seconds after which a disk that refused is tried again


class Loss:
    """The journal was damaged: what ran then is not known. `id` names the loss, `since` is when it was found (wall
    clock), in the boot `boot`. `open`: something of what ran then may still live."""

    def __init__(self, id: str, since: float, why: str, boot: str, open: bool = True) -> None:
        self.id = id
        self.since = since
        self.why = why
        self.boot = boot
        self.open = open

    def told(self) -> dict[str, Any]:
        """As the agent is told of it."""
        return {"id": self.id, "since": self.since, "why": self.why, "open": self.open}


_LOST = "the record of it was lost when the node's journal was damaged; how it ended is not known"


class Book:
    """`jobs` has what runs and what ended and is not acknowledged yet, `over` those of them that ended and are not
    durable yet, `forgotten` the ids of what was acknowledged. Where the disk takes nothing all this stays in memory,
    and is written whole once it does, not before `retry_at` (seconds since boot)."""

    def __init__(self, path: str, leases: Leases, log: Callable[[str], None]) -> None:
        self.jobs: dict[str, Job] = {}
        self.over: list[Job] = []
        self.forgotten: dict[str, None] = {}
        self.loss: Loss | None = None
        """The newest there was."""
        self.journal = Journal(path, log)
        self._allocs = os.path.join(os.path.dirname(path), "allocs")
        self.retry_at = 0.0
        self._leases = leases
        self._log = log
        self._compact_at = 0
        self._refused = False

    def read(self) -> str:
        """Take in what an earlier supervisor wrote. The boot in which it did, empty if there is nothing."""
        boot, now_boot = "", procs.boot_id()
        places: dict[str, Place] = {}
        records = self.journal.load()
        for kind, key, *rest in records:
            job = self.jobs.get(key)
            if kind == "boot":
                boot = key
            elif kind == "intent":
                self.jobs[key] = Job(key, *rest)
                self.jobs[key].place = places.get(key)
            elif kind == "exit":
                self.jobs[key] = Job(key, outcome=rest[0])
                self.jobs[key].place = places.get(key)
            elif kind == "slot":
                places[key] = Place(*rest)
            elif kind == "forget":
                self.jobs.pop(key, None)
                self.forgotten[key] = None
            elif kind == "loss":
                self.loss = Loss(key, *rest)
            elif kind == "proven" and self.loss is not None:
                self.loss.open = False
            elif kind == "renewed":
                self._leases.renewed = key
            elif job is not None and kind == "start":
                job.pid, job.spawned = rest[0], (rest[1], rest[2])
            elif job is not None and kind == "stop":
                job.cause, job.text = rest
            elif job is not None and kind == "limit":
                job.limit = rest[0]
            elif job is not None and kind == "warned":
                job.warned = True
            elif job is not None and kind == "freeze":
                job.frozen_at, job.frozen_why = rest
            elif job is not None and kind == "thaw":
                job.frozen_for, job.frozen_at = rest[0], 0.0
        doubt = self.journal.doubt
        if not doubt and not self.unknown and (unnamed := self._not_named()):
            doubt = f"{unnamed[0]} was started, and the journal does not name it"
        if doubt:
            self.loss = Loss(os.urandom(4).hex(), round(time.time(), 3), doubt, now_boot)
            self._log(f"unknown what ran: {doubt}")
            return boot or now_boot
        if self.loss is not None and self.loss.open and self.loss.boot != now_boot:
            self.loss.open = False  # nothing outlives a reboot
            self._log("the node was restarted: nothing lives of what the damaged journal did not name")
        return boot

    def _not_named(self) -> list[str]:
        """What was started in this boot, by the output that it has, and is not in the journal: then that one and its
        mark are older copies, or both are gone."""
        found: list[str] = []
        if len(self.forgotten) >= REMEMBERED:
            return found  # of more the journal keeps no names
        booted = time.time() - procs.now() - _CLOCKS
        for name in os.listdir(self._allocs) if os.path.isdir(self._allocs) else ():
            if name in self.jobs or name in self.forgotten or name.startswith("."):
                continue
            with contextlib.suppress(OSError):
                if os.lstat(os.path.join(self._allocs, name, "stdout")).st_ctime >= booted:
                    found.append(name)
        return found

    @property
    def unknown(self) -> bool:
        """Whether something may live that is not known here."""
        return self.loss is not None and self.loss.open

    def proven(self) -> None:
        """Nothing lives of what was lost: it was looked for, or somebody who can know says so."""
        if self.loss is not None and self.loss.open:
            self.loss.open = False
            self.journal.append("proven", self.loss.id)
            for key in self._not_named():  # over, and how is not known: it is never started again
                job = self.jobs[key] = Job(key, outcome={"cause": "supervisor-lost", "text": _LOST})
                self.over.append(job)
            self._log("nothing lives of what the damaged journal did not name")

    def forget(self, key: str) -> None:
        """Its end is known where it counts. Without effect on what has not ended."""
        if key in self.jobs and self.jobs[key].outcome is not None:
            del self.jobs[key]
            self.forgotten[key] = None
            self.journal.append("forget", key)

    def save(self, sync: bool) -> list[Job] | None:
        """Write what was appended and what is over, with `sync` through to the disk. What is over and durable now; None
        if the disk takes nothing."""
        told, self.over = self.over, []
        for job in told:
            self.journal.append("exit", job.id, job.outcome)
        if not (self._commit(sync) or self._rewrite()):
            self.over = told
            self.retry_at = procs.now() + _RETRY
            return None
        if self.journal.size > self._compact_at and not self._rewrite():
            self._compact_at = self.journal.size + _COMPACT_AT  # what there is will do for now
        return told

    def _commit(self, sync: bool) -> bool:
        if not self.journal.sound:
            return False
        try:
            self.journal.commit(sync)
        except OSError as error:
            self._log(f"the journal cannot be written ({error.strerror}): a new one is made")
            return False
        return True

    def _rewrite(self) -> bool:
        while len(self.forgotten) > REMEMBERED:
            del self.forgotten[next(iter(self.forgotten))]
        try:
            self.journal.rewrite(self._records())
        except OSError as error:
            if not self._refused:  # not the same lines every second
                state = "" if self.journal.sound else ": nothing is started and ends wait in memory until it can be"
                self._log(f"no new journal can be written ({error.strerror}){state}")
            self._refused = True
            return False
        if self._refused:
            self._log("a new journal could be written again")
        self._refused = False
        self._compact_at = max(_COMPACT_AT, 2 * self.journal.size)
        return True

    def _records(self) -> Iterator[list[Any]]:
        yield ["boot", procs.boot_id()]
        if self._leases.renewed:
            yield ["renewed", self._leases.renewed]
        if self.loss is not None:
            yield ["loss", self.loss.id, self.loss.since, self.loss.why, self.loss.boot, self.loss.open]
        for key in self.forgotten:
            yield ["forget", key]
        for job in self.jobs.values():
            yield from job.records()
