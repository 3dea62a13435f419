"""Limits of jobs: memory, processes, cores (enforced by control groups, else by polling), and disk space for output
(`Outputs`); and the niceness of jobs that give way. Stdlib only."""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Collection

from distributed_grid.agent.cgroups.groups import Cgroups, SlotGroups, amounts_of
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import NEVER, READER, Job
from distributed_grid.agent.supervisor.procs import punch_hole
from distributed_grid.agent.supervisor.tree import Tree
from distributed_grid.agent.walls.enclosure import NAMESPACE
from distributed_grid.runtime import beneath

_SOONEST, _LATEST = 0.05, 0.45  # seconds to the next look at a job
_FAST = 4 << 30  # bytes a second that a job may begin to grow by at any time
_SHARE = 0.03  # of one core, for all looks together
_DYING = 2.0  # seconds that a process may take from its kill for lack of memory until we hear of its end
_KILLED_CODE = 137  # what a shell ends with when its command was killed by SIGKILL


class _Watched:
    """A running job, with the interval in which it is to be checked next."""

    def __init__(self, job: Job, now: float) -> None:
        self.job = job
        self.early = self.due = now
        self.entered = False


class Limits:
    """The limits of all running jobs. `end` ends a job above its limits, with cause, text and grace; `strayed` is
    called once for a job that left its cores; `oom_score` is the least of its processes. `due` is when a check is due,
    or earlier (seconds since boot)."""

    def __init__(
        self,
        tree: Tree,
        cgroups: Cgroups,
        slot_groups: SlotGroups,
        end: Callable[[Job, str, str, float], None],
        strayed: Callable[[Job, str], None],
        oom_score: int,
    ) -> None:
        self.due = NEVER
        self._oom_score = oom_score
        self._tree = tree
        self._cgroups = cgroups
        self._slot_groups = slot_groups
        self._end = end
        self._tell_strayed = strayed
        self._watched: dict[str, _Watched] = {}
        self._strayed: set[str] = set()
        self._oom_kills = procs.oom_kills()
        self._killed_at = -_DYING
        self._oom_read_at = procs.now()

    def restore(self, job: Job) -> None:
        """The job is from an earlier supervisor, which may have made groups for it."""
        self._cgroups.find(job)

    def clear(self, ended: Collection[str]) -> None:
        """Remove the groups of these jobs, which an earlier supervisor may have left."""
        for key in self._cgroups.all_known().intersection(ended):
            self._cgroups.release(key)
        self._sweep(procs.now())

    def admit(self, job: Job, spawner: int) -> None:
        """Prepare the first process of a job, which its spawner is about to make: the process is in the job's groups
        from the start, where needed."""
        if (now := procs.now()) - self._oom_read_at > _DYING:  # whom the kernel killed meanwhile was not of ours
            self._oom_kills, self._oom_read_at = procs.oom_kills(), now
        self._slot_groups.begins(job)
        if job.memory or job.cpu_limit:
            self._cgroups.make(job.id, amounts_of(job), guests=1, at_home=False)
            self._cgroups.enter(job.id, spawner)

    def admitted(self, job: Job, spawner: int) -> None:
        """Let the spawner leave the groups of a job, after the first process was made, or failed."""
        if job.memory or job.cpu_limit:
            self._slot_groups.park(job, spawner)
            self._cgroups.settle(job.id, amounts_of(job))

    def confines(self, job: Job) -> bool:
        """Whether a job has groups of its own from its start."""
        return bool(job.memory or job.cpu_limit) and self._cgroups.limits(job)

    def watch(self, job: Job, now: float) -> None:
        """The job runs from now on."""
        watched = self._watched[job.id] = _Watched(job, now)
        if not job.adopted and (job.memory or job.cpu_limit):
            self._confine(watched)
            self._weigh()
        self._plan(watched, 0, 0.0, now)

    def leave(self, job: Job) -> None:
        """Release the groups of a job of which nothing is left."""
        self._watched.pop(job.id, None)
        self._strayed.discard(job.id)
        self._slot_groups.over(job)
        confined = bool(job.confined) or self.confines(job)  # also one that was admitted and then not started
        if confined:
            self._cgroups.release(job.id)
        if confined or job.adopted:
            self._sweep(procs.now())

    def _sweep(self, now: float) -> None:
        """Remove groups; the kernel may need a moment after the last process."""
        if not self._cgroups.sweep():
            self.due = min(self.due, now + _LATEST)

    def poll(self, now: float) -> None:
        """Run the checks that are due or nearly due: one wake-up for many."""
        if now < self.due:
            return
        self._kernel_killed(now)
        self.due = NEVER
        for watched in [*self._watched.values()]:
            if watched.early <= now:
                began = time.perf_counter()
                if not watched.entered:
                    self._confine(watched)
                used = self._measure(watched.job)
                self._plan(watched, used, time.perf_counter() - began, now)
            self.due = min(self.due, watched.due)
        self._weigh()
        self._sweep(now)

    def judge(self, job: Job) -> None:
        """Set the cause of a job's end if the kernel took or refused it something. Nothing of it is left.

        Outside of cgroups the kernel counts the processes it killed for lack of memory, but does not say whose they
        were. So it is a job that was killed, and not by the supervisor, when that count had just risen.
        """
        if job.cause or job.status is None or job.status < 0:
            return
        code = os.waitstatus_to_exitcode(job.status)
        refused = self._cgroups.refused(job)
        forks = refused.forks + self._slot_groups.forks_refused(job)
        fell = code in (-9, _KILLED_CODE) and self._kernel_killed(procs.now())
        if (code and refused.oom_kills) or (fell and 0 < job.memory < job.peak):
            job.cause, job.text = "out-of-memory", _over_memory(job)
        elif code and forks:
            job.cause = "too-many-processes"
            job.text = f"its limit of {job.pids} processes and threads kept it {forks} times from making another"
        elif fell:
            own = f"was below its own limit of {_size(job.memory)}" if job.memory else "has no limit of its own"
            job.cause = "node-out-of-memory"
            job.text = f"the node ran out of memory, and the kernel killed it; it {own} (peak {_size(job.peak)})"

    def _kernel_killed(self, now: float) -> bool:
        """Whether the kernel's OOM killer acted a moment ago."""
        count, self._oom_read_at = procs.oom_kills(), now
        if count != self._oom_kills:
            self._oom_kills, self._killed_at = count, now
        return now - self._killed_at < _DYING

    def _weigh(self) -> None:
        self._slot_groups.weigh([watched.job for watched in self._watched.values()])

    def _confine(self, watched: _Watched) -> None:
        watched.entered = True
        self._cgroups.confine(watched.job, lambda: self._tree.members(watched.job))

    def _plan(self, watched: _Watched, used: int, cost: float, now: float) -> None:
        """Schedule the next check: before it can exceed its limit, as far as the cost of checks allows."""
        limit = watched.job.memory
        wait = min(max((limit - used) / _FAST, _SOONEST), _LATEST) if limit else _LATEST
        wait = max(wait, cost * len(self._watched) / _SHARE)
        watched.early, watched.due = now + 0.8 * wait, now + wait
        self.due = min(self.due, watched.due)

    def _measure(self, job: Job) -> int:
        """Check its limits; returns its memory in bytes."""
        members = self._tree.members(job)
        used = sum(procs.resident(pid, seen) for pid, seen in members.items())
        if job.memory and used > job.memory:
            # Files that are mapped, and pages that a fork shares, do not count, or count once. Seeing that is dear.
            used = min(used, sum(map(procs.unreclaimable, members)))
        job.peak = max(job.peak, used)
        if job.adopted or _ends_with_spawner(job):  # should its spawner be killed, too, nobody else can tell
            job.cpu = max(job.cpu, sum(procs.cpu_seconds(pid, seen.start) for pid, seen in members.items()))
        if job.unasked:
            count = sum(seen.threads for seen in members.values())
            if job.memory and (used > job.memory or self._cgroups.refused(job).oom_kills):
                self._end(job, "out-of-memory", _over_memory(job), 0.0)
            elif job.pids and count > job.pids:
                text = f"had {count} processes and threads at once, and its limit is {job.pids}"
                self._end(job, "too-many-processes", text, 0.0)
        if job.cores and "cpuset" not in job.confined:
            self._keep_on_cores(job, members)
        if job.nice > 0:
            self._keep_nice(job, members)
        self._keep_oom_score(job, members)
        return used

    def _keep_oom_score(self, job: Job, members: dict[int, procs.Stat]) -> None:
        """Raise the scores of processes that lowered them: any may, down to the agent's own, where that has no
        CAP_SYS_RESOURCE."""
        low = {
            pid: seen.start
            for pid, seen in members.items()
            if (score := procs.oom_score(pid)) is not None and score < self._oom_score
        }
        if low:
            self._tree.set_oom_score(job, low, self._oom_score)

    def _keep_nice(self, job: Job, members: dict[int, procs.Stat]) -> None:
        """Raise the niceness of the job's sessions, since each that it makes begins with a normal weight, and that of
        threads that have less than a job that has given way. What these start has it too, but for what was being
        started meanwhile: that is found by the next check."""
        sessions = {seen.session: pid for pid, seen in members.items()}
        eager = []
        if job.reniced:
            for thread in (thread for pid in members for thread in procs.threads(pid)):
                with contextlib.suppress(OSError):  # it is gone
                    if os.getpriority(os.PRIO_PROCESS, thread) < job.nice:
                        eager.append(thread)
        elif job.place is not None:  # that of its spawner has it from its start
            sessions.pop(job.place.session, None)
        found = {pid: procs.session_niceness(pid) for pid in sessions.values()}
        late = [pid for pid, nice in found.items() if nice is not None and nice < job.nice]
        if eager or late:
            self._tree.renice(job, eager, late)

    def _keep_on_cores(self, job: Job, members: dict[int, procs.Stat]) -> None:
        """Reset the affinity of threads that left the job's cores, as `taskset` lets any process do."""
        left: dict[int, set[int]] = {}
        for pid, seen in members.items():
            for thread in procs.threads(pid) if seen.threads > 1 else (pid,):
                with contextlib.suppress(OSError):  # it is gone
                    cores = os.sched_getaffinity(thread)
                    now = procs.stat(pid) if not cores <= job.cores else None
                    if now is not None and now.start == seen.start:
                        left[thread] = cores & job.cores or {*job.cores}
        self._tree.set_cores(job, left)
        if left and job.id not in self._strayed:
            self._strayed.add(job.id)
            self._tell_strayed(
                job, f"thread {min(left)} had left the job's cores and is put back; so is what follows it"
            )


