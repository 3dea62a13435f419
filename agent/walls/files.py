"""Operations on a job's working directory, in a process with only the job's rights: unpack what was shipped, find and
read results, remove leftovers. Names are bytes, links are followed only where stated, and each operation terminates
whatever the job does meanwhile. Stdlib only: a child of a spawner runs this."""

import contextlib
import errno
import itertools
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from distributed_grid.protocol.globs import Globs, Match
from distributed_grid.runtime import beneath
from distributed_grid.runtime.beneath import Refused

MODE_BITS = 0o777
PATH_BYTES = 4095
"""Maximum length of a requested path."""
FOUND_BYTES = 4 << 20
"""Maximum length of the paths of all files that are found, together."""
NAMES, NAMES_BYTES = 1 << 16, 1 << 20
"""Maximum number of names in one listing of a directory, and their length together."""
FILE, DIRECTORY, LINK = "file", "dir", "link"

Entry = tuple[str, bytes, int, bytes, int, int]
"""Kind, path, mode, link target, size of a file in bytes, and the number of its blob's descriptor."""
Found = tuple[bytes, int, int]
"""Path, size in bytes, mode."""

_LINKS = 40  # maximum number of links in one path, as in the kernel
_OPEN_DEPTH = 64  # maximum number of directories held open at a time
_PATHS_BYTES = 8 << 20  # maximum length of the paths kept while directories are measured
_BELOW_BYTES = 32 << 20  # maximum memory for the directories still to be searched
_BATCH = 4096  # names of a directory read at a time while it is emptied
_ROUNDS = 16
_LEAST_HOLE = 256 << 10  # shorter holes are read as the zeros that they are
_OURS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class Limits(NamedTuple):
    """Limits of one operation: matching files, names read, depth of directories, seconds."""

    files: int = 100_000
    names: int = 4_000_000
    depth: int = 512
    seconds: float = 60.0


class Timer:
    """Limits the duration of an operation. Raises OSError."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._seconds = seconds

    def check(self) -> None:
        if time.monotonic() > self._end:
            raise OSError(errno.ETIMEDOUT, f"it takes more than {self._seconds:g} s")


# --- what the job gets ------------------------------------------------------------------------------------------------


def unpack(entries: Sequence[Entry], blobs: Sequence[int], target: int) -> None:
    """Create these entries below the directory `target`, with contents copied from the descriptors in `blobs`. Parent
    directories are created as needed; nothing existing is overwritten or followed. Raises OSError."""
    above, parent = None, target
    try:
        for entry in entries:
            path = entry[1]
            directory, _, name = path.rpartition(b"/")
            if path.startswith(b"/"):
                raise Refused(errno.EINVAL, "the path is not relative and plain", path)
            if directory != above:
                if parent != target:
                    os.close(parent)
                parent = target
                parent = _make_directories(target, directory)
                above = directory
            _make(entry, _plain(name, path), parent, blobs)
    finally:
        if parent != target:
            os.close(parent)


def make_directory(parent: int, name: bytes, mode: int = 0o700) -> None:
    """Create a new directory. Raises OSError."""
    os.mkdir(_plain(name, name), 0o700, dir_fd=parent)
    fd = beneath.open_directory(parent, name)
    try:
        os.fchmod(fd, mode & MODE_BITS)
    finally:
        os.close(fd)


def _make_directories(target: int, path: bytes) -> int:
    """The directory at the end of this path, created with its parents if missing; `target` for an empty path."""
    if not path:
        return target
    with contextlib.suppress(FileNotFoundError):
        return beneath.open_directory(target, path, xdev=True)
    here = target
    for part in path.split(b"/"):
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(_plain(part, path), 0o755, dir_fd=here)
            below = beneath.open_directory(here, part, xdev=True)
        finally:
            if here != target:
                os.close(here)
        here = below
    return here


def _make(entry: Entry, name: bytes, parent: int, blobs: Sequence[int]) -> None:
    kind, path, mode, target, size, blob = entry
    if kind == DIRECTORY:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode & MODE_BITS | 0o700, dir_fd=parent)
    elif kind == LINK:
        os.symlink(target, name, dir_fd=parent)
    elif kind == FILE and 0 <= blob < len(blobs):
        source = blobs[blob]
        there = os.fstat(source).st_size
        if there != size:
            raise Refused(errno.EINVAL, f"its content has {there} bytes instead of {size}", path)
        copy = os.open(name, _OURS | os.O_CLOEXEC, 0o600, dir_fd=parent)
        try:
            _copy(source, copy, size)
            os.fchmod(copy, mode & MODE_BITS)
        finally:
            os.close(copy)
    else:
        raise Refused(errno.EINVAL, f"it is of an unknown kind, or its content is missing: {kind!r}", path)


def _copy(source: int, copy: int, size: int) -> None:
    """Copy `size` bytes, leaving out the holes in them."""
    offset = 0
    while offset < size:
        if hole := min(_hole(source, offset), size - offset):
            offset = os.lseek(copy, offset + hole, os.SEEK_SET)
            continue
        until = min(size, os.lseek(source, offset, os.SEEK_HOLE))
        while offset < until:
            sent = os.sendfile(copy, source, offset, min(until - offset, 1 << 24))
            if not sent:
                raise OSError(errno.EIO, "the content was cut meanwhile")
            offset += sent
    os.ftruncate(copy, size)


def _hole(fd: int, offset: int) -> int:
    """Return the bytes of the hole that a file has at this offset; 0: there is none, or it is no file."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA) - offset
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole is left
            return max(0, os.fstat(fd).st_size - offset)
        if error.errno == errno.EINVAL:  # a filesystem without holes
            return 0
        raise


