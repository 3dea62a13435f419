"""Ships a directory with a job: makes the bundle of the files that a walk has found (walk.py), and sends what the
coordinator does not have yet. Reads files; the clients do the network I/O."""

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from distributed_grid.coordinator.client.requests import Once, Post, Steps, Together
from distributed_grid.coordinator.client.session import ConnectionLost, RequestRefused
from distributed_grid.coordinator.client.walk import (
    DEFAULT_RULES,
    REMEDY,
    ShippingError,
    ShippingRules,
    Walk,
    too_large,
    unreadable,
)
from distributed_grid.protocol.bundle import (
    Entry,
    Kind,
    Manifest,
    blob_hash,
    encode_manifest,
    hasher,
)
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.messages import PutBlob, WantBlobs
from distributed_grid.runtime import beneath

CHUNK = 1 << 20
_TRIES = 3
_ASKED_AT_ONCE = 10_000  # blobs in one question
_SENT_AT_ONCE, _FILES_AT_ONCE = 1 << 20, 256  # bytes of small files, and these, on their way at the same time
_SETTLED = 2.0  # seconds: a file changed more recently may change again within one tick of its time stamp


class ShippingWarning(UserWarning):
    """Something of a directory is not shipped."""


def warned(bundle: "Bundle") -> str:
    """The hash of a shipped bundle, with a warning to the program about each thing that was left out."""
    for note in bundle.notes:
        warnings.warn(note, ShippingWarning, stacklevel=3)
    return bundle.hash


@dataclass(frozen=True)
class Bundle:
    """The files of the directory `root` that are to be shipped. `hash` names the manifest and goes into
    `JobSpec.bundle`; `blobs` are where the contents lie, by hash, and `sizes` their bytes; `size` is bytes in all and
    `count` entries; `notes` say what was left out and why."""

    root: Path
    manifest: bytes
    hash: str
    blobs: dict[str, Path]
    sizes: dict[str, int]
    size: int
    count: int
    notes: tuple[str, ...] = ()

    def open(self, blob: str) -> BinaryIO:
        """A file of the directory, by its hash, to be sent. No part of its path below the directory may have become a
        link. Raises OSError."""
        return open(_open_regular(self.root, self.blobs[blob]), "rb")

    def read(self, blob: str) -> Iterator[bytes]:
        """Yield the content of a blob as it was hashed, in parts of the size of one message. Bytes that were appended
        to the file since are not part of it. Raises OSError, Changed."""
        digest, left = hasher(), self.sizes[blob]
        with self.open(blob) as file:
            while True:
                data = file.read(min(PART_BYTES, left))
                digest.update(data)
                left -= len(data)
                if (not data and left) or (not left and digest.hexdigest() != blob):
                    raise Changed(self.blobs[blob])
                yield data
                if not left:
                    return


