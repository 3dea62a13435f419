"""Access to the files of jobs, through a process that has the job's own rights, behind the walls of its slot. The agent
itself opens no file that a job could have put there. All calls block."""

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from distributed_grid.agent.supervisor.sockets import FILES_SOCKET
from distributed_grid.agent.walls.files import Entry, clear, measure, names, remove
from distributed_grid.agent.walls.files_socket import Files, Limits, NoAnswer, Root
from distributed_grid.protocol.bundle import (
    MODE_BITS,
    MOST_ENTRIES,
    Kind,
    Manifest,
    check_link,
    check_path,
    is_blob_hash,
)
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.messages import FileEntry
from distributed_grid.protocol.text import check_relative, to_wire
from distributed_grid.runtime import beneath
from distributed_grid.runtime.unix import connected

ANSWER_SECONDS = 60.0
PATIENCE = 60.0
"""Timeout for measuring or removing one directory (s)."""
KEPT = 5.0
"""Seconds that an idle process is kept for the next request: a file is read in many parts."""
T = TypeVar("T")


class JobFiles:
    """The working directories below the slots of one agent's state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._state = state_dir
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, Files]] = {}

    def find(self, slot: str, root: Root, globs: Sequence[str]) -> list[FileEntry]:
        """The regular files below the directory that match any glob, ordered by path. Raises GridError and OSError."""
        limits = Limits(files=MOST_ENTRIES, seconds=ANSWER_SECONDS)
        found = self._with(slot, lambda files: files.find(root, globs, limits))
        entries = []
        for path, size, mode in found:
            text, raw = to_wire(os.fsdecode(path))
            entries.append(FileEntry(text, size, mode & MODE_BITS, raw))
        return entries

    def read(
        self, slot: str, root: Root, path: str, offset: int, size: int, holes: bool = False
    ) -> tuple[bytes, bool, int]:
        """Up to `size` bytes of a file, whether they are its last, and 0; with `holes` a long hole has no bytes, and
        its length. Raises GridError and OSError."""
        check_relative(path)
        return self._with(slot, lambda files: files.read(root, os.fsencode(path), offset, size, holes))

    def lay_out(self, slot: str, allocation: str, manifest: Manifest, blobs: Path) -> None:
        """Make a working directory with what was shipped; what an earlier attempt left there is removed. Raises
        GridError and OSError."""
        entries, names = shipped(manifest)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        above = os.fsencode(self._folder(slot))
        self.make(slot, above, allocation.encode(), entries, lambda number: os.open(blobs / names[number], flags))

    def make(
        self, slot: str, above: bytes, name: bytes, entries: Sequence[Entry], open_blob: Callable[[int], int]
    ) -> None:
        """Make a directory with these entries in a directory that the slot's user may write to, replacing what has that
        name. Raises GridError and OSError."""
        path = above + b"/" + name

        def make(files: Files) -> None:
            files.remove(Root(path=above), name)
            files.make_directory(Root(path=above), name)
            files.unpack(Root(path=path), entries, open_blob)

        self._with(slot, make)

    def remove_at(self, slot: str, above: bytes, name: bytes) -> None:
        """Remove this name in a directory that the slot's user may write to. Raises GridError and OSError."""
        self._with(slot, lambda files: files.remove(Root(path=above), name))

    def size(self, slot: str, allocation: str, each: int = 0) -> int:
        """Bytes on disk of a working directory, or of the part that can be read in limited time. `each`: as of
        files.measure."""
        try:
            with self._opened(slot) as above:
                if above is None:
                    return self._with(slot, lambda files: files.measure(self.root(slot, allocation), PATIENCE, each))
                own = beneath.open_directory(above, allocation.encode())
                try:
                    return measure(own, PATIENCE, each)
                finally:
                    os.close(own)
        except (OSError, GridError):
            return 0  # it is gone, or will be

    def names(self, slot: str) -> list[str]:
        """Return the entries of the slot's directory: working directories, and what jobs left beside them; if there are
        very many, a part of them. Raises GridError and OSError."""
        with self._opened(slot) as above:
            found = names(above) if above is not None else self._with(slot, lambda files: files.names(self.root(slot)))
        return [os.fsdecode(name) for name in found]

    def remove(self, slot: str, name: str) -> None:
        """Remove what has this name in the slot's directory, such as an allocation's. Raises GridError and OSError."""
        with self._opened(slot) as above:
            if above is None:
                self._with(slot, lambda files: files.remove(self.root(slot), os.fsencode(name)))
            else:
                remove(above, os.fsencode(name), PATIENCE)

    def remove_slot(self, slot: str) -> None:
        """Remove the directory of an unused slot. Raises GridError and OSError."""
        with self._opened(slot) as above:
            if above is None:
                self._with(slot, lambda files: files.clear(self.root(slot), PATIENCE))
            else:
                clear(above, PATIENCE)
        os.rmdir(self._folder(slot))

    @contextlib.contextmanager
    def _opened(self, slot: str) -> Iterator[int | None]:
        """A descriptor of the slot's directory if we have full access (None: only its user has)."""
        folder = self._folder(slot)
        if os.geteuid() not in (0, os.lstat(folder).st_uid):
            yield None
            return
        fd = beneath.open_root(folder)
        try:
            yield fd
        finally:
            os.close(fd)

    def root(self, slot: str, allocation: str = "") -> Root:
        """The directory of a slot, or of an allocation in it."""
        return Root(path=os.fsencode(self._folder(slot) / allocation))

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            for _, files in self._kept.values():
                files.close()
            self._kept.clear()

    def _folder(self, slot: str) -> Path:
        if not slot.isalnum():
            raise BadValue(f"{slot!r} is not the name of a slot")
        return self._state / "jobs" / slot

    def _with(self, slot: str, task: Callable[[Files], T]) -> T:
        """Run a task with a process of the slot. If the process ends meanwhile, the task is run once more with a new
        one: it may have been killed by a process with the same rights, or for memory."""
        ended = 0
        with self._lock:
            self._end_idle()
            _, files = self._kept.pop(slot, (0.0, None))
        while True:
            fresh = files is None
            files = files or self._dial(slot)
            try:
                done = task(files)
            except NoAnswer as error:
                files.close()
                ended += fresh
                if fresh and (ended > 1 or error.errno in (errno.ETIMEDOUT, errno.EPROTO)):
                    raise GridError("the files cannot be accessed", why=error.strerror or "") from None
                files = None
                continue
            except BaseException:
                self._keep(slot, files)
                raise
            self._keep(slot, files)
            return done

    def _keep(self, slot: str, files: Files) -> None:
        with self._lock:
            _, other = self._kept.pop(slot, (0.0, None))
            if other is not None:
                other.close()
            self._kept[slot] = time.monotonic() + KEPT, files

    def _end_idle(self) -> None:
        for slot, (until, files) in [*self._kept.items()]:
            if time.monotonic() > until:
                files.close()
                del self._kept[slot]

    def _dial(self, slot: str) -> Files:
        groups: list[int] = []
        seen = os.lstat(self._folder(slot))
        if os.geteuid() == 0 and seen.st_uid != 0:
            groups = _groups(seen.st_uid, seen.st_gid)
        wire: socket.socket = connected(self._state / FILES_SOCKET, ANSWER_SECONDS)
        try:
            wire.sendall(json.dumps({"slot": slot, "groups": groups}).encode() + b"\n")
        except BaseException:
            wire.close()
            raise
        return Files(wire)


def _groups(uid: int, gid: int) -> list[int]:
    import pwd

    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:  # a slot's own user
        return []


def shipped(manifest: Manifest) -> tuple[list[Entry], list[str]]:
    """Convert a manifest for walls/files.py: the entries, and the hashes of the blobs that they number. Raises BadValue
    for an entry that could write outside."""
    numbers: dict[str, int] = {}
    entries: list[Entry] = []
    for entry in manifest.entries:
        check_path(entry.path)
        number = -1
        if entry.kind is Kind.LINK:
            check_link(entry)
        elif entry.kind is Kind.FILE:
            if not is_blob_hash(entry.blob):
                raise BadValue(f"the content of {entry.path} has no hash")
            number = numbers.setdefault(entry.blob, len(numbers))
        path, target = entry.path.encode(), entry.target.encode()
        entries.append((entry.kind.value, path, entry.mode & MODE_BITS, target, entry.size, number))
    return entries, list(numbers)
