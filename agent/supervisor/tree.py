"""The processes of all jobs: which are alive, and signals to all processes of a job. Stdlib only."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from distributed_grid.agent.cgroups import groups as cgroups
from distributed_grid.agent.cgroups.cgroupfs import Place
from distributed_grid.agent.cgroups.groups import SlotGroups
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import NEVER, Job, JobState
from distributed_grid.agent.supervisor.rounds import Descendants, end_in_rounds
from distributed_grid.agent.walls import accounts
from distributed_grid.agent.walls.enclosure import NAMESPACE
from distributed_grid.runtime.unix import read

_ROUNDS = 50
_KILL_SECONDS = 0.5  # timeout of one blocking attempt to end a job without user id, namespace or group of its own
_STOP_SECONDS = 0.5  # time that a spawner may take to stop, or its child to become a group's leader (s)
_STOPPED = "Tt"
_AGAIN = 0.45  # interval of attempts to remove a group after its last process (s)
Act = Callable[[int, int, list[list[Any]]], None]


class Made(NamedTuple):
    """A main process, by its pid and start time (clock ticks since boot)."""

    pid: int
    start: int


class Tree:
    """The processes of all jobs. `running`: jobs whose spawner has their order and that are not over; `watched`: jobs
    of an earlier supervisor; `ending`: those of both whose main process is gone. `orphans`: children of the supervisor
    whose spawner is gone, until they are reaped, with their job (None: unknown).

    `act` acts as another user (see ForkServer). `helpers` returns which of its children belong to no job, and whether
    one more is being made. `sweep` has a job's spawner end all of the job at once (False: the kernel cannot do that).
    `groups` are the control groups of slots.
    """

    def __init__(
        self,
        log: Callable[[str], None],
        act: Act,
        helpers: Callable[[], tuple[set[int], bool]],
        sweep: Callable[[Job], bool],
        groups: SlotGroups,
    ) -> None:
        self.running: dict[str, Job] = {}
        self.orphans: dict[int, Job | None] = {}
        self.watched: set[Job] = set()
        self.ending: set[Job] = set()
        self._unsure = False
        self._log = log
        self._groups = groups
        self._act = act
        self._helpers, self._sweep = helpers, sweep
        self._children = procs.OwnChildren()

    def busy(self) -> bool:
        return bool(self.running or self.ending or self.watched)

    def unsettled(self) -> bool:
        """Whether children of the supervisor or of dead spawners have to be polled, because no signal reports their
        end."""
        return self._unsure or bool(self.orphans)

    def reap(self, spawner_ended: Callable[[int], Job | None]) -> None:
        """Reap all our ended children: spawners and orphans. `spawner_ended` returns the job of a spawner."""
        orphaned: list[Job] = []
        ended = False  # a process whose own children are ours now
        unknown: dict[int, tuple[procs.Stat, int, Any]] = {}
        while (pid := _next_ended()) != 0:
            seen = procs.stat(pid)
            _, status, usage = os.wait4(pid, 0)
            if (job := spawner_ended(pid)) is not None:
                job.orphaned = True
                orphaned.append(job)
                continue
            # A main process may become our child before we know that its spawner is dead.
            owner = self.orphans.pop(pid, None) or next((one for one in self.running.values() if one.pid == pid), None)
            if owner is not None:
                ended |= owner.orphaned
                owner.used(usage)
                if owner.pid == pid and owner.status is None:
                    self.main_ended(owner, status)
            elif seen is not None:
                unknown[pid] = seen, status, usage
        for job in orphaned:
            if not job.pid and job.place is not None and (pid := self._main_of(job.place.session, unknown)):
                job.runs(pid)  # its spawner was killed before it could report that
                if pid in unknown:
                    job.used(unknown[pid][2])
                    self.main_ended(job, unknown[pid][1])
        if orphaned or ended or self.orphans or self._unsure:
            self._find_orphans()
        ours = self._children.read() if orphaned else ()
        for job in orphaned:
            if job.status is None and job.pid not in ours:
                job.unsent |= not job.pid and not unknown and self._never_began(job)
                # It ended with its namespace. Newer kernels report its status by its pidfd.
                self.main_ended(job, procs.status_by_pidfd(job.pidfd, job.pid, job.start) if job.pidfd >= 0 else None)

    def _never_began(self, job: Job) -> bool:
        """Whether a killed spawner cannot have made a process of this job: it noted none before it reaped one, and a
        process that it had not reaped would be a child of the supervisor."""
        if job.place is None or job.place.walls == NAMESPACE or self._unsure:
            return False
        return not {job, None} & {*self.orphans.values()}

    def _main_of(self, session: int, ended: Mapping[int, tuple[procs.Stat, int, Any]]) -> int:
        """The main process that a killed spawner of this session had forked, or 0: the oldest leader of a process group
        in that session, among the children that we have just reaped (`ended`) and those that live."""
        seen = {pid: ended[pid][0] for pid in ended} | {pid: procs.stat(pid) for pid in self._children.read()}
        return _oldest_leader(session, {pid: at for pid, at in seen.items() if at is not None})

    def main_ended(self, job: Job, status: int | None) -> None:
        """The main process has ended, with this wait status if known."""
        job.main_ended(-1 if status is None else status)
        self.watched.discard(job)
        self.ending.add(job)

    def over(self, job: Job) -> None:
        """Forget a job of which nothing is left."""
        self.running.pop(job.id, None)
        self.ending.discard(job)
        self.watched.discard(job)

    def alive(self, job: Job) -> bool:
        """Whether a job whose main process has ended has other live processes."""
        if job.adopted:
            return bool(self.members(job, spawner=True))
        if not job.orphaned:
            return job.left
        if self._unsure or job in self.orphans.values() or None in self.orphans.values():
            return True
        return job.place is not None and job.place.own and bool(self._of_user(job.place.uid))

    # --- signals ------------------------------------------------------------------------------------------------------

    def terminate(self, job: Job) -> None:
        """Send SIGTERM to all processes, then SIGCONT, since stopped processes do not act on SIGTERM. A job with
        `gently` ends its own children: only its main process gets the signal, as long as that is alive."""
        if job.gently and job.status is None and (seen := procs.stat(job.pid)) is not None:
            self.send(job, {job.pid: seen.start}, signal.SIGTERM)
            return
        members = {pid: seen.start for pid, seen in self.members(job).items()}
        self.send(job, members, signal.SIGTERM)
        self.send(job, members, signal.SIGCONT)

    def signal_group(self, job: Job, signum: int) -> bool:
        """Signal the job's process group; False if its main process is gone."""
        if job.status is not None or not job.pid:
            return False
        # The number of a process group may be reused, so each member is signalled by pid and start time.
        group = {pid: seen.start for pid, seen in self.members(job).items() if seen.group == job.pid}
        self.send(job, group, signum)
        return True

    def send(self, job: Job, targets: dict[int, int], signum: int) -> None:
        """Signal these processes (pid to start time) of the job."""
        if not targets:
            return
        if (other := self._other_user(job)) is not None:
            self._act(*other, [["signal", pid, start, int(signum)] for pid, start in targets.items()])
            return
        for pid, start in targets.items():
            procs.send(pid, start, signum)

    def set_cores(self, job: Job, threads: dict[int, set[int]]) -> None:
        """Restrict these threads of the job to these cores."""
        if (other := self._other_user(job)) is not None:
            self._act(*other, [["cores", thread, sorted(cores)] for thread, cores in threads.items()])
            return
        for thread, cores in threads.items():
            try:
                os.sched_setaffinity(thread, cores)
            except OSError:  # it is gone
                continue

    def renice(self, job: Job, threads: Collection[int], sessions: Collection[int]) -> None:
        """Give these threads of the job its niceness, and the sessions of these processes."""
        if (other := self._other_user(job)) is not None:
            orders: list[list[Any]] = [["nice", thread, job.nice] for thread in threads]
            orders += [["session-nice", pid, job.nice] for pid in sessions]
            self._act(*other, orders)
            return
        for thread in threads:
            with contextlib.suppress(OSError):  # it is gone
                procs.set_niceness(thread, job.nice)
        for pid in sessions:
            with contextlib.suppress(OSError):  # it is gone, or others were set a moment ago
                procs.set_session_niceness(pid, job.nice)

    def set_oom_score(self, job: Job, starts: Mapping[int, int], score: int) -> None:
        """Give these processes of the job, by pid and start time, this OOM score."""
        if (other := self._other_user(job)) is not None:
            self._act(*other, [["oom", pid, start, score] for pid, start in starts.items()])
            return
        for pid, start in starts.items():
            with contextlib.suppress(OSError):  # it is gone, or lets nobody write it
                procs.set_oom_score(pid, start, score)

    def kill(self, job: Job) -> None:
        """End all processes now: by the spawner, the user id, the pid namespace or the control group. Else stop what is
        alive until nothing is left that could fork, then kill it. The next call finds what escaped: repeat it until
        nothing is alive."""
        place = job.place
        if not job.swept and self._sweep(job):
            job.swept = True
            return
        if place is not None and place.own:
            job.slot_ended = True
            self._act(place.uid, place.gid, [["end"]])
            return
        if place is not None and place.walls == NAMESPACE and procs.send(place.pid, place.start, signal.SIGKILL):
            job.slot_ended = True
            return  # the first process of its pid namespace: the kernel ends the others
        if self._groups.kill(job) and not job.grouped:
            job.grouped = True  # processes of our own user may have left the group: the next call finds them
            return
        if place is not None and not job.orphaned and not job.adopted and self._other_user(job) is None:
            below = Descendants(place.pid)
            end_in_rounds(below.scan, below.is_member, _KILL_SECONDS)
            return
        stopped: dict[int, int] = {}
        for _ in range(_ROUNDS):
            found = self.members(job, spawner=True).items()
            fresh = {pid: at.start for pid, at in found if stopped.get(pid) != at.start}
            if not fresh:
                break
            self.send(job, fresh, signal.SIGSTOP)
            stopped |= fresh
        self.send(job, stopped, signal.SIGKILL)

    # --- members ------------------------------------------------------------------------------------------------------

    def is_job(self, pid: int) -> bool:
        """Whether this process belongs to a job, by its user or by the journal of an earlier supervisor. True also for
        one that has ended or is hidden from us, which cannot be checked."""
        watched = {job.pid for job in self.watched} | {job.place.pid for job in self.watched if job.place is not None}
        uid = accounts.uid_of_process(pid)
        return pid in watched or accounts.is_slot_uid(uid) or (uid < 0 and pid > 1)

    def members(self, job: Job, spawner: bool = False) -> dict[int, procs.Stat]:
        """Return all live processes of a job. With `spawner` also the spawner of an adopted job: it may be about to
        start the job and exits after it, but has to note how the job ends, and does not count as its use."""
        roots: list[int] = []
        place = job.place
        if job.orphaned or (self.orphans and not job.adopted):
            self._find_orphans()
            roots += [pid for pid, owner in self.orphans.items() if owner is job]
        seen = _spawner(job) if not job.orphaned else None
        spawner_lives = seen is not None and procs.lives(seen)
        if place is not None and spawner_lives:
            roots.append(place.pid)
        if job.adopted:
            if job.pidfd >= 0:
                roots.append(job.pid)
            if place is not None and place.own:
                roots += self._of_user(place.uid)
            elif place is not None and not spawner_lives and not self._groups.there:
                roots += self._marked(job.id, place.uid)
        if job.orphaned or job.adopted:
            roots += self._groups.members(job)
        found = procs.descendants(roots)
        if place is not None and not (job.adopted and spawner):
            found.pop(place.pid, None)
        return found

    def stop_spawner(self, job: Job) -> int:
        """Stop the spawner of a job that an earlier supervisor was about to start, so that it starts nothing more while
        its processes are searched. Returns its pid; 0: it is gone."""
        place = job.place
        if place is None or _spawner(job) is None:
            return 0
        self.send(job, {place.pid: place.start}, signal.SIGSTOP)
        deadline = procs.now() + _STOP_SECONDS
        while (seen := _spawner(job)) is not None and seen.state not in "TtZX" and procs.now() < deadline:
            time.sleep(0.0005)  # another user's is stopped by another process; and it may be making one
        return place.pid if seen is not None and procs.lives(seen) else 0

    def is_still(self, job: Job) -> bool:
        """Whether its spawner is stopped, or gone."""
        return (seen := _spawner(job)) is None or seen.state in "TtZX"

    def continue_spawner(self, job: Job) -> None:
        """Continue the stopped spawner of a job: it has to note how the job ends."""
        if (place := job.place) is not None:
            self.send(job, {place.pid: place.start}, signal.SIGCONT)

    def made_by_spawner(self, job: Job) -> Made | None:
        """The main process that a stopped spawner has made of its job, if it has."""
        deadline = procs.now() + _STOP_SECONDS
        while (place := job.place) is not None and _spawner(job) is not None:
            children = {pid: seen for pid in procs.children(place.pid) if (seen := procs.stat(pid)) is not None}
            if pid := _oldest_leader(place.session, children):
                return Made(pid, children[pid].start)
            if not children or procs.now() > deadline:
                break
            time.sleep(0.0005)  # it is about to become the leader of its process group
        return None

    def _other_user(self, job: Job) -> tuple[int, int] | None:
        place = job.place
        if place is None or os.geteuid() in (0, place.uid):
            return None
        return place.uid, place.gid

    def _of_user(self, uid: int) -> list[int]:
        return [pid for pid in procs.all_pids() if accounts.uid_of_process(pid) == uid]

    def _marked(self, key: str, uid: int) -> list[int]:
        """The processes of this user that were started with the environment of this allocation: where its spawner and
        the supervisor of then are both gone, nothing else says whose they are."""
        mark = b"\0GRID_ALLOCATION_ID=%s\0" % key.encode()
        return [pid for pid in self._of_user(uid) if mark in b"\0" + read(f"/proc/{pid}/environ")]

    def _find_orphans(self) -> None:
        """Assign each new child to one of the jobs whose spawner is gone."""
        orphaned = [job for job in self.running.values() if job.orphaned]
        helpers, making = self._helpers()
        self._unsure = False
        for pid in self._children.read() - self.orphans.keys() - helpers if orphaned else ():
            seen = procs.stat(pid)
            if seen is None or not procs.lives(seen):
                self._unsure = True  # its children may be ours by now: the next call finds them
                continue
            owner = self._owner(pid, seen.session, orphaned)
            if owner is None and all(job.place is not None and job.place.own for job in orphaned):
                continue  # it has the user id of none of them
            if owner is None and making:
                self._unsure = True  # it may be a new spawner, whose pid is unknown yet
                continue
            self.orphans[pid] = owner
            if owner is None:
                self._log(f"process {pid} lost its spawner and may belong to any of {len(orphaned)} jobs: it is ended")
                procs.send(pid, seen.start, signal.SIGKILL)

    def _owner(self, pid: int, session: int, orphaned: list[Job]) -> Job | None:
        """The job of a child: by its pid, its slot's control group, user or session; else the only candidate."""
        for job in orphaned:
            place = job.place
            if pid == job.pid or pid in self._groups.members(job):
                return job
            if place is not None and (session == place.session or (place.own and _is_of(pid, place.uid))):
                return job
        strangers = [job for job in orphaned if job.place is None or not job.place.own]
        return strangers[0] if len(strangers) == 1 else None


