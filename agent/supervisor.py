"""The node's supervisor: the parent of all jobs, which outlives the agent.

One process with one thread, standard library only, started by supervisor_main.py. Each turn of its loop takes what came
in, makes it durable with one sync, and only then acts on it and tells: an intent is on disk before its process exists,
an exit is on disk before it is reported, and is kept until it is acknowledged. No allocation is ever spawned twice,
whatever dies in between. The agent may come and go; it is told everything when it comes.
"""

import contextlib
import heapq
import itertools
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

from distributed_grid.agent import supervisor_procs as procs
from distributed_grid.agent.supervisor_job import NEVER, CannotStart, Job, never_ran, spawn
from distributed_grid.agent.supervisor_journal import Journal
from distributed_grid.agent.supervisor_output import bound
from distributed_grid.agent.supervisor_socket import AgentSocket
from distributed_grid.agent.supervisor_tree import Tree

VERSION = 1
"""Of the talk with the agent and of the journal. Another version is another supervisor."""
OUTPUT_LIMIT = 256 << 20
"""Bytes that one output stream may take on disk."""
BATCH = 32
"""Launches that one turn spawns at most, so that ends are reported meanwhile."""
LINGER = 10.0
"""Seconds that a supervisor without jobs and without an agent stays. All it knows is in the journal."""
REMEMBERED = 10_000
"""Forgotten allocations whose ids are still known, so that a very late launch is still refused."""
_COMPACT_AT = 4 << 20
_LOOK = 1.0  # seconds between two looks at the sizes of outputs
_ADOPTED_LOOK = 0.2  # seconds between two looks at leftovers that are not below us
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE)


