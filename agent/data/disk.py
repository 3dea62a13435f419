"""The disk of a node: retention of ended jobs' files, bounded by age, count and bytes (the oldest of the user with the
most go first), and checks for space: a node whose disk is full declines jobs and offers nothing."""

import asyncio
import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from distributed_grid.agent.data.job_files import JobFiles
from distributed_grid.agent.launch import workdir
from distributed_grid.agent.launch.workdir import SlotIndex
from distributed_grid.agent.walls import files
from distributed_grid.agent.walls.enclosure import OWN_TMP
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.unix import boot_clock

log = get_logger("agent")

_DAY = 86400.0
_GONE = ".gone-"
"""Prefix of folders that are being removed. No allocation has such an id."""
SWEEP_INTERVAL = 60.0
LOGS = ("supervisor.log", "agent.log")
"""The logs beside a node's state; the second only where its agent was started over ssh without systemd."""
LOG_BYTES = 4 << 20
"""Maximum size of a log before it is rotated; one old log is kept."""
PATIENCE = 30.0
"""Timeout for measuring or removing one allocation's files (s): a surviving process may keep changing them. The next
sweep tries again."""
MEASURING = 60.0
"""Seconds of one sweep after which no other allocation's files are measured; the next sweep goes on with them."""
LEAST_FREE = 16 << 20
"""Free bytes that retention keeps, and as many inodes as are made for so many bytes: with less, files of the users with
more than as much are removed."""
DAMAGED = 3
"""Maximum number of damaged journals kept for inspection: the first ones, which show how it began."""


@dataclass(frozen=True)
class Bounds:
    """The most that is kept of ended jobs: days, number of jobs, bytes on disk."""

    days: float = 1.0
    jobs: int = 1000
    size: int = 10 << 30


class _Leftover(NamedTuple):
    """Files of an ended job: when it ended, its user, and bytes on disk (0 until they are measured)."""

    since: float
    user: str
    size: int = 0