def _plain(name: bytes, path: bytes) -> bytes:
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        raise Refused(errno.EINVAL, "the path is not relative and plain", path)
    return name


# --- what comes back --------------------------------------------------------------------------------------------------


def find(root: int, patterns: Sequence[str], limits: Limits = Limits()) -> list[Found]:  # noqa: B008
    """The regular files below `root` that match any pattern, ordered by path, as in protocol/globs.py (including
    `HIDDEN` ones). A link counts as its target, if that is a regular file inside. Raises OSError for too many, too
    deep, too long paths, or a timeout; BadValue for a bad pattern."""
    globs = Globs(patterns)
    timer = Timer(limits.seconds)
    found: list[Found] = []
    left = limits.names
    below = [b""]
    found_bytes = below_bytes = 0
    while below:
        here = below.pop()
        below_bytes -= sys.getsizeof(here)
        timer.check()
        for name, entry in _listed(root, here):
            left -= 1
            if left < 0:
                raise OSError(errno.E2BIG, f"there are more than {limits.names} files below the working directory")
            if not left % 256:
                timer.check()
            path = here + b"/" + name if here else name
            text = path.decode("utf-8", "surrogateescape")
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    if not globs.may_match_below(text):
                        continue
                    if len(path) > PATH_BYTES - 2 or path.count(b"/") + 1 >= limits.depth:
                        raise Refused(errno.ENAMETOOLONG, "the directories lie too deep", path[:80] + b"...")
                    below.append(path)
                    below_bytes += sys.getsizeof(path)
                elif len(path) <= PATH_BYTES and globs.match(text) is not Match.NO:
                    seen = _stat_inside(root, path, entry)
                    if seen is not None:
                        found.append((path, seen.st_size, stat.S_IMODE(seen.st_mode) & MODE_BITS))
                        found_bytes += len(path)
            if len(found) > limits.files:
                raise OSError(errno.E2BIG, f"more than {limits.files} files match")
            if found_bytes > FOUND_BYTES or below_bytes > _BELOW_BYTES:
                raise OSError(errno.E2BIG, "the names of what was found are too long")
    found.sort()
    return found


def open_for_reading(root: int, path: bytes) -> int:
    """A descriptor of the regular file at a path below `root`; links that stay below it are followed. Raises
    OSError."""
    return beneath.open_regular(root, resolve(root, path), xdev=True)


