"""Shipping a directory with a job: a walk that honours ignore files, the bundle it makes, and sending what the
coordinator lacks of it. Reads files, and leaves the connection to the clients. Ignore rules are git's: `.gitignore`
and then `.gridignore` of every directory, also of those above it in the same repository; `.git` is never shipped.
"""

import errno
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from pathspec import GitIgnoreSpec

from distributed_grid.coordinator.client.requests import Once, Post, Steps, Together
from distributed_grid.coordinator.client.session import ConnectionLost, RequestRefused
from distributed_grid.protocol.bundle import (
    BUNDLE_BYTES,
    MOST_ENTRIES,
    Entry,
    Kind,
    Manifest,
    blob_hash,
    check_path,
    check_target,
    encode_manifest,
    hasher,
)
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.messages import PutBlob, WantBlobs
from distributed_grid.protocol.resources import format_bytes
from distributed_grid.runtime import beneath

IGNORE_FILES = (".gitignore", ".gridignore")
IGNORE_BYTES = 1 << 20
CHUNK = 1 << 20
_TRIES = 3
_ASKED_AT_ONCE = 10_000  # blobs in one question
_SENT_AT_ONCE, _FILES_AT_ONCE = 1 << 20, 8  # bytes of small files, and these, on their way at the same time
_LOOK_ON = 0.5  # seconds: how much longer a directory over the ceiling is measured, to name what fills it
_SETTLED = 2.0  # seconds: a file changed more recently may change again within one tick of its time stamp
_FLAGS = (
    "leave things out with a .gridignore, or use --no-ship (nothing is shipped) or --workdir PATH (a shared directory)"
)


class ShippingError(GridError):
    """A directory cannot be shipped as it is."""


@dataclass(frozen=True)
class Bundle:
    """What is to be shipped of the directory `root`. `hash` names the manifest and goes into `JobSpec.bundle`; `blobs`
    are where the contents lie, by hash; `size` is bytes in all and `count` entries; `notes` say what was left out and
    why."""

    root: Path
    manifest: bytes
    hash: str
    blobs: dict[str, Path]
    size: int
    count: int
    notes: tuple[str, ...] = ()

    def open(self, blob: str) -> BinaryIO:
        """A file of the directory, by its hash, to be sent. No part of its path below the directory may have become a
        link. Raises OSError."""
        root = beneath.open_root(self.root)
        try:
            return open(beneath.open_regular(root, self.blobs[blob].relative_to(self.root).as_posix(), xdev=True), "rb")
        finally:
            os.close(root)


@dataclass(frozen=True)
class Shipped:
    """A directory that the coordinator knows; so many of its files had to be sent."""

    bundle: Bundle
    sent: int


@dataclass
class HashCache:
    """Hashes of files that have not changed since they were read, for scanning the same directory again."""

    known: dict[tuple[int, ...], str] = field(default_factory=dict)


def ship(number: Callable[[], int], directory: Path, cache: HashCache) -> Steps[Shipped]:
    """Make a directory known to the coordinator; `number` makes numbers for requests. A file that changes between
    reading and sending starts it over. Raises ShippingError."""
    for attempt in range(_TRIES):
        bundle = scan(directory, cache=cache)
        try:
            sent = yield from _send_missing(number, bundle)
            return Shipped(bundle, sent)
        except (RequestRefused, OSError) as error:
            cache.known.clear()
            if isinstance(error, RequestRefused) and error.code != "bad-value":
                why = f"{error.what}: {error.why}" if error.why else error.what
                raise ShippingError(f"{directory} cannot be shipped", why, error.hint) from error
            if attempt == _TRIES - 1:
                raise ShippingError(
                    f"{directory} cannot be shipped",
                    why=f"{error}; files in it may be changing all the time",
                    hint="leave them out with a .gridignore, or use --no-ship",
                ) from error
    raise AssertionError("every attempt returns or raises")  # pragma: no cover


