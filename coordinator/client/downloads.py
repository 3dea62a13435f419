"""Writes the files that a node sends into a local directory. The node is not trusted: what it lists and sends is
compared with what was requested. Nothing is written outside the directory, through a link in it, over a file that
changed since the job was submitted, or with rights that were not requested. The clients do the network I/O."""

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from distributed_grid.config.places import HERE as CONFIGURATIONS
from distributed_grid.config.places import as_path
from distributed_grid.coordinator.client.output import RETRY_SECONDS, TRIES
from distributed_grid.coordinator.client.requests import Pause, Steps, show
from distributed_grid.coordinator.client.session import GridUnavailable
from distributed_grid.protocol.bundle import MOST_ENTRIES
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.globs import Globs, Match
from distributed_grid.protocol.jobs import JobView
from distributed_grid.protocol.messages import FileData, FileEntry, Files, WantFile, WantFiles
from distributed_grid.protocol.resources import format_bytes
from distributed_grid.protocol.text import check_relative, from_wire, shown
from distributed_grid.runtime.sparse import write_sparse

PART_KEPT_FREE = 20
SPACE_KEPT_FREE = 1 << 30
"""What is announced may not fill the disk: 1/20 of it stays free, or a GiB, whichever is less."""
NAMED = 3
"""How many files a sentence names."""
_READ_ONLY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_CHUNK = 1 << 20


class BadAnswer(GridError):
    """A node's answer does not fit the question. Nothing more of it is used."""


