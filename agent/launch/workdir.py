"""An allocation's files on the node: `allocs/ID` with `stdout`, `stderr` and, for a streamed input, the pipe `stdin`,
which only the agent can change; the job's own working directory `jobs/SLOT/ID`; its environment; and the notice before
a preemption or recall. `SlotIndex` keeps where the files of each allocation are across restarts."""

import contextlib
import errno
import fcntl
import fnmatch
import json
import math
import os
import re
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from distributed_grid.protocol import groups
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import Launch, Stop
from distributed_grid.runtime import beneath
from distributed_grid.runtime.faults import fault

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")


def folder(state_dir: Path, allocation: str) -> Path:
    """The folder of an allocation. Raises BadValue for an invalid id, since it becomes a path."""
    return Path(allocation_path(state_dir, allocation))


def allocation_path(state_dir: Path, allocation: str) -> str:
    """The same as a string, for what is done for every job: Path arithmetic is slow."""
    if not _ID.fullmatch(allocation):
        raise BadValue(f"{allocation!r} is not the id of an allocation")
    return f"{state_dir}/allocs/{allocation}"


_TOP_DIRECTORY = 0x00020000  # EXT4_TOPDIR_FL
_FLAGS = struct.Struct("=l")
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS
_SCARCE, _ROOM = 4 << 20, 1 << 16  # bytes that are free: with less, it is tried whether so many can be had
_SAMPLES = 8  # folders after which a place is judged by their median
_DEAR = 2.0  # times as long as in the best place: another one is taken
_TRIES = 4  # places that are tried at first
PLACES = "folders"
"""The directory in the state directory in which folders begin."""


class Folders:
    """Makes the folders of allocations where making files is cheap. An ext4 without a journal looks at each inode of a
    group that was freed in the last minutes before it takes a new one, and a directory's files are of its group: where
    many were removed, a new folder with its files takes ten times as long. There a folder begins in a directory that
    the kernel puts into any group, and is renamed; when that has become dear, there is another such directory. On other
    filesystems a folder is just made. `clock` returns seconds."""

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.perf_counter) -> None:
        self._state = state_dir
        self._allocs = f"{state_dir}/allocs"
        self._places = f"{state_dir}/{PLACES}"
        self._clock = clock
        self._place: str | None = None
        """Where folders begin; empty: where they stay. None: not known yet."""
        self._taken: list[float] = []
        self._least = math.inf
        self._tried = 0

    @fault("agent.folder")
    def make(self, allocation: str) -> None:
        """Make the folder of an allocation, where something can be written; one that is there stays. Raises OSError."""
        path = allocation_path(self._state, allocation)
        self._make(path, allocation)
        seen = os.statvfs(path)
        if seen.f_bavail * seen.f_frsize < _SCARCE:  # some of that may be for root alone, or the rest, too
            _take_room(path)

    def _make(self, path: str, allocation: str) -> None:
        if self._place is None or not os.path.isdir(self._place or self._allocs):
            self._begin()
        if not self._place:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            return
        begun = f"{self._place}/{allocation}"
        before = self._clock()
        os.mkdir(begun, 0o700)
        took = self._clock() - before
        try:
            os.rename(begun, path)
        except OSError as error:
            os.rmdir(begun)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        self._judge(took)  # last: a place that is left has to be empty

    def _begin(self) -> None:
        os.makedirs(self._allocs, 0o700, exist_ok=True)
        self._place = ""
        shutil.rmtree(self._places, ignore_errors=True)  # what an agent left that was killed
        if is_ext4_without_journal(self._allocs):
            os.mkdir(self._places, 0o700)
            if _spread(self._places):
                self._move()

    def _judge(self, seconds: float) -> None:
        """Look for another place if the last few folders took far longer than those in the best one; also among the
        first ones, so that a good one is found."""
        self._taken.append(seconds)
        if len(self._taken) < _SAMPLES:
            return
        usual = sorted(self._taken)[_SAMPLES // 2]
        self._taken.clear()
        # What was the best once is not for ever: the machine may have become slower.
        self._least = min(1.05 * self._least, usual)
        if self._tried < _TRIES or usual > _DEAR * self._least:
            self._move()

    def _move(self) -> None:
        before, self._tried = self._place, self._tried + 1
        place = f"{self._places}/{os.urandom(8).hex()}"  # by its name the kernel chooses
        os.mkdir(place, 0o700)
        self._place = place
        if before:
            with contextlib.suppress(OSError):
                os.rmdir(before)


def _take_room(folder: str) -> None:
    """Write something there, and remove it. Raises OSError."""
    path = f"{folder}/room"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _ROOM)
    finally:
        os.close(fd)
        os.unlink(path)