def _send_missing(number: Callable[[], int], bundle: Bundle) -> Steps[int]:
    hashes = list(bundle.blobs)
    missing: list[str] = []
    for at in range(0, len(hashes), _ASKED_AT_ONCE):
        missing += (yield WantBlobs(id=0, blobs=tuple(hashes[at : at + _ASKED_AT_ONCE]))).blobs
    small: list[PutBlob] = []
    for blob in (wanted := asked_for(bundle, missing)):
        with bundle.open(blob) as file:
            data = file.read(PART_BYTES)
            if len(data) < PART_BYTES:
                small.append(PutBlob(id=0, blob=blob, offset=0, data=data, end=True))
                if sum(len(one.data) for one in small) < _SENT_AT_ONCE and len(small) < _FILES_AT_ONCE:
                    continue
            else:
                yield from _put(number, blob, file)
        yield Together(tuple(small))
        small.clear()
    yield Together(tuple(small))
    # Last, so that a manifest is never there without what it names.
    if (yield WantBlobs(id=0, blobs=(bundle.hash,))).blobs:
        yield from _put(number, bundle.hash, BytesIO(bundle.manifest))
    return len(wanted)


def _put(number: Callable[[], int], blob: str, file: BinaryIO) -> Steps[None]:
    """Send one blob, from its beginning again where the connection broke."""
    while True:
        file.seek(0)
        put, offset = number(), 0
        try:
            while len(data := file.read(PART_BYTES)) == PART_BYTES:
                yield Post(PutBlob(id=put, blob=blob, offset=offset, data=data))
                offset += len(data)
            yield Once(PutBlob(id=put, blob=blob, offset=offset, data=data, end=True))
            return
        except ConnectionLost:
            yield WantBlobs(id=0, blobs=())  # answered once there is a connection again


def asked_for(bundle: Bundle, missing: Iterable[str]) -> list[str]:
    """What the coordinator lacks, each once. Raises ShippingError where it asks for what was not offered."""
    wanted = list(dict.fromkeys(missing))
    if strange := [blob for blob in wanted if blob not in bundle.blobs]:
        raise ShippingError(
            f"{bundle.root} is not shipped",
            why=f"the coordinator asks for {strange[0][:80]!r}, which was not offered to it",
            hint="see whether --coordinator names the one you mean; it is broken or hostile",
        )
    return wanted


def scan(directory: Path, ceiling: int = BUNDLE_BYTES, cache: HashCache | None = None) -> Bundle:
    """The bundle of a directory. Raises ShippingError where something cannot be shipped or it is above the ceiling
    (bytes)."""
    walk = _Walk(directory, ceiling)
    try:
        found = list(walk.files())
    except OSError as error:
        raise _unreadable(Path(os.fsdecode(error.filename or directory)), error) from None
    walk.raise_for_outside_links()
    entries, blobs, size = [], {}, 0
    root = beneath.open_root(walk.root)
    try:
        for one in found:
            entry = one.entry
            if entry.kind is Kind.FILE:
                hashed = _hash(root, one.path, one.entry, cache)
                if hashed is None:
                    continue  # gone since the walk, as if it had never been there
                entry = hashed
                blobs[entry.blob] = one.path
                size += entry.size
            entries.append(entry)
    finally:
        os.close(root)
    if size > ceiling:
        raise _too_large(directory, {e.path: e.size for e in entries}, size, ceiling)
    try:
        manifest = encode_manifest(Manifest(tuple(entries)))
    except BadValue as error:
        raise ShippingError(f"{directory} cannot be shipped", why=error.why, hint=_FLAGS) from None
    return Bundle(walk.root, manifest, blob_hash(manifest), blobs, size, len(entries), tuple(walk.notes))


@dataclass(frozen=True)
class _Found:
    path: Path
    entry: Entry