class Retention:
    """The folders below `allocs` in a state directory, and the working directories of these allocations (`slots` maps
    them to slots, `jobs` has access); beside these, only its own /tmp remains in a slot that is `private`. Ages count
    on the boot clock, which cannot be set, from when this agent first saw that the job had ended; those of an earlier
    agent count from the start."""

    def __init__(
        self,
        state_dir: Path,
        bounds: Bounds,
        slots: SlotIndex,
        jobs: JobFiles,
        clock: Callable[[], float] = boot_clock,
        private: Callable[[str], bool] = lambda slot: False,
    ) -> None:
        self._dir = state_dir
        self._slots, self._jobs, self._private = slots, jobs, private
        self._unused: set[str] = set()
        self._strays: dict[str, set[str]] = {}
        """By slot, names in its directory that were no allocation's at the last sweep."""
        self._clean: dict[str, int] = {}
        """By slot, the time of change of its directory when there were none."""
        self._allocs = state_dir / "allocs"
        self._bounds = bounds
        self._clock = clock
        self._over: dict[str, _Leftover] = {}  # the oldest first
        self._unmeasured: list[str] = []

    async def run(self, live: Collection[str]) -> None:
        """Sweep regularly, for ever."""
        while True:
            try:
                if gone := await self.sweep(live):
                    log.info("removed what old jobs left", allocations=gone)
            except OSError as error:
                log.warning("what old jobs left cannot be looked at", why=str(error))
            await asyncio.sleep(SWEEP_INTERVAL)

    async def sweep(self, live: Collection[str]) -> int:
        """Remove what exceeds the bounds; returns the number of removed folders. Allocations in `live`, all that run or
        are not acknowledged, are never removed; it is read again throughout. Raises OSError if the disk cannot be
        read."""
        # `live` is updated before a folder is made: a folder listed first and not in `live` then is of an ended job.
        names = await asyncio.to_thread(_names, self._allocs)
        over = names.difference(live)
        self._over = {name: seen for name, seen in self._over.items() if name in over}
        self._unmeasured = [name for name in self._unmeasured if name in self._over]
        for name, user in await asyncio.to_thread(self._users, over.difference(self._over)):
            self._over[name] = _Leftover(self._clock(), user)
            self._unmeasured.append(name)
        each = 0
        if _free(self._dir) < LEAST_FREE:  # a later job of the same slot may have added to what was measured
            self._unmeasured, each = [*self._over], _inode(os.statvfs(self._dir))
        for name, size in await asyncio.to_thread(self._measure, each):
            self._over[name] = self._over[name]._replace(size=size)
        gone = [name for name in self._excess() if name not in live and self._set_aside(name)]
        await asyncio.to_thread(self._clear, live)
        return len(gone)

    def _users(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """The user of each, ordered by last modification."""
        ordered = sorted(names, key=lambda name: _touched(self._allocs / name))
        return [(name, self._slots.find(name).user) for name in ordered]

    def _measure(self, each: int) -> list[tuple[str, int]]:
        """Return the bytes on disk of folders that are not measured yet, with `each` more for each file, the oldest
        first, as far as the time of one sweep allows: a long measurement does not delay removal by age or count."""
        found = []
        end = time.monotonic() + MEASURING
        while self._unmeasured and time.monotonic() < end:
            name = self._unmeasured.pop(0)
            slot = self._slots.slot(name)
            size = _bytes(f"{self._allocs}/{name}", each) + (self._jobs.size(slot, name, each) if slot else 0)
            found.append((name, size))
        return found

    def _excess(self) -> list[str]:
        """Return the folders that exceed the bounds: those that are too old, and then the oldest of the user with the
        most, by count and by bytes."""
        long_ago = self._clock() - self._bounds.days * _DAY
        gone = [name for name, left in self._over.items() if left.since <= long_ago]
        kept: dict[str, list[str]] = {}
        for name, left in reversed(self._over.items()):
            if left.since > long_ago:
                kept.setdefault(left.user, []).append(name)  # the oldest last
        sizes = {user: sum(self._over[name].size for name in names) for user, names in kept.items()}
        lacks = LEAST_FREE - _free(self._dir) - sum(self._over[name].size for name in gone)

        def drop(user: str) -> int:
            gone.append(name := kept[user].pop())
            size = self._over[name].size
            sizes[user] -= size
            return size

        for _ in range(sum(map(len, kept.values())) - self._bounds.jobs):
            lacks -= drop(max(kept, key=lambda one: len(kept[one])))
        while sum(sizes.values()) > self._bounds.size:
            lacks -= drop(max(sizes, key=lambda one: sizes[one]))
        # A running job may be filling the disk: users with few leftovers keep them.
        while lacks > 0 and max(sizes.values(), default=0) > LEAST_FREE:
            lacks -= drop(max(sizes, key=lambda one: sizes[one]))
        return gone

    def _set_aside(self, name: str) -> bool:
        """Rename it at once, since removal takes time and the same launch may come again."""
        try:
            os.rename(f"{self._allocs}/{name}", f"{self._allocs}/{_GONE}{name}")
        except OSError:
            return False  # tried again by the next sweep
        with contextlib.suppress(OSError, BadValue):  # a folder that was no allocation's has no notice
            workdir.remove_recall(self._dir, name)
        del self._over[name]
        return True

    def _clear(self, live: Collection[str]) -> None:
        with contextlib.suppress(FileNotFoundError), workdir.opened(str(self._allocs)) as allocs:
            for name in sorted(os.listdir(allocs)):
                if name.startswith(_GONE):
                    self._clear_one(allocs, name)
        self._clear_slots(live)
        for name in LOGS:
            _rotate(self._dir / name)
        damaged = sorted(self._dir.glob("journal.corrupt-*"), key=lambda path: (len(path.name), path.name))
        for path in damaged[DAMAGED:]:
            path.unlink(missing_ok=True)

    def _clear_slots(self, live: Collection[str]) -> None:
        """Remove the directories of slots without spawner or kept allocation, and of what is in the others all that is
        no allocation's. A new slot has neither yet, so it has to be unused for two sweeps."""
        with contextlib.suppress(FileNotFoundError):  # before the first supervisor
            slots = {*os.listdir(self._dir / "jobs")}
            unused = slots - {*os.listdir(self._dir / "spawners")} - self._slots.in_use()
            for slot in unused & self._unused:
                try:
                    self._jobs.remove_slot(slot)
                except (OSError, GridError) as error:
                    log.warning("what an old slot left cannot be removed now", name=slot, why=str(error))
            self._unused = unused
            self._clear_strays(slots - unused, live)

    def _clear_strays(self, slots: set[str], live: Collection[str]) -> None:
        """Remove what jobs left in the directories of their slots, beside their own: it would not be measured, and
        would stay as long as the slot. It has to be there for two sweeps: an allocation may have come since the names
        were listed. One that is being prepared may have a directory here before its folder: it is in `live`."""
        before, self._strays = self._strays, {}
        self._clean = {slot: changed for slot, changed in self._clean.items() if slot in slots}
        for slot in slots:
            try:
                changed = os.lstat(self._dir / "jobs" / slot).st_ctime_ns
                if self._clean.get(slot) == changed:
                    continue
                names = {*self._jobs.names(slot)}.difference(OWN_TMP.values() if self._private(slot) else ())
                own = {name for name in names if self._slots.slot(name) in ("", slot)}
                kept = {name for name in own if os.path.lexists(f"{self._allocs}/{name}")}
                if kept == names:
                    self._clean[slot] = changed
                    continue
                self._strays[slot] = names - kept - own.intersection(live)
                end = time.monotonic() + PATIENCE
                for name in self._strays[slot] & before.get(slot, set()):
                    if time.monotonic() < end and name not in live:  # asked again: it may be launched by now
                        self._jobs.remove(slot, name)
            except (OSError, GridError) as error:
                log.warning("what jobs left beside their directories cannot be removed now", name=slot, why=str(error))

    def _clear_one(self, allocs: int, name: str) -> None:
        allocation = name.removeprefix(_GONE)
        try:
            if slot := self._slots.slot(allocation):
                self._jobs.remove(slot, allocation)
            _remove(allocs, name)
            self._slots.forget(allocation)
        except (OSError, GridError) as error:
            log.warning("what an old job left cannot be removed now", name=name, why=str(error))


def _names(allocs: Path) -> set[str]:
    with contextlib.suppress(FileNotFoundError), os.scandir(allocs) as entries:
        return {one.name for one in entries if one.is_dir(follow_symlinks=False) and not one.name.startswith(_GONE)}
    return set()


def _free(path: Path) -> int:
    """Bytes available for writing, or those for which as many inodes are made as are available, if these are fewer; a
    large number where unknown, as on a filesystem (FUSE) that says it has no blocks at all."""
    try:
        seen = os.statvfs(path)
    except OSError:
        return LEAST_FREE
    if not seen.f_blocks:
        return LEAST_FREE
    free, inode = seen.f_bavail * seen.f_frsize, _inode(seen)
    return min(free, seen.f_favail * inode) if inode else free


def _inode(seen: os.statvfs_result) -> int:
    """Bytes of a filesystem for each of its inodes; 0 where it has any number of these."""
    return seen.f_blocks * seen.f_frsize // seen.f_files if seen.f_files else 0


def _bytes(path: str, each: int) -> int:
    """Bytes on disk of a directory's contents, or of the part that can be read in limited time. `each`: as of
    files.measure."""
    with contextlib.suppress(OSError), workdir.opened(path) as root:
        return files.measure(root, PATIENCE, each)
    return 0


def _touched(path: Path) -> float:
    times = [0.0]
    for one in (path, path / "stdout", path / "stderr"):
        with contextlib.suppress(OSError):
            times.append(os.lstat(one).st_mtime)
    return max(times)


def _remove(allocs: int, name: str) -> None:
    """Remove these few names, as most jobs leave no others; a search costs three times as much as removing them."""
    try:
        for inner in ("stdout", "stderr"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{name}/{inner}", dir_fd=allocs)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(f"{name}/workdir", dir_fd=allocs)
        os.rmdir(name, dir_fd=allocs)
    except OSError:
        files.remove(allocs, os.fsencode(name), PATIENCE)


def _rotate(log: Path) -> None:
    """Rotate a log that a process holds open for appending: the file has to stay the same one."""
    with contextlib.suppress(OSError):
        if log.stat().st_size > LOG_BYTES:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)


SPACE_NEEDED = 4 << 20
"""Bytes that must be free: for a job's spec, its directory, and the supervisor's journal, which grows by a MiB."""
CHECK_INTERVAL = 10.0
RETRY_INTERVAL = 1.0
"""Interval between checks (s), while all is well and while it is not."""


class Disk:
    """`trouble` says why no job can be started; empty: jobs can be. `changed` is called when that changes."""

    def __init__(self, state_dir: Path, changed: Callable[[], None]) -> None:
        self.trouble = ""
        self._dir = state_dir
        self._changed = changed

    async def run(self) -> None:
        """Check regularly, for ever."""
        while True:
            await self.check()
            await asyncio.sleep(RETRY_INTERVAL if self.trouble else CHECK_INTERVAL)

    async def check(self) -> None:
        """Check whether the disk can be written."""
        try:
            await asyncio.to_thread(self._try)
        except OSError as error:
            self.failed(error)
        else:
            self._note("")

    def failed(self, error: OSError) -> str:
        """Record a failed write: trouble until a check succeeds. Returns it as text."""
        kind = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EROFS: "read-only"}.get(error.errno or 0, "failing")
        self._note(f"disk {kind}: {error.strerror} in {self._dir}")
        return self.trouble

    def _try(self) -> None:
        """Allocate the space and free it again. Raises OSError."""
        path = self._dir / ".room"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, SPACE_NEEDED)
            os.pwrite(fd, b"x", 0)
            os.fdatasync(fd)
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()

    def _note(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        if trouble:
            log.error("no jobs are taken", why=trouble)
        else:
            log.info("the disk can be written again: jobs are taken", was=self.trouble)
        self.trouble = trouble
        self._changed()