def is_ext4_without_journal(path: str) -> bool:
    """Whether this directory is on an ext4 without a journal."""
    with contextlib.suppress(OSError):
        device = os.stat(path).st_dev
        name = os.path.basename(os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
        return Path(f"/sys/fs/ext4/{name}/journal_task").read_text().strip() == "<none>"
    return False


def _spread(path: str) -> bool:
    """Have the kernel put the directories in this one into any groups; False if it does not."""
    with contextlib.suppress(OSError):
        fd = beneath.open_root(path)
        try:
            (flags,) = _FLAGS.unpack(fcntl.ioctl(fd, _GET_FLAGS, bytes(_FLAGS.size)))
            fcntl.ioctl(fd, _SET_FLAGS, _FLAGS.pack(flags | _TOP_DIRECTORY))
            return True
        finally:
            os.close(fd)
    return False


@contextlib.contextmanager
def opened(folder: str) -> Iterator[int]:
    """Open a directory of the agent, to open files in it; yields its descriptor. Raises OSError."""
    fd = beneath.open_root(folder)
    try:
        yield fd
    finally:
        os.close(fd)


# --- what the job gets ------------------------------------------------------------------------------------------------

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def inherited(base: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The variables of the agent's environment that a job inherits: those with these names, which may hold
    wildcards."""
    return {name: base[name] for name in base if any(fnmatch.fnmatchcase(name, one) for one in names)}


def build_env(
    launch: Launch, node: str, directory: Path | None, base: Mapping[str, str], gpus: Mapping[str, str]
) -> dict[str, str]:
    """Return the job's environment: `base` (inherited from the agent), the grid's variables, those that show its
    `gpus`, and the job's own. For a job with a directory of its own (None) the supervisor adds the variables that name
    it."""
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **base}
    grant = launch.grant
    env |= {
        "GRID_JOB_ID": launch.job,
        "GRID_NODE": node,
        "PYTHONUNBUFFERED": "1",
    }
    env |= gpus
    if directory is not None:
        env |= {"GRID_WORKDIR": str(directory), "PWD": str(directory)}
    env |= dict.fromkeys(_THREADS, str(max(1, len(grant.cores) + len(grant.slack))))
    if launch.gang is not None:
        env |= groups.environment(launch.gang)
    env |= launch.spec.env
    env["GRID_ALLOCATION_ID"] = launch.allocation
    return env


_SPARE = 1000


class Place(NamedTuple):
    """The place of an allocation's files: its slot, the directory that was named for it, if any, and their owner."""

    slot: str = ""
    user: str = ""
    workdir: str = ""


class SlotIndex:
    """The file `slots` in the state directory, one line per allocation. Lines lost in a power cut are recent: without
    them the files of these jobs are not found, and are removed with their slot. The loop notes places while a thread
    forgets those of removed jobs, so that both take turns."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "slots"
        self._turn = threading.Lock()
        self._places: dict[str, Place] = {}
        with contextlib.suppress(OSError):
            for line in self._path.read_text().splitlines():
                allocation, _, rest = line.partition(" ")
                slot, _, about = rest.partition(" ")
                with contextlib.suppress(ValueError, TypeError):  # a line that was cut
                    self._places[allocation] = Place(slot, *map(str, json.loads(about or "[]")))
        self._lines = len(self._places)
        self._fd = -1

    def note(self, allocation: str, place: Place) -> None:
        """Record the place of an allocation. If the write fails, only the job's files are lost after a restart."""
        if self._places.get(allocation) == place:
            return
        with self._turn:
            self._places[allocation] = place
            with contextlib.suppress(OSError):
                if self._fd < 0:
                    self._fd = _private(str(self._path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.write(self._fd, _line(allocation, place))
                self._lines += 1

    def find(self, allocation: str) -> Place:
        """The place of an allocation; an empty one if it is unknown."""
        return self._places.get(allocation, _NOWHERE)

    def slot(self, allocation: str) -> str:
        """The name of its slot; empty if unknown."""
        return self.find(allocation).slot

    def in_use(self) -> set[str]:
        """The slots of all known allocations."""
        with self._turn:
            return {place.slot for place in self._places.values()}

    def forget(self, allocation: str) -> None:
        """Forget an allocation. The file is rewritten when most of its lines are obsolete."""
        with self._turn:
            known = self._places.pop(allocation, None) is not None
            if known and self._lines > 2 * len(self._places) + _SPARE:
                fresh = self._path.with_suffix(".new")
                with contextlib.suppress(OSError):
                    with open(fresh, "wb", opener=_private) as file:
                        file.writelines(_line(one, place) for one, place in self._places.items())
                    os.replace(fresh, self._path)
                    self._close()
                    self._lines = len(self._places)

    def close(self) -> None:
        """Close the file; the next note opens it."""
        with self._turn:
            self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_NOWHERE = Place()


def _line(allocation: str, place: Place) -> bytes:
    return f"{allocation} {place.slot} {json.dumps(place[1:])}\n".encode()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


RECALL_VARIABLE = "GRID_RECALL_FILE"
RECALLS = "recalls"
RECALL_CAUSES = frozenset({Cause.PREEMPTED, Cause.RECALLED, Cause.DRAINED, Cause.RELEASED})


def recall_path(state_dir: Path, allocation: str) -> str:
    """The path of an allocation's notice: in a directory that jobs can read but not change."""
    allocation_path(state_dir, allocation)  # checks the id
    return f"{state_dir}/{RECALLS}/{allocation}"


def write_recall(state_dir: Path, stop: Stop, left: float) -> None:
    """Write the notice of this stop, which leaves the job so many seconds, if it takes its place back; an existing one
    stays. Raises OSError."""
    if stop.cause not in RECALL_CAUSES or not os.path.isdir(allocation_path(state_dir, stop.allocation)):
        return
    said = {"cause": stop.cause, "reason": stop.text, "seconds": left, "deadline": round(time.time() + left, 3)}
    content = msgspec.json.encode(said) + b"\n"
    with opened(make_recalls(state_dir)) as recalls:
        beneath.create_whole(recalls, stop.allocation, content, 0o644)  # the job may be another user's


def make_recalls(state_dir: Path) -> str:
    """Make the directory of all notices, which others can enter but not list. Raises OSError."""
    path = f"{state_dir}/{RECALLS}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    os.chmod(path, 0o711)  # noqa: S103 (in, but no list)
    return path


def remove_recall(state_dir: Path, allocation: str) -> None:
    """Remove the notice of an allocation that is over. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(recall_path(state_dir, allocation))