class _Ignores:
    """The ignore rules that hold in one directory: its own, then those of the directories above it."""

    def __init__(self, spec: GitIgnoreSpec, depth: int, above: "_Ignores | None") -> None:
        self._spec = spec
        self._depth = depth  # how many parts of a path lie above this directory
        self._above = above

    @classmethod
    def of(cls, directory: Path, depth: int, above: "_Ignores | None") -> "_Ignores | None":
        lines: list[str] = []
        for name in IGNORE_FILES:
            lines += _lines(directory / name)
        if (directory / ".git").is_dir():
            lines = _lines(directory / ".git" / "info" / "exclude") + lines
        return cls(GitIgnoreSpec.from_lines(lines), depth, above) if lines else above

    def ignored(self, parts: tuple[str, ...], is_directory: bool) -> bool:
        """Whether a path, given from the topmost directory that has rules, is left out. The nearest rule decides."""
        path = "/".join(parts[self._depth :]) + ("/" if is_directory else "")
        verdict = self._spec.check_file(path).include
        if verdict is not None:
            return verdict
        return self._above.ignored(parts, is_directory) if self._above else False


def _lines(file: Path) -> list[str]:
    """The lines of an ignore file. As for git, a link is none, and neither is what is no regular file."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return []
        raise
    with open(fd, "rb") as opened:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return []
        raw = opened.read(IGNORE_BYTES + 1)
    if len(raw) > IGNORE_BYTES:
        raise ShippingError(f"{file} cannot be read", why=f"{IGNORE_BYTES} bytes are the most of an ignore file")
    return raw.decode(errors="surrogateescape").splitlines()


def _repository(directory: Path) -> Path:
    """The top of the git repository this directory lies in, or the directory itself."""
    return next((above for above in (directory, *directory.parents) if (above / ".git").exists()), directory)


class _Walk:
    """One walk over a directory: what is there, measured but not read."""

    def __init__(self, directory: Path, ceiling: int) -> None:
        self.notes: list[str] = []
        self.root = Path(os.path.realpath(directory))
        self._shown = directory
        self._ceiling = ceiling
        self._count = 0
        self._total = 0
        self._sizes: Counter[str] = Counter()
        self._outside: list[str] = []
        self._stop_at = 0.0

    def files(self) -> Iterator[_Found]:
        """Everything to ship, parents before what is in them. Raises OSError and ShippingError."""
        top = _repository(self.root)
        prefix = self.root.relative_to(top).parts
        ignores = None
        for depth in range(len(prefix)):
            ignores = _Ignores.of(top.joinpath(*prefix[:depth]), depth, ignores)
            if ignores is not None and ignores.ignored(prefix[: depth + 1], is_directory=True):
                ignores = None  # who ships a directory that is ignored further up means what is in it
        yield from self._directory("", prefix, ignores)
        if self._stop_at:
            self._refuse()

    def _directory(self, at: str, parts: tuple[str, ...], above: _Ignores | None) -> Iterator[_Found]:
        path = self.root / at
        ignores = _Ignores.of(path, len(parts), above)
        with os.scandir(path) as listing:
            items = sorted(listing, key=lambda item: item.name)
        for item in items:
            is_directory = item.is_dir(follow_symlinks=False)
            inner = (*parts, item.name)
            if item.name == ".git" or (ignores is not None and ignores.ignored(inner, is_directory)):
                continue
            if is_directory and os.path.exists(os.path.join(item.path, "pyvenv.cfg")):
                self.notes.append(f"{item.name}/ is a virtual environment, of no use elsewhere, and not shipped")
                continue
            name = f"{at}/{item.name}" if at else item.name
            if is_directory:
                yield from self._directory(name, inner, ignores)
            elif (found := self._item(name, item)) is not None:
                yield found
        if at and not items:
            yield self._counted(at, Entry(at, Kind.DIRECTORY, mode=stat.S_IMODE(path.stat().st_mode) & 0o777 | 0o700))

    def _item(self, name: str, item: "os.DirEntry[str]") -> _Found | None:
        try:
            check_path(name)
        except BadValue as error:
            raise ShippingError(f"{name!r} cannot be shipped", why=error.why, hint=_FLAGS) from None
        if item.is_symlink():
            return self._link(name)
        try:
            facts = item.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(facts.st_mode):
            self.notes.append(f"{name} is neither a file nor a link and is not shipped")
            return None
        return self._counted(name, Entry(name, mode=stat.S_IMODE(facts.st_mode) & 0o777, size=facts.st_size))

    def _link(self, name: str) -> _Found | None:
        path = self.root / name
        target = os.readlink(path)
        try:
            check_target(name, target)
        except BadValue:
            # Written in a way that is not plainly inside (absolute, or with detours), it may still lead inside.
            real = Path(os.path.realpath(path))
            if not real.is_relative_to(self.root):
                self._outside.append(f"{name} -> {target}")
                return None
            target = os.path.relpath(real, os.path.realpath(path.parent))
        return self._counted(name, Entry(name, Kind.LINK, mode=0o777, target=target))

    def _counted(self, name: str, entry: Entry) -> _Found:
        self._count += 1
        self._total += entry.size
        self._sizes[name] = entry.size
        if self._count > MOST_ENTRIES or self._total > self._ceiling:
            self._stop_at = self._stop_at or time.monotonic() + _LOOK_ON
        if self._stop_at and time.monotonic() > self._stop_at:
            self._refuse()
        return _Found(self.root / name, entry)

    def _refuse(self) -> None:
        if self._count > MOST_ENTRIES and self._total <= self._ceiling:
            crowded = _largest(_by_top(dict.fromkeys(self._sizes, 1)), str)
            raise ShippingError(
                f"{self._shown} has too many files to ship",
                why=f"{MOST_ENTRIES} are the most; most are in: {crowded}",
                hint=_FLAGS,
            )
        raise _too_large(self._shown, self._sizes, self._total, self._ceiling)

    def raise_for_outside_links(self) -> None:
        """Raise ShippingError for links that lead out of the directory: on the node they would lead nowhere."""
        if self._outside:
            some = ", ".join(self._outside[:5]) + (", …" if len(self._outside) > 5 else "")
            count = len(self._outside)
            raise ShippingError(
                f"{count} link{'s' if count > 1 else ''} in {self._shown} lead{'' if count > 1 else 's'} out of it",
                why=f"the node would not have what they point to: {some}",
                hint=_FLAGS,
            )


def _by_top(amounts: Mapping[str, int]) -> Counter[str]:
    """The amounts summed up by the first part of each path; directories end with a slash."""
    tops: Counter[str] = Counter()
    for name, amount in amounts.items():
        top, slash, _ = name.partition("/")
        tops[top + slash] += amount
    return tops


def _largest(tops: Counter[str], form: Callable[[int], str]) -> str:
    return ", ".join(f"{name} ({form(amount)})" for name, amount in tops.most_common(5))


def _too_large(directory: Path, sizes: Mapping[str, int], total: int, ceiling: int) -> ShippingError:
    return ShippingError(
        f"{directory} is too large to ship: {format_bytes(total)} or more, and {format_bytes(ceiling)} is the most",
        why=f"largest: {_largest(_by_top(sizes), format_bytes)}",
        hint=_FLAGS,
    )


def _unreadable(path: Path, error: OSError) -> ShippingError:
    return ShippingError(f"{path} cannot be shipped", why=f"it cannot be read: {error.strerror}", hint=_FLAGS)


def _hash(root: int, path: Path, entry: Entry, cache: HashCache | None) -> Entry | None:
    """The entry with its content's hash and true size. A file that changes while it is read is read once more. What has
    become a link since the walk, or lies behind one, is not read."""
    for _ in range(2):
        try:
            fd = beneath.open_regular(root, entry.path, xdev=True)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(path, error) from None
        with open(fd, "rb", buffering=0) as file:
            before = _identity(os.fstat(fd))
            if cache is not None and before in cache.known:
                return Entry(entry.path, mode=entry.mode, size=before[2], blob=cache.known[before])
            digest, size = hasher(), 0
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
            after = _identity(os.fstat(fd))
        blob = digest.hexdigest()
        if before == after and size == after[2]:
            break
    if cache is not None and before == after and time.time() - after[4] / 1e9 > _SETTLED:
        cache.known[after] = blob
    return Entry(entry.path, mode=entry.mode, size=size, blob=blob)


def _identity(facts: os.stat_result) -> tuple[int, ...]:
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