def _ends_with_spawner(job: Job) -> bool:
    """Whether the kernel ends all of it with its spawner, and reports its use to no process."""
    return job.place is not None and job.place.walls == NAMESPACE


def _over_memory(job: Job) -> str:
    """Describe a job that exceeded its memory. Its peak is set to its limit at least: the kernel has seen what the
    samples may have missed."""
    job.peak = max(job.peak, job.memory)
    return f"used more memory than its limit of {_size(job.memory)} (peak {_size(job.peak)})"


def _size(count: float) -> str:
    """Format bytes as protocol/resources.py does."""
    for unit in ("B", "K", "M", "G"):
        if count < 1024:
            return f"{count:.1f}".removesuffix(".0") + unit
        count /= 1024
    return f"{count:.1f}".removesuffix(".0") + "T"


# --- output -----------------------------------------------------------------------------------------------------------

KEPT_FIRST = 1 << 20
READER_SECONDS = 60.0
"""Seconds for which a reader that says nothing counts as attached; the job continues without it then."""
MOST_READERS = 16
RUNAWAY = 2 << 30
"""Bytes by which the unread part of a stream may exceed the limit before it is cut all the same: of a job that cannot
be stopped."""
STREAMS = ("stdout", "stderr")
_BLOCK = 4096
_NOTE_BYTES = 100
_OUTPUT_FAST = 8 << 30  # bytes a second that a stream may begin to grow by at any time
_OUTPUT_SOONEST, _OUTPUT_LATEST = 0.02, 1.0  # seconds to the next look at a stream