def read(root: int, path: bytes, offset: int, size: int, holes: bool = False) -> tuple[bytes, bool, int]:
    """Up to `size` bytes of that file, whether they are its last, and 0; with `holes`, where a long hole begins, no
    bytes, whether the file ends with it, and its length. Raises OSError."""
    fd = open_for_reading(root, path)
    try:
        if holes and (hole := _hole(fd, offset)) >= _LEAST_HOLE:
            return b"", offset + hole >= os.fstat(fd).st_size, hole
        parts, at = [], offset
        while size > 0 and (data := os.pread(fd, size, at)):
            parts.append(data)
            at += len(data)
            size -= len(data)
        return b"".join(parts), at >= os.fstat(fd).st_size, 0
    finally:
        os.close(fd)


def resolve(root: int, path: bytes) -> bytes:
    """The path without links of a path below `root`, if its target is below `root` too. It is then opened without
    following links, so concurrent changes do no harm. Raises OSError."""
    todo, done, links = path.split(b"/")[::-1], list[bytes](), 0
    if path.startswith(b"/") or b"\0" in path:
        raise Refused(errno.EINVAL, "the path is not relative and plain", path)
    while todo:
        part = todo.pop()
        if part in (b"", b"."):
            continue
        if part == b"..":
            if not done:
                raise Refused(errno.EXDEV, "it leads out of the working directory", path)
            done.pop()
            continue
        try:
            target = os.readlink(b"/".join([*done, part]), dir_fd=root)
        except OSError as error:
            if error.errno != errno.EINVAL:  # it is missing or inaccessible
                raise
            done.append(part)
            continue
        links += 1
        if links > _LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith(b"/"):
            target = _below(root, target, path)
            done = []
        todo += target.split(b"/")[::-1]
    return b"/".join(done)


def _below(root: int, target: bytes, path: bytes) -> bytes:
    """The part of an absolute path below `root`, comparing directories rather than names."""
    seen = os.fstat(root)
    parts = target.split(b"/")
    for count in range(1, len(parts) + 1):
        above = os.stat(b"/".join(parts[:count]) or b"/")
        if (above.st_dev, above.st_ino) == (seen.st_dev, seen.st_ino):
            return b"/".join(parts[count:])
    raise Refused(errno.EXDEV, "it leads out of the working directory", path)


def _listed(root: int, path: bytes) -> Iterator[tuple[bytes, "os.DirEntry[str]"]]:
    """The entries of a directory; none if it is gone or inaccessible."""
    try:
        fd = beneath.open_directory(root, path or b".", xdev=True)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link by now
            return
        raise
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                yield os.fsencode(entry.name), entry
    finally:
        os.close(fd)


def _stat_inside(root: int, path: bytes, entry: "os.DirEntry[str]") -> os.stat_result | None:
    with contextlib.suppress(OSError):
        if entry.is_symlink():
            seen = os.stat(resolve(root, path), dir_fd=root, follow_symlinks=False)
        else:
            seen = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(seen.st_mode):
            return seen
    return None


# --- what is left -----------------------------------------------------------------------------------------------------


def names(root: int) -> list[bytes]:
    """The names in a directory, in no order; of very many a part."""
    found: list[bytes] = []
    room = NAMES_BYTES
    with os.scandir(root) as entries:
        for entry in itertools.islice(entries, NAMES):
            name = os.fsencode(entry.name)
            if (room := room - len(name)) < 0:
                break
            found.append(name)
    return found


def measure(root: int, seconds: float = 60.0, each: int = 0) -> int:
    """Bytes on disk below a directory, or of the part that can be read in this time and without much memory: where
    thousands of directories lie very deep, some are left out. `each`: bytes that each name counts beyond its own."""
    meter = _Meter(time.monotonic() + seconds, each)
    meter.add_all(root)
    return meter.total