def _next_ended() -> int:
    """Return the pid of an ended child that is not reaped yet; 0 if there is none."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return found.si_pid if found is not None else 0


def _spawner(job: Job) -> procs.Stat | None:
    """The spawner of a job, as it is now; None: it is gone."""
    place = job.place
    seen = procs.stat(place.pid) if place is not None else None
    return seen if place is not None and seen is not None and seen.start == place.start else None


def _oldest_leader(session: int, processes: Mapping[int, procs.Stat]) -> int:
    """Return the oldest leader of a process group in this session; 0: there is none."""
    leaders = [(at.start, pid) for pid, at in processes.items() if at.session == session and at.group == pid]
    return min(leaders, default=(0, 0))[1]


def _is_of(pid: int, uid: int) -> bool:
    return accounts.uid_of_process(pid) == uid


# --- freezing ---------------------------------------------------------------------------------------------------------


class Stopper:
    """Stops and continues all of a job, for `Freezer` (endings.py): by a control group where one can be made, else by
    SIGSTOP to each process until none runs. `place` is where groups with a freezer can be made (None: nowhere)."""

    def __init__(self, tree: Tree, log: Callable[[str], None], place: Place | None = None) -> None:
        self.due = NEVER
        self._tree, self._log, self._place = tree, log, place
        self._fails = False
        """Whether no more groups are made; those that there are stay."""
        self._stopped: dict[Job, dict[int, int]] = {}
        """The processes that we stopped, by job (pid to start time), in the order of stopping."""
        self._grouped: set[str] = set()
        """Jobs that may have a group of ours."""
        self._leaving: set[str] = set()
        """Those of them that are over; their groups are removed by `tidy` when `due`."""

    def adopt(self, job: Job) -> None:
        """An earlier supervisor may have stopped it."""
        self._grouped.add(job.id)
        if job.state is JobState.FROZEN:
            found = self._tree.members(job).items()
            self._stopped[job] = {pid: at.start for pid, at in found if at.state in _STOPPED}

    def stop(self, job: Job) -> None:
        """Stop all processes: by the control group, or each by SIGSTOP until no new one is found. Processes that the
        job itself has stopped are left out, and not continued later."""
        if self._as_group(job):
            return
        sent: dict[int, int] = {}
        for _ in range(_ROUNDS):
            found = self._tree.members(job).items()
            fresh = {pid: at.start for pid, at in found if sent.get(pid) != at.start and at.state not in _STOPPED}
            if not fresh:
                break
            self._tree.send(job, fresh, signal.SIGSTOP)
            sent |= fresh
        self._stopped[job] = self._stopped.get(job, {}) | sent

    def _as_group(self, job: Job) -> bool:
        if self._place is None or self._fails:
            return False
        try:
            self._grouped.add(job.id)
            cgroups.frozen(self._place, job.id, lambda: self._tree.members(job))
        except OSError as error:
            self._log(f"{error.filename} cannot be used ({error.strerror}): jobs are frozen by SIGSTOP from now on")
            cgroups.thawed(self._place, job.id)
            self._fails = True
            return False
        return True

    def resume(self, job: Job) -> None:
        """Continue all processes, in reverse order of stopping."""
        if self._place is not None:
            cgroups.thawed(self._place, job.id)
        self._tree.send(job, dict(reversed(self._stopped.pop(job, {}).items())), signal.SIGCONT)

    def forget(self, job: Job) -> None:
        """Forget a job of which nothing is left."""
        self._stopped.pop(job, None)
        if job.id in self._grouped:
            self._grouped.discard(job.id)
            self._leaving.add(job.id)
            self.tidy()

    def tidy(self) -> None:
        """Remove the groups of ended jobs that the kernel has emptied."""
        place = self._place
        self._leaving = {key for key in self._leaving if place is not None and not cgroups.left(place, key)}
        self.due = procs.now() + _AGAIN if self._leaving else NEVER