class _Stream:
    """An output file: its size when it was looked at last and when that was, and from when until when it is to be
    looked at again. `file` is which one it is (device and inode), so that nothing else is ever cut in its place.
    `cut` is the end of what was cut out of it, `behind` how many bytes that are there its slowest reader has not read.
    `uncut`: it takes more than it may, and could not be cut."""

    def __init__(self, folder: str, name: str, now: float) -> None:
        self.path = f"{folder}/{name}"
        self.name = name
        self.file: tuple[int, int] | None = None
        self.size = self.cut = self.behind = 0
        self.seen = now
        self.early = self.due = now
        self.uncut = self.dropped = False


class _Reader:
    """An attached reader: until when it counts as such without another word, and how far it has read each stream."""

    def __init__(self, until: float = 0.0) -> None:
        self.until = until
        self.read = dict.fromkeys(STREAMS, 0)


class _Output:
    """Both streams of a job, and its attached readers."""

    def __init__(self, job: Job, streams: dict[str, _Stream]) -> None:
        self.job = job
        self.streams = streams
        self.readers: dict[str, _Reader] = {}


class Outputs:
    """The output of all jobs that run, each stream at most `limit` bytes on disk. A stream is looked at again before it
    can take half as much again as it may, growing as fast as it did, or as fast as a job may begin to write at any
    time: with the usual limit some 25 times a second, which costs microseconds. `due` is when one is due, or earlier
    (seconds since boot).

    Of a job that somebody reads along with, nothing is cut that the reader has not read. A job whose reader is more
    than `limit` bytes behind is frozen (`freeze`, with the reason) until it is half of that; so a stream exceeds the
    limit by what a job can write until it was looked at and stopped. A reader that is silent for READER_SECONDS is
    gone. An attached job, and one of an earlier supervisor, is expected to have a reader as long."""

    def __init__(
        self,
        folder: str,
        limit: int,
        log: Callable[[str], None],
        freeze: Callable[[Job, str], None] = lambda job, why: None,
        thaw: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self.due = NEVER
        self.limit = limit
        self._folder = folder
        self._log, self._freeze, self._thaw = log, freeze, thaw
        self._outputs: dict[str, _Output] = {}

    def watch(self, job: Job, now: float) -> None:
        """The job writes from now on."""
        folder = f"{self._folder}/{job.id}"
        output = _Output(job, {name: _Stream(folder, name, now) for name in STREAMS})
        for stream in output.streams.values():
            _stat(stream)
            if job.adopted:
                stream.cut = _noted(stream)
            self._plan(output, stream, 0, 0, now)
            self.due = min(self.due, stream.due)
        if (job.attached or job.adopted) and not job.gently:
            output.readers[""] = _Reader(now + READER_SECONDS)
        self._outputs[job.id] = output

    def may_exceed(self, seconds: float) -> bool:
        """Whether a job may have written more than the limit in this time."""
        return seconds * _OUTPUT_FAST > self.limit

    def leave(self, key: str) -> None:
        """The allocation has ended: cut its output a last time."""
        if (output := self._outputs.pop(key, None)) is not None:
            for stream in output.streams.values():
                self._bound(output, stream)

    def read(self, key: str, reader: str, name: str, offset: int, now: float) -> None:
        """An attached reader has read this stream up to there."""
        output = self._outputs.get(key)
        if output is None or name not in STREAMS or output.job.gently:
            return
        readers = output.readers
        readers.pop("", None)  # the one that was expected
        if reader not in readers and len(readers) >= MOST_READERS:
            del readers[min(readers, key=lambda one: readers[one].until)]
        known = readers.setdefault(reader, _Reader())
        known.until = now + READER_SECONDS
        known.read[name] = max(known.read[name], offset)
        self._check(output, now, all_streams=True)

    def poll(self, now: float) -> None:
        """Check what is due or nearly due, and cut what is too long: one wake-up for many."""
        if now < self.due:
            return
        self.due = NEVER
        for output in self._outputs.values():
            self._check(output, now)

    def _check(self, output: _Output, now: float, all_streams: bool = False) -> None:
        output.readers = {name: one for name, one in output.readers.items() if one.until > now}
        for stream in output.streams.values():
            if all_streams or stream.early <= now:
                self._plan(output, stream, *self._bound(output, stream), now)
        self._judge(output, now)
        self.due = min(self.due, *(stream.due for stream in output.streams.values()))

    def _judge(self, output: _Output, now: float) -> None:
        """Freeze a job whose reader is too far behind, and let it continue once it is not."""
        job, most = output.job, max(output.streams.values(), key=lambda stream: stream.behind)
        frozen = READER in job.freezes
        if frozen and most.behind <= self.limit // 2:
            self._thaw(job)
            for stream in output.streams.values():  # it may begin to write at once
                stream.early = stream.due = now + _OUTPUT_SOONEST
        elif frozen or (job.unasked and most.behind > self.limit):
            # Again where it is frozen: a freeze of an earlier supervisor would expire.
            self._freeze(job, f"{_size(most.behind)} of {most.name} unread")

    def _plan(self, output: _Output, stream: _Stream, used: int, size: int, now: float) -> None:
        grown = (size - stream.size) / (now - stream.seen) if now > stream.seen else 0.0
        room = 1.25 * self.limit - used  # the other quarter is for a look that comes late
        wait = (
            _OUTPUT_LATEST
            if stream.uncut or READER in output.job.freezes
            else min(max(room / max(grown, _OUTPUT_FAST), _OUTPUT_SOONEST), _OUTPUT_LATEST)
        )
        stream.size, stream.seen = size, now
        stream.early, stream.due = now + wait / 2, now + wait

    def _bound(self, output: _Output, stream: _Stream) -> tuple[int, int]:
        """If a stream exceeds the limit, punch out everything except its first MiB, its last half limit and what is not
        read. Returns its disk use then, and its size."""
        path, limit = stream.path, self.limit
        seen = _stat(stream)
        if seen is None:
            stream.behind = 0
            return 0, 0
        used, size = seen.st_blocks * 512, seen.st_size
        read = min((one.read[stream.name] for one in output.readers.values()), default=size)
        if read < size - limit // 2 and self._too_much(output, stream, used):
            read = size
        stream.behind = max(0, size - max(read, stream.cut))
        end = min(size - limit // 2, read) // _BLOCK * _BLOCK
        if used <= limit or end <= max(KEPT_FIRST, stream.cut + limit // 8):
            return used, size
        try:
            _cut(stream, end)
        except OSError as error:
            if not stream.uncut:
                self._log(f"{path} takes more than {limit} bytes and cannot be cut ({error.strerror})")
            stream.uncut = True
            return used, size
        stream.uncut, stream.cut = False, end
        return size - end + KEPT_FIRST, size

    def _too_much(self, output: _Output, stream: _Stream, used: int) -> bool:
        """Whether what is not read can be kept no longer, as the job writes and is not stopped."""
        job = output.job
        if job.over or used <= 2 * self.limit:
            return False
        if job.unasked and used <= self.limit + RUNAWAY:
            return False
        if not stream.dropped:
            self._log(f"{stream.path} takes {used} bytes, so its reader loses some: the job is not to be stopped")
        stream.dropped = True
        return True


def _stat(stream: _Stream) -> os.stat_result | None:
    """Stat of the stream's file; None if it is missing or replaced."""
    try:
        seen = os.lstat(stream.path)
    except OSError:
        return None
    if not stat.S_ISREG(seen.st_mode):
        return None
    if stream.file is None:
        stream.file = seen.st_dev, seen.st_ino
    return seen if stream.file == (seen.st_dev, seen.st_ino) else None


def _noted(stream: _Stream) -> int:
    """The end of what an earlier supervisor cut out of it."""
    above, name = os.path.split(stream.path)
    try:
        folder = beneath.open_root(above)
        try:
            return int(beneath.read_whole(folder, f"{name}.gap", _NOTE_BYTES).split()[1])
        finally:
            os.close(folder)
    except (OSError, ValueError, IndexError):
        return 0


def _cut(stream: _Stream, end: int) -> None:
    above, name = os.path.split(stream.path)
    folder = beneath.open_root(above)
    try:
        fd = beneath.open_regular(folder, name, os.O_RDWR)
        try:
            seen = os.fstat(fd)
            if (seen.st_dev, seen.st_ino) != stream.file:
                raise OSError(errno.ESTALE, "another file took its place")
            # The note first: a reader that saw the hole without it would take the zeros for output.
            beneath.replace_whole(folder, f"{name}.gap", b"%d %d\n" % (KEPT_FIRST, end))
            punch_hole(fd, KEPT_FIRST, end)
        finally:
            os.close(fd)
    finally:
        os.close(folder)