class _Meter:
    """Adds up bytes on disk until `end`, depth first: up to _OPEN_DEPTH directories are open at a time, and what lies
    deeper is kept by its path."""

    def __init__(self, end: float, each: int) -> None:
        self.total = 0
        self._end, self._each = end, each
        self._deeper: list[bytes] = []
        self._room = _PATHS_BYTES

    def add_all(self, root: int) -> None:
        """Add what is below this directory."""
        self._add(root, b".", [b"."])
        while self._deeper and time.monotonic() < self._end:
            path = self._deeper.pop()
            self._room += len(path)
            self._add(root, path, [path])

    def _add(self, parent: int, name: bytes, path: list[bytes]) -> None:
        """Add what is in this directory of `parent`, at `path` below the root."""
        with contextlib.suppress(OSError):
            fd = beneath.open_directory(parent, name)
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        self._add_one(fd, entry, path)
                        if time.monotonic() > self._end:
                            break
            finally:
                os.close(fd)

    def _add_one(self, parent: int, entry: "os.DirEntry[str]", path: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            self.total += entry.stat(follow_symlinks=False).st_blocks * 512 + self._each
            if not entry.is_dir(follow_symlinks=False):
                return
            inner = [*path, os.fsencode(entry.name)]
            if len(inner) <= _OPEN_DEPTH:
                self._add(parent, inner[-1], inner)
            elif len(deeper := b"/".join(inner)) <= self._room:
                self._deeper.append(deeper)
                self._room -= len(deeper)


def clear(root: int, seconds: float = 60.0) -> None:
    """Remove everything in a directory. Raises OSError if something is left."""
    if (error := _empty(root, root, 1, Timer(seconds))) is not None:
        raise error


def remove(parent: int, name: bytes, seconds: float = 60.0) -> None:
    """Remove this name in the directory `parent` recursively, including inaccessible directories. Nothing outside is
    touched. Raises OSError if something is left: a process may be changing it."""
    _plain(name, name)
    timer = Timer(seconds)
    for _ in range(_ROUNDS):
        error = _remove_one(parent, name, parent, 0, timer)
        if error is None:
            return
        timer.check()
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.ELOOP):
            raise error
    raise OSError(errno.EBUSY, "something is being made in it all the time", name)


def _remove_one(parent: int, name: bytes, top: int, depth: int, timer: Timer) -> OSError | None:
    """Remove it; returns the error if that fails."""
    try:
        os.unlink(name, dir_fd=parent)
        return None
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        pass
    except OSError as error:
        return error
    first: OSError | None = None
    try:
        os.rmdir(name, dir_fd=parent)  # most are empty
        return None
    except FileNotFoundError:
        return None
    except OSError as error:
        first = error
    if depth >= _OPEN_DEPTH and parent != top:
        return _move_up(parent, name, top, timer)
    try:
        fd = _open_closed(parent, name)
    except OSError as error:
        return error
    try:
        first = _empty(fd, fd if depth == 0 else top, depth + 1, timer)
    except OSError as error:
        first = error
    finally:
        os.close(fd)
    try:
        os.rmdir(name, dir_fd=parent)
        return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return first or error


def _empty(fd: int, top: int, depth: int, timer: Timer) -> OSError | None:
    """Empty a directory; returns the first error."""
    first: OSError | None = None
    stuck: set[bytes] = set()
    while True:
        timer.check()
        with os.scandir(fd) as entries:
            names = []
            for entry in entries:
                if (name := os.fsencode(entry.name)) not in stuck:
                    names.append(name)
                    if len(names) >= _BATCH:
                        break
        if not names or len(stuck) > _BATCH:
            return first
        for number, name in enumerate(names):
            if not number % 256:
                timer.check()
            if (error := _remove_one(fd, name, top, depth, timer)) is not None:
                first = first or error
                stuck.add(name)


def _move_up(parent: int, name: bytes, top: int, timer: Timer) -> OSError | None:
    """Move a deep directory to the top of what is removed, to be removed from there."""
    try:
        os.close(_open_closed(parent, name))  # a move needs write access to it
        os.rename(name, b".deep-" + os.urandom(8).hex().encode(), src_dir_fd=parent, dst_dir_fd=top)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


def _open_closed(parent: int, name: bytes) -> int:
    """Open a directory of any mode, making it accessible if we own it."""
    try:
        fd = beneath.open_directory(parent, name)
    except PermissionError:
        found = beneath.open_beneath(parent, name, os.O_PATH | os.O_DIRECTORY)
        try:
            os.chmod(f"/proc/self/fd/{found}", 0o700)  # noqa: S103 (what was opened, and no link)
        finally:
            os.close(found)
        fd = beneath.open_directory(parent, name)
    try:
        if os.fstat(fd).st_mode & 0o700 != 0o700:
            with contextlib.suppress(PermissionError):
                os.fchmod(fd, 0o700)
    except BaseException:
        os.close(fd)
        raise
    return fd