class Changed(Exception):
    """A file does not hold any more what was read of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path


def _open_regular(root: Path, path: Path) -> int:
    """A descriptor of a file below `root`, or of one that a link out of it leads to."""
    below = path.is_relative_to(root)
    above = beneath.open_root(root if below else path.parent)
    try:
        return beneath.open_regular(above, path.relative_to(root).as_posix() if below else path.name, xdev=True)
    finally:
        os.close(above)


@dataclass(frozen=True)
class Shipped:
    """A directory that the coordinator knows, and the number of its files that had to be sent."""

    bundle: Bundle
    sent: int


@dataclass
class HashCache:
    """Hashes of files that have not changed since they were read, for scanning the same directory again."""

    known: dict[tuple[int, ...], str] = field(default_factory=dict)


def ship(
    number: Callable[[], int], directory: Path, cache: HashCache, rules: ShippingRules = DEFAULT_RULES
) -> Steps[Shipped]:
    """Make a directory known to the coordinator; `number` makes numbers for requests. A file that changes between
    reading and sending starts it over. Raises ShippingError."""
    for attempt in range(_TRIES):
        bundle = scan(directory, rules=rules, cache=cache)
        try:
            sent = yield from _send_missing(number, bundle)
            return Shipped(bundle, sent)
        except Changed as error:
            cache.known.clear()
            if attempt == _TRIES - 1:
                raise _changing(error.path) from None
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
    size = 0
    for blob in (wanted := asked_for(bundle, missing)):
        if bundle.sizes[blob] < PART_BYTES:
            data = b"".join(bundle.read(blob))
            small.append(PutBlob(id=0, blob=blob, offset=0, data=data, end=True))
            size += len(data)
            if size < _SENT_AT_ONCE and len(small) < _FILES_AT_ONCE:
                continue
        else:
            yield from _put(number, blob, lambda blob=blob: bundle.read(blob))  # type: ignore[misc]
        yield Together(tuple(small))
        small.clear()
        size = 0
    yield Together(tuple(small))
    # Last, so that a manifest is never there without what it names.
    if (yield WantBlobs(id=0, blobs=(bundle.hash,))).blobs:
        yield from _put(number, bundle.hash, lambda: parts_of(bundle.manifest))
    return len(wanted)


def _put(number: Callable[[], int], blob: str, content: Callable[[], Iterator[bytes]]) -> Steps[None]:
    """Send one blob, from its beginning again where the connection broke."""
    while True:
        put, offset, parts = number(), 0, content()
        data = next(parts)
        try:
            for following in parts:
                yield Post(PutBlob(id=put, blob=blob, offset=offset, data=data))
                offset, data = offset + len(data), following
            yield Once(PutBlob(id=put, blob=blob, offset=offset, data=data, end=True))
            return
        except ConnectionLost:
            yield WantBlobs(id=0, blobs=())  # answered once there is a connection again


def parts_of(data: bytes) -> Iterator[bytes]:
    """Data in parts that can be sent at once."""
    return (data[at : at + PART_BYTES] for at in range(0, len(data) or 1, PART_BYTES))


def asked_for(bundle: Bundle, missing: Iterable[str]) -> list[str]:
    """Return the blobs that the coordinator lacks, each once. Raises ShippingError if it requests others than were
    offered."""
    wanted = list(dict.fromkeys(missing))
    if strange := [blob for blob in wanted if blob not in bundle.blobs]:
        raise ShippingError(
            f"{bundle.root} is not shipped",
            why=f"the coordinator asks for {strange[0][:80]!r}, which was not offered to it",
            hint="see whether --coordinator names the one you mean; it is broken or hostile",
        )
    return wanted


def scan(directory: Path, rules: ShippingRules = DEFAULT_RULES, cache: HashCache | None = None) -> Bundle:
    """The bundle of a directory. Raises ShippingError where something cannot be shipped."""
    walk = Walk(directory, rules)
    try:
        found = list(walk.files())
    except OSError as error:
        raise unreadable(Path(os.fsdecode(error.filename or directory)), error) from None
    walk.raise_for_outside_links()
    entries, blobs, sizes, size = [], {}, {}, 0
    for one in found:
        entry = one.entry
        if entry.kind is Kind.FILE:
            hashed = _hash(walk.root, one.path, one.entry, cache)
            if hashed is None:
                continue  # gone since the walk, as if it had never been there
            entry = hashed
            blobs[entry.blob], sizes[entry.blob] = one.path, entry.size
            size += entry.size
        entries.append(entry)
    if size > rules.ceiling:
        raise too_large(directory, {e.path: e.size for e in entries}, size, rules.ceiling)
    try:
        manifest = encode_manifest(Manifest(tuple(entries)))
    except BadValue as error:
        raise ShippingError(f"{directory} cannot be shipped", why=error.why, hint=REMEDY) from None
    return Bundle(walk.root, manifest, blob_hash(manifest), blobs, sizes, size, len(entries), tuple(walk.said()))


def _changing(path: Path) -> ShippingError:
    return ShippingError(
        f"{path} cannot be shipped",
        why=f"it was changed each of {_TRIES} times that it was read; a file that only grows could be shipped",
        hint="leave it out with a .gridignore, wait for what writes it, or use --no-ship",
    )


def _hash(root: Path, path: Path, entry: Entry, cache: HashCache | None) -> Entry | None:
    """The entry with its content's hash and size. A file that grows meanwhile is taken with the size that it had when
    it was opened; one that is changed otherwise is read again. What has become a link since the walk, or lies behind
    one, is not read."""
    for _ in range(_TRIES):
        try:
            fd = _open_regular(root, path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from None
        with open(fd, "rb", buffering=0) as file:
            before = _identity(os.fstat(fd))
            if cache is not None and before in cache.known:
                return Entry(entry.path, mode=entry.mode, size=before[2], blob=cache.known[before])
            digest, size = hasher(), 0
            while chunk := file.read(min(CHUNK, before[2] - size)):
                digest.update(chunk)
                size += len(chunk)
            after = _identity(os.fstat(fd))
        if size == before[2] and (before == after or after[2] > size):
            break
    else:
        raise _changing(path)
    blob = digest.hexdigest()
    if cache is not None and before == after and time.time() - after[4] / 1e9 > _SETTLED:
        cache.known[after] = blob
    return Entry(entry.path, mode=entry.mode, size=size, blob=blob)


def _identity(facts: os.stat_result) -> tuple[int, ...]:
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