def log(text: str) -> None:
    """A line in supervisor.log. Where the disk is full it is lost, and nothing else."""
    with contextlib.suppress(OSError):
        os.write(2, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n".encode(errors="replace"))


class Supervisor:
    """All jobs of one agent's state directory. `jobs` has what runs and what ended and is not acknowledged yet."""

    def __init__(self, state_dir: str, output_limit: int = OUTPUT_LIMIT) -> None:
        self.allocs = os.path.join(state_dir, "allocs")
        self.output_limit = output_limit
        self.jobs: dict[str, Job] = {}
        self.forgotten: dict[str, None] = {}
        self.launches: dict[str, dict[str, Any]] = {}
        self.over: list[Job] = []  # ended, and not durable yet
        self.timers: list[tuple[float, int, Job]] = []
        self.count = itertools.count()
        self.leave = False
        self.idle_since = procs.now()
        self.next_look = 0.0
        self.retry_at = 0.0
        self.all_cores = os.sched_getaffinity(0)
        self.selector = selectors.DefaultSelector()
        self.tree = Tree(log, self._is_ours)
        self.journal = Journal(os.path.join(state_dir, "journal"), log)
        self._take_signals()
        self.oom_scores = procs.protect_from_oom()
        self._restore()
        self.agent = AgentSocket(state_dir, self.selector, self._greeting, self._hear, log)

    def _take_signals(self) -> None:
        procs.become_subreaper()
        for signum in _IGNORED:
            signal.signal(signum, signal.SIG_IGN)
        # SIGTERM comes from a machine that shuts down, and jobs get it too: leave as soon as nothing runs.
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "leave", True))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        woken, self._wake = socket.socketpair()
        woken.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self.selector.register(woken, selectors.EVENT_READ, lambda: woken.recv(4096))

    # --- what was before -----------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Read the journal, and take over what an earlier supervisor left running."""
        boot, before = procs.boot_id(), ""
        for kind, key, *rest in self.journal.load():
            job = self.jobs.get(key)
            if kind == "boot":
                before = key
            elif kind == "intent":
                self.jobs[key] = Job(key, *rest)
            elif kind == "exit":
                self.jobs[key] = Job(key, outcome=rest[0])
            elif kind == "forget":
                self.jobs.pop(key, None)
                self.forgotten[key] = None
            elif job is not None and kind == "start":
                job.pid, job.spawned = rest[0], (rest[1], rest[2])
            elif job is not None and kind == "stop":
                job.cause, job.text = rest
        if before:
            for key in self.tree.strays().keys() - self.jobs.keys():  # in a damaged part of the journal
                log(f"{key} runs, and the journal does not know it: it is taken over")
                self.jobs[key] = Job(key)
        for job in self.jobs.values():
            if job.outcome is not None:
                continue
            job.adopted = True
            if before != boot:
                job.outcome = {"cause": "rebooted", "text": "the node was restarted while it ran"}
            elif not self._adopt(job):
                self.tree.main_ended(job, None)
        self._compact()

    def _is_ours(self, key: str) -> bool:
        return key in self.jobs or ("/" not in key and os.path.isdir(os.path.join(self.allocs, key)))

    def _adopt(self, job: Job) -> bool:
        """Watch a main process whose parent we are not; False if it is gone."""
        try:
            fd = os.pidfd_open(job.pid) if job.pid else -1
        except OSError:
            return False
        seen = procs.stat(job.pid)
        if fd < 0 or seen is None or not job.spawned[0] <= seen.start <= job.spawned[1]:
            if fd >= 0:
                os.close(fd)
            return False
        job.pidfd, job.start = fd, seen.start
        self.tree.watched.add(job)
        self.selector.register(fd, selectors.EVENT_READ, lambda: self._adopted_ended(job))
        if job.cause:
            self._end(job, job.grace)
        self._arm(job)
        log(f"{job.id} of an earlier supervisor still runs (pid {job.pid}) and is watched")
        return True

    def _adopted_ended(self, job: Job) -> None:
        # The code can be had once its new parent has reaped it: at once as a rule, so it is waited for only shortly.
        status = None
        for _ in range(25):
            status = procs.status_by_pidfd(job.pidfd, job.pid, job.start)
            if status is not None:
                break
            time.sleep(0.002)
        self.selector.unregister(job.pidfd)
        os.close(job.pidfd)
        job.pidfd = -1
        self.tree.main_ended(job, status)

    def _records(self) -> Iterator[list[Any]]:
        yield ["boot", procs.boot_id()]
        for key in self.forgotten:
            yield ["forget", key]
        for job in self.jobs.values():
            yield from job.records()

    def _compact(self) -> None:
        while len(self.forgotten) > REMEMBERED:
            del self.forgotten[next(iter(self.forgotten))]
        self.journal.rewrite(self._records())
        self.compact_at = max(_COMPACT_AT, 2 * self.journal.size)

    # --- what the agent says -------------------------------------------------------------------------------------

    def _greeting(self) -> dict[str, Any]:
        now = procs.now()
        known = [
            {"id": job.id, "pid": job.pid, "stopping": bool(job.cause), "for": now - job.began, "outcome": job.outcome}
            for job in self.jobs.values()
            if job not in self.over
        ]
        return {"op": "hello", "version": VERSION, "pid": os.getpid(), "known": known}

    def _hear(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "launch":
                self._launch(message)
            case "stop":
                self._stop(message["id"], message["cause"], message["text"], message["grace"])
            case "signal":
                job = self.jobs.get(message["id"])
                if job is not None and job.outcome is None and 0 < message["signal"] <= signal.NSIG:
                    self.tree.signal_group(job, message["signal"])
            case "forget":
                for key in message["ids"]:
                    if key in self.jobs and self.jobs[key].outcome is not None:
                        del self.jobs[key]
                        self.forgotten[key] = None
                        self.journal.append("forget", key)
            case "leave":
                self.leave = True
            case other:
                log(f"the agent says {other!r}, which is not known here")

    def _launch(self, order: dict[str, Any]) -> None:
        key = order["id"]
        if key in self.jobs:
            self._tell(self.jobs[key])
        elif key in self.forgotten:
            self._was_over(key, "spawn-failed")
        elif "/" in key or key.startswith("."):
            log(f"{key!r} is not the id of an allocation")
        else:
            self.launches.setdefault(key, order)

    def _stop(self, key: str, cause: str, text: str, grace: float) -> None:
        self.launches.pop(key, None)
        job = self.jobs.get(key)
        if job is None:
            if key in self.forgotten:
                self._was_over(key, cause)
            else:  # never heard of: remembered as over, so that a launch that comes late is refused
                job = self.jobs[key] = Job(key, outcome=never_ran(cause, text or "ended before it was started"))
                self.over.append(job)
        elif job.outcome is not None:
            self._tell(job)
        else:
            self._ask_end(job, cause, text, grace)

    def _was_over(self, key: str, cause: str) -> None:
        text = "it was over and acknowledged before; an allocation is never started twice"
        self.agent.tell({"op": "exited", "id": key, "outcome": never_ran(cause, text)})

    def _tell(self, job: Job) -> None:
        if job in self.over:
            return
        if job.outcome is not None:
            self.agent.tell({"op": "exited", "id": job.id, "outcome": job.outcome})
        else:
            # A short job's end is told together with its start: for us, the agent and the coordinator half the work.
            self.agent.tell({"op": "started", "id": job.id, "pid": job.pid}, patient=True)

    # --- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until nothing runs and nobody is there to ask for more."""
        while not self._may_leave():
            for key, _ in self.selector.select(self._timeout()):
                key.data()
            self.tree.reap(procs.now())
            self._fire()
            self._settle()
            self._act()
            self.agent.flush()

    def _may_leave(self) -> bool:
        busy = self.tree.busy() or self.launches or self.over
        if busy or (self.agent.connected and not self.leave):
            self.idle_since = procs.now()
            return False
        return self.leave or procs.now() - self.idle_since >= LINGER

    def _timeout(self) -> float | None:
        due = [self.timers[0][0]] if self.timers else []
        if 0.0 < self.agent.due < NEVER:
            due.append(self.agent.due)
        if self.tree.mains or self.tree.watched:
            due.append(self.next_look)
        if self.launches or self.over:
            due.append(self.retry_at)
        if not self.agent.connected:
            due.append(self.idle_since + LINGER)
        return max(0.0, min(due) - procs.now()) if due else None

    def _fire(self) -> None:
        """Do what is due: time limits, the end of somebody's grace, a look at the outputs."""
        now = procs.now()
        while self.timers and self.timers[0][0] <= now:
            when, _, job = heapq.heappop(self.timers)
            if job.outcome is not None or job.wake != when:
                continue
            job.wake, job.look = NEVER, True
            if now >= job.kill_at:
                self.tree.kill(job)
                job.pause = min(1.0, job.pause * 2 or 0.02)
                job.kill_at = now + job.pause
            elif job.limit and job.status is None and not job.cause and now >= job.began + job.limit:
                self._ask_end(job, "time-limit", f"ran longer than its time limit of {job.limit:g} s", job.grace)
            self._arm(job)
        if now >= self.next_look:
            self.next_look = now + _LOOK
            for job in [*self.tree.mains.values(), *self.tree.watched]:
                for stream in ("stdout", "stderr"):
                    bound(os.path.join(self.allocs, job.id, stream), self.output_limit, log)

    def _arm(self, job: Job) -> None:
        """Have the job looked at when something of it is next due."""
        due = job.kill_at
        if job.limit and job.status is None and not job.cause:
            due = min(due, job.began + job.limit)
        if job.adopted and job.status is not None:  # its orphans are not our children: their end wakes nobody here
            due = min(due, procs.now() + _ADOPTED_LOOK)
        if due < job.wake:
            job.wake = due
            heapq.heappush(self.timers, (due, next(self.count), job))

    def _ask_end(self, job: Job, cause: str, text: str, grace: float) -> None:
        """Somebody wants it ended. Where the main process is gone already, its own end stays the outcome."""
        if job.status is None and not job.cause:
            job.cause, job.text = cause, text
            self.journal.append("stop", job.id, cause, text)
        self._end(job, grace if grace >= 0 else job.grace)

    def _end(self, job: Job, grace: float) -> None:
        """SIGTERM to all of it, and SIGKILL after `grace` seconds; asked again it can only come sooner."""
        if grace > 0 and job.kill_at == NEVER:
            self.tree.terminate(job)
        job.kill_at = min(job.kill_at, procs.now() + grace)
        self._arm(job)

    def _settle(self) -> None:
        """A job is over when nothing of it is alive. What its main process left behind is ended first."""
        for job in [*self.tree.ending]:
            if job.adopted and not job.look:
                continue  # looking through all processes is dear: only when it is due
            job.look = False
            if not self.tree.alive(job):
                self.tree.ending.discard(job)
                job.finish(procs.now())
                self.over.append(job)
            elif job.kill_at == NEVER:
                self._end(job, job.grace)
            else:
                self._arm(job)

    def _act(self) -> None:
        """One write and one sync for all ends and intents of this turn; only then tell the ends, spawn, and tell."""
        now = procs.now()
        if now < self.retry_at:
            return
        fresh = []
        for key in [*itertools.islice(self.launches, BATCH)]:
            order = self.launches.pop(key)
            job = self.jobs[key] = Job(key, now, order["limit"], order["grace"], order["cores"])
            self.journal.append(*job.intent())
            fresh.append((job, order))
        if self._save(sync=bool(fresh or self.over)):
            if fresh:
                self.agent.flush()
                self._spawn_all(fresh)
            return
        for job, _ in fresh:
            del self.jobs[job.id]
            job.outcome = never_ran("spawn-failed", "the journal on the node cannot be written (is the disk full?)")
            self._tell(job)

    def _save(self, sync: bool) -> bool:
        """Write what was appended and what is over, then tell the ends. False if the disk takes nothing."""
        told, self.over = self.over, []
        for job in told:
            self.journal.append("exit", job.id, job.outcome)
        try:
            self.journal.commit(sync)
            if self.journal.size > self.compact_at:
                self._compact()
        except OSError as error:
            log(f"the journal cannot be written ({error.strerror}): a new one is tried")
            try:
                self._compact()
            except OSError as again:
                log(f"a new one cannot be written either ({again.strerror}): nothing is started, ends wait in memory")
                self.over = told
                self.retry_at = procs.now() + 1.0
                return False
        for job in told:
            self._tell(job)
        return True

    def _spawn_all(self, fresh: list[tuple[Job, dict[str, Any]]]) -> None:
        with procs.as_jobs_oom_score(self.oom_scores):
            for job, order in fresh:
                if not job.cores:  # the one before it may have had some
                    os.sched_setaffinity(0, self.all_cores)
                before = procs.ticks()
                try:
                    job.pid = spawn(order, os.path.join(self.allocs, job.id))
                except CannotStart as why:
                    job.outcome = never_ran(why.cause, why.text)
                    self.over.append(job)
                # Reading its exact start time costs half a millisecond; between these two only one can have the pid.
                job.spawned = before, procs.ticks()
            os.sched_setaffinity(0, self.all_cores)
            os.chdir("/")
        # Not before all are made: as long as we have a job's cores, we wait for them behind that job.
        for job, _ in fresh:
            if job.pid:
                self.tree.mains[job.pid] = job
                self.journal.append(*job.begin())
                self._tell(job)
                self._arm(job)
        # A start need not be synced: where the power is cut the process is gone as well. A failed one is an end.
        self._save(sync=bool(self.over))
