"""All processes of all jobs: which child is whose, what of a job is alive, and ending all of it.

The supervisor is a subreaper, so whatever a job does to hide a process (double fork, new session), in the end it is our
child or below one. Processes are signalled by pidfd after a look at who they are, or as the process group of a main
process that is not reaped yet, whose number nobody else can have. Stdlib only.
"""

import os
import signal
from collections.abc import Callable, Iterable

from distributed_grid.agent import supervisor_procs as procs
from distributed_grid.agent.supervisor_job import Job

_ROUNDS = 50


class Tree:
    """`mains` are our children that are a job's main process, `orphans` our other ones (None: nobody's), both until
    they are reaped. `watched` are jobs whose main process is not our child, since another supervisor spawned it;
    `ending` are those whose main process is gone. `is_ours` says whether an allocation's id is one of this node."""

    def __init__(self, log: Callable[[str], None], is_ours: Callable[[str], bool]) -> None:
        self.mains: dict[int, Job] = {}
        self.orphans: dict[int, Job | None] = {}
        self._hidden: dict[int, list[Job]] = {}
        """Of those that are nobody's, and so killed: whose they may be, all of which are not over before they are."""
        self.watched: set[Job] = set()
        self.ending: set[Job] = set()
        self._unsure = False
        self._log = log
        self._is_ours = is_ours
        self._children = procs.OwnChildren()

    def busy(self) -> bool:
        return bool(self.mains or self.ending or self.watched)

    def reap(self, now: float) -> None:
        """Take the exits of all our children, main processes and orphans alike."""
        reaped = False
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            reaped = True
            job = self.mains.pop(pid, None)
            owner = job or self.orphans.pop(pid, None)
            self._hidden.pop(pid, None)
            if owner is not None:
                owner.used(usage)
            if job is not None:
                self.main_ended(job, status)
        if reaped:
            self._find_orphans()

    def main_ended(self, job: Job, status: int | None) -> None:
        """The main process is gone, with this wait status if it is known."""
        job.status = -1 if status is None else status
        self.watched.discard(job)
        self.ending.add(job)

    def alive(self, job: Job) -> bool:
        """Whether anything is left of a job whose main process is gone."""
        if job.adopted:
            return bool(self.members(job))
        return self._unsure or job in self.orphans.values() or any(job in jobs for jobs in self._hidden.values())

    def terminate(self, job: Job) -> None:
        """Ask all of it to end: SIGTERM, and SIGCONT so that what is stopped hears it. One that is to be asked gently
        has its own way to end what it started: only its main process hears it, as long as there is one."""
        if job.gently and job.status is None and (seen := procs.stat(job.pid)) is not None:
            procs.send(job.pid, seen.start, signal.SIGTERM)
            return
        for signum in (signal.SIGTERM, signal.SIGCONT):
            in_group = self.signal_group(job, signum)
            for pid, seen in self.members(job).items():
                if not (in_group and seen.group == job.pid):
                    procs.send(pid, seen.start, signum)

    def signal_group(self, job: Job, signum: int) -> bool:
        """Signal the job's process group; False if its main process is gone."""
        if job.pid in self.mains:
            # Not reaped, so the number is its own; it leads its group since before posix_spawn returned.
            os.killpg(job.pid, signum)
            return True
        if job.pidfd >= 0:  # not our child: its group's number is only as safe as its members, so each by itself
            for pid, seen in self.members(job).items():
                if seen.group == job.pid:
                    procs.send(pid, seen.start, signum)
            return True
        return False

    def kill(self, job: Job) -> None:
        """End all of it now. A group dies in one stroke; what is outside of it is stopped until nobody is left who
        could fork, and then killed. What slips through is found by the next call: call until it is not alive."""
        if job.pid in self.mains:
            os.killpg(job.pid, signal.SIGKILL)
        stopped: dict[int, int] = {}
        for _ in range(_ROUNDS):
            fresh = {pid: at.start for pid, at in self.members(job).items() if stopped.get(pid) != at.start}
            if not fresh:
                break
            for pid, start in fresh.items():
                procs.send(pid, start, signal.SIGSTOP)
            stopped |= fresh
        for pid, start in stopped.items():
            procs.send(pid, start, signal.SIGKILL)

    def holds(self, pid: int) -> bool:
        """Whether this process is a job's, or below one: the chain of its parents leads to us, or over a job."""
        watched = {job.pid for job in self.watched}
        while pid > 1:
            if pid == os.getpid() or pid in watched or self._is_ours(procs.allocation_of(pid) or "/"):
                return True
            seen = procs.stat(pid)
            if seen is None:
                return True  # who sends another and is gone does not want to be known
            pid = seen.parent
        return False

    def strays(self) -> dict[str, set[int]]:
        """All processes that were started for one of our allocations, whoever is their parent now."""
        found: dict[str, set[int]] = {}
        for pid in procs.everyone():
            key = procs.allocation_of(pid)
            if key and self._is_ours(key):
                found.setdefault(key, set()).add(pid)
        return found

    def members(self, job: Job) -> dict[int, procs.Stat]:
        """All that lives of a job."""
        self._find_orphans()
        roots = [pid for pid, owner in self.orphans.items() if owner is job]
        if job.pid in self.mains:
            roots.append(job.pid)
        if job.adopted:
            # Orphans of another supervisor went to somebody else; their environment is all that still tells.
            roots += self.strays().get(job.id, ())
            if job.pidfd >= 0:
                roots.append(job.pid)
        return procs.descendants(roots)

    def _find_orphans(self) -> None:
        """Give each child that is new an owner. One read of one small file when there is none, the usual case."""
        fresh = self._children.read() - self.mains.keys() - self.orphans.keys()
        self._unsure = False
        for pid in fresh:
            seen = procs.stat(pid)
            if seen is None or seen.state == "Z":
                # It may have become so after the list was read, and its own children ours: they are in the next list,
                # which is read when this one is reaped. Until then nobody can say that nothing is left.
                self._unsure = True
                continue
            owner = self._owner(pid, seen.session)
            if owner is None:
                # It left its session, hid its environment and changed its cores, so nobody can say whose it is. But
                # it is below us, so it is no stranger, and its cores would be lent with it on them. It came to light
                # when a job ended, so it is taken for that one's. It might belong to a job that runs on: a daemon
                # that hides as well as that does not live long here.
                self._log(f"process {pid} hides whose it is: it is ended")
                owner = _only(self.ending)
            self.orphans[pid] = owner
            if owner is None:
                self._hidden[pid] = [*self.mains.values(), *self.ending]
                procs.send(pid, seen.start, signal.SIGKILL)

    def _owner(self, pid: int, session: int) -> Job | None:
        """Whose orphan this is: by its environment, else its session, else the cores that only one job has."""
        live = [*self.mains.values(), *self.ending]
        key = procs.allocation_of(pid)
        for job in live:
            if key == job.id:
                return job
        for job in live:
            if session == job.pid:
                return job
        if len(live) == 1:
            return live[0]
        try:
            cores = os.sched_getaffinity(pid)
        except OSError:
            return None
        return _only(job for job in live if cores <= job.cores)


def _only(jobs: Iterable[Job]) -> Job | None:
    found = [*jobs]
    return found[0] if len(found) == 1 else None