class NotWritten(GridError):
    """One file is not written; the others are."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{shown(path)} is not written", why=reason)
        self.path = path
        self.reason = reason


class Download(msgspec.Struct, frozen=True):
    """A file that was asked for and announced. `path` may hold surrogate escapes."""

    path: str
    entry: FileEntry


class Rules(msgspec.Struct, frozen=True):
    """How files are written. `since`: when the job was submitted, in seconds since the epoch; an existing file that was
    changed later is kept, unless `force` is true. `executable`: executable bits are kept."""

    since: float
    force: bool = False
    executable: bool = False


class Listed(msgspec.Struct, frozen=True):
    """The files on the node that match the patterns. `left_out` are hidden files, and configurations that `grid` would
    read on this machine: a pattern matches them, and none names them."""

    files: tuple[Download, ...]
    left_out: tuple[str, ...]
    node: str

    def note(self) -> str:
        """A sentence about what is left out; empty: nothing is."""
        if not self.left_out:
            return ""
        count = f"{len(self.left_out)} file{'s are' if len(self.left_out) > 1 else ' is'} left out"
        kinds = "hidden files and configurations of the grid come by a pattern that names them"
        return f"{count}: {some(self.left_out)}; {kinds}, such as --get '{_pattern(self.left_out[0])}'"


class Fetched(msgspec.Struct, frozen=True):
    """The files that the node listed, where they were written, and which were not because of what exists at that
    place."""

    listed: Listed
    paths: list[Path]
    refused: list[NotWritten]


def files(job: str, *globs: str) -> Steps[list[FileEntry]]:
    """The files in the job's working directory that match any of the globs (none: all). A file whose path is not UTF-8
    has its bytes in `raw`. Raises BadAnswer where the node lists others."""
    listed = yield from _listed((yield from show(job)), globs or ("**",))
    return [file.entry for file in listed.files]


def fetch(
    job: str, *globs: str, into: str | Path = ".", force: bool = False, executable: bool = False
) -> Steps[list[Path]]:
    """Bring the matching files of a job's working directory into a directory here; their paths. What changed here since
    the job was submitted is left as it is unless `force` is true: the others are written, and GridError says which are
    not. Hidden files are brought where a pattern names the dot. Executable bits are kept with `executable`. Raises
    BadAnswer where the node answers with what was not asked for."""
    place = as_path("into", into)
    view = yield from show(job)
    rules = Rules(min(view.submitted, time.time()), force, executable)
    fetched = yield from fetch_files(view, globs or ("**",), place, rules)
    if fetched.refused:
        hint = "force=True writes over what changed since the job was submitted"
        raise GridError(refusal(fetched.refused), hint=hint)
    return fetched.paths


def fetch_files(view: JobView, globs: tuple[str, ...], into: Path, rules: Rules) -> Steps[Fetched]:
    """Write the files of a job's working directory that match below a directory here, with their relative paths; each
    appears when it is whole. Raises GridError where one cannot be had."""
    listed = yield from _listed(view, globs)
    paths, refused = [], []
    with Folder(into) as folder:
        folder.check_room(listed)
        for file in listed.files:
            try:
                yield from _fetch(view, file, folder, rules)
                paths.append(into / file.path)
            except NotWritten as error:
                refused.append(error)
    return Fetched(listed, paths, refused)


def _fetch(view: JobView, file: Download, folder: "Folder", rules: Rules) -> Steps[None]:
    with folder.begin(file, rules, view.node) as writer:
        while writer.wanted:
            wanted = WantFile(
                id=0,
                allocation=view.allocation,
                path=file.entry.path,
                offset=writer.offset,
                size=writer.wanted,
                raw=file.entry.raw,
                holes=True,
            )
            writer.receive((yield from _answer(wanted)))
        writer.finish()


def _listed(view: JobView, globs: tuple[str, ...]) -> Steps[Listed]:
    Globs(globs)  # raises BadValue
    answer: Files = yield from _answer(WantFiles(id=0, allocation=view.allocation, globs=globs))
    if answer.error:
        raise GridUnavailable(f"the files of {view.id} cannot be listed", why=answer.error)
    return compared(answer, globs, view.node)


def _answer(question: WantFile | WantFiles) -> Steps[Any]:
    """Send a question to the node and return its answer. If the node is away, for instance during a restart of the
    coordinator, the question is repeated for a while."""
    answer = yield question
    for _ in range(TRIES):
        if not answer.error.startswith("unavailable"):
            break
        yield Pause(RETRY_SECONDS)
        answer = yield question
    return answer


def compared(answer: Files, globs: Sequence[str], node: str) -> Listed:
    """Return the files that a node lists, after a check that they match the patterns. Raises BadAnswer, which names the
    node."""
    asked = Globs(globs)
    if len(answer.files) > MOST_ENTRIES:
        raise _bad(node, f"it lists {len(answer.files)} files, and {MOST_ENTRIES} are the most")
    files: dict[str, Download] = {}
    tree, directories = dict[str, Any](), 0
    left_out: list[str] = []
    for entry in answer.files:
        path = from_wire(entry.path, entry.raw)
        try:
            check_relative(path)
        except BadValue as error:
            raise _bad(node, f"{error.what}: {error.why}") from None
        match asked.match(path):
            case Match.NO:
                raise _bad(node, f"it lists {shown(path)[:200]!r}, which none of the patterns {_all(globs)} matches")
            case Match.HIDDEN:
                left_out.append(path)
                continue
            case Match.YES if path in CONFIGURATIONS and path not in globs:
                left_out.append(path)
                continue
        if entry.size < 0:
            raise _bad(node, f"the size of {shown(path)[:200]!r} is {entry.size}")
        if path in files:
            raise _bad(node, f"it lists {shown(path)[:200]!r} twice")
        files[path] = Download(path, entry)
        below = tree
        for part in path.split("/")[:-1]:
            if part not in below:
                directories += 1
            below = below.setdefault(part, {})
        if directories > MOST_ENTRIES:
            raise _bad(node, f"what it lists lies in more than {MOST_ENTRIES} directories")
    return Listed(tuple(files.values()), tuple(left_out), node)


def refusal(refused: Sequence[NotWritten]) -> str:
    """Describe in one sentence the files that are not written."""
    named = ", ".join(f"{shown(one.path)[:200]} ({one.reason})" for one in refused[:NAMED])
    more = f" and {len(refused) - NAMED} more" if len(refused) > NAMED else ""
    return f"{len(refused)} file{'s are' if len(refused) > 1 else ' is'} not written: {named}{more}"


def some(paths: Sequence[str]) -> str:
    """The first of these paths, for a sentence."""
    return ", ".join(shown(path)[:200] for path in paths[:NAMED]) + (", …" if len(paths) > NAMED else "")


class Folder:
    """The directory that files are written below, created if necessary. It is opened once: a directory that takes its
    name later is not written to. Raises GridError."""

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise GridError(f"nothing can be written to {directory}", why=error.strerror or str(error)) from None

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def check_room(self, listed: Listed) -> None:
        """Raise GridError where the files are more than the disk has room for. One that says it has no blocks at all
        (FUSE) does not know."""
        size = sum(one.entry.size for one in listed.files)
        disk = os.fstatvfs(self._fd)
        kept = min(disk.f_blocks * disk.f_frsize // PART_KEPT_FREE, SPACE_KEPT_FREE)
        if disk.f_blocks and size > max(0, disk.f_bavail * disk.f_frsize - kept):
            raise GridError(
                f"node {listed.node} has {format_bytes(size)} of results in {len(listed.files)} files",
                why=f"{format_bytes(disk.f_bavail * disk.f_frsize)} are free on the disk here, and"
                f" {format_bytes(kept)} of that are kept free; nothing was written",
                hint="ask for fewer files, or run grid in a directory on a larger disk",
            )

    def begin(self, file: Download, rules: Rules, node: str) -> "Writer":
        """Begin to write a file. Raises NotWritten where it is refused, and GridError where nothing can be written."""
        with _as_refusals(file.path):
            *above, name = file.path.split("/")
            parent = self._make_below(file.path, above)
            try:
                return Writer(file, rules, node, parent, name)
            except BaseException:
                os.close(parent)
                raise

    def _make_below(self, path: str, parts: Sequence[str]) -> int:
        """Open the directory with these names below the folder, creating it if necessary. No part of the path may be a
        link. Returns the descriptor."""
        here = os.dup(self._fd)
        for part in parts:
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o777, dir_fd=here)
                if stat.S_ISLNK(os.stat(part, dir_fd=here, follow_symlinks=False).st_mode):
                    raise NotWritten(path, f"{shown(part)} is a link here")
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                below = os.open(part, flags, dir_fd=here)
            finally:
                os.close(here)
            here = below
        return here


class Writer:
    """One file that is being written under a temporary name; it takes its name when it is complete. Made by
    `Folder.begin`; leaving its block before `finish` leaves no file behind."""

    def __init__(self, file: Download, rules: Rules, node: str, parent: int, name: str) -> None:
        self.file = file
        self.offset = 0
        self._rules = rules
        self._node = node
        self._parent = parent
        self._name = name
        here = self._here()
        if here is not None:
            self._check(here)
        replaces = here is not None and stat.S_ISREG(here.st_mode)
        if here is not None and replaces:
            mode = stat.S_IMODE(here.st_mode) & 0o777  # as `cp` does
        else:
            mode = file.entry.mode & (0o777 if rules.executable else 0o666) | stat.S_IRUSR
        self._aside: str | None = f".grid-{secrets.token_hex(8)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._aside, flags, mode, dir_fd=parent)  # less what the umask takes away
        if replaces:
            with contextlib.suppress(OSError):
                os.fchmod(self._fd, mode)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._aside is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._aside, dir_fd=self._parent)
        os.close(self._fd)
        os.close(self._parent)

    @property
    def wanted(self) -> int:
        """Return the number of bytes to request next; 0: the file is complete."""
        return min(PART_BYTES, self.file.entry.size - self.offset)

    def receive(self, answer: FileData) -> None:
        """Write the answer to a question for `wanted` bytes at `offset`. Raises BadAnswer, GridError."""
        path = shown(self.file.path)[:200]
        if answer.error:
            raise GridUnavailable(f"{path} cannot be brought back from node {self._node}", why=answer.error)
        if len(answer.data) > self.wanted:
            raise _bad(self._node, f"it sent {len(answer.data)} bytes of {path!r} where {self.wanted} were asked for")
        # A hole at the end of a file that grows is longer than what was listed.
        size = min(self.file.entry.size, self.offset + (answer.hole or len(answer.data)))
        if size == self.offset or (answer.end and size < self.file.entry.size):
            raise _bad(self._node, f"{path!r} has {size} bytes instead of the {self.file.entry.size} that it listed")
        if answer.hole and answer.data:
            raise _bad(self._node, f"it sent bytes of {path!r} and a hole at once")
        with _as_refusals(self.file.path):
            if answer.hole:
                os.ftruncate(self._fd, size)
            else:
                write_sparse(self._fd, answer.data, self.offset)
        self.offset = size

    def finish(self) -> None:
        """Give the file its name. Raises NotWritten where what has that name now is to stay, GridError."""
        assert self._aside is not None  # noqa: S101
        with _as_refusals(self.file.path):
            here = self._here()
            if here is not None:
                if self._changed(here) and self._same(here):
                    return
                self._check(here, whole=True)
            os.rename(self._aside, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
            self._aside = None

    def _here(self) -> os.stat_result | None:
        try:
            return os.stat(self._name, dir_fd=self._parent, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _check(self, here: os.stat_result, whole: bool = False) -> None:
        """Hold that what has the name now may be replaced. Before it is `whole`, a file of the same size may: it can
        have the same content."""
        if stat.S_ISDIR(here.st_mode):
            raise NotWritten(self.file.path, "it is a directory here")
        if self._rules.force:
            return
        if not stat.S_ISREG(here.st_mode):
            kind = "a link" if stat.S_ISLNK(here.st_mode) else "no regular file"
            raise NotWritten(self.file.path, f"it is {kind} here")
        if self._changed(here) and (whole or here.st_size != self.file.entry.size):
            raise NotWritten(self.file.path, "it changed here since the job was submitted")

    def _changed(self, here: os.stat_result) -> bool:
        """A file that was moved here has an old mtime and a new ctime."""
        return stat.S_ISREG(here.st_mode) and max(here.st_mtime, here.st_ctime) > self._rules.since

    def _same(self, here: os.stat_result) -> bool:
        """Whether the file here has the content that was brought."""
        if here.st_size != self.file.entry.size:
            return False
        try:
            there = os.open(self._name, _READ_ONLY, dir_fd=self._parent)
        except OSError:
            return False
        with open(there, "rb", buffering=0) as other:
            if not stat.S_ISREG(os.fstat(there).st_mode):
                return False
            at = 0
            while data := os.pread(self._fd, _CHUNK, at):
                if os.pread(there, _CHUNK, at) != data:
                    return False
                at += len(data)
            return not other.read(0) and not os.pread(there, 1, at)


@contextlib.contextmanager
def _as_refusals(path: str) -> Iterator[None]:
    """A disk that takes nothing ends it all; any other trouble is one of this file."""
    try:
        yield
    except OSError as error:
        if error.errno in _FATAL:
            raise GridError(f"{shown(path)} cannot be written here", why=error.strerror or str(error)) from None
        raise NotWritten(path, (error.strerror or str(error)).lower()) from None


def _bad(node: str, why: str) -> BadAnswer:
    return BadAnswer(
        f"node {node} answers with what was not asked for",
        why=why,
        hint="tell an operator of the grid: a node that does this is broken or hostile",
    )


def _all(globs: Sequence[str]) -> str:
    return " ".join(globs)[:200]


def _pattern(path: str) -> str:
    """A pattern for a hidden file and those beside it, from its first hidden name on; for another its path."""
    parts = shown(path).split("/")
    first = next((number for number, part in enumerate(parts) if part.startswith(".")), -1)
    if first < 0:
        return shown(path)
    return "/".join([*parts[:first], ".*"])
