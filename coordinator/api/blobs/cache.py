"""Shipped files at the coordinator: blobs by the hash of their content, on disk, with their senders; the size of the
cache is bounded."""

import asyncio
import ctypes
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from distributed_grid.coordinator.api.blobs.quota import Quota, default_quota
from distributed_grid.coordinator.store.open import sync
from distributed_grid.protocol.bundle import (
    BLOB_BYTES,
    MANIFEST_BYTES,
    blob_hash,
    decode_manifest,
    hasher,
    is_blob_hash,
    names_in,
)
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.messages import BlobData, PutBlob, WantBlob
from distributed_grid.protocol.resources import format_bytes
from distributed_grid.runtime.faults import fault
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.sparse import write_sparse

CACHE_BYTES = 10 << 30
"""Size of the cache; above it the least recently used blobs go, unless a live job needs them. Above twice this, no
upload begins."""
UPLOADS = 16
"""Blobs one connection may be sending at the same time."""
MANIFESTS = 16
"""Manifests that are kept decoded."""
FEW = 4
"""Up to so many files are synced one by one: what others write to the disk does not delay them."""
MIN_GC_AGE = 3600.0
"""Minimum time since its last use before a blob may be removed (s): its job may not have been submitted yet."""

log = get_logger("blobs")


@dataclass(slots=True)
class _Upload:
    path: Path
    file: BinaryIO
    digest: "hashlib.blake2b"
    size: int = 0


class Uploads:
    """The uploads of one connection, to be closed with it. `refuse` raises while the disk has no room for blobs."""

    def __init__(self, blobs: "Blobs", refuse: Callable[[], None] = lambda: None, user: str = "") -> None:
        self._blobs = blobs
        self._user = user
        self._refuse = refuse
        self._open: dict[str, _Upload | None] = {}  # None: failed, the rest of it is not counted_at at

    async def put_whole(self, sent: Sequence[PutBlob]) -> list[GridError | None]:
        """Take blobs that came whole, each in one part, and together; for each why it was not kept (None: it is on
        disk)."""
        answers: list[GridError | None] = []
        new: dict[str, bytes] = {}
        for part in sent:
            self._drop(part.blob)
            try:
                self._refuse()
                _check(part.blob)
                _check_content(part.blob, blob_hash(part.data))
                new[part.blob] = part.data
                answers.append(None)
            except GridError as error:
                answers.append(error)
        why: GridError | None = None
        try:
            await self._keep(new)
        except GridError as error:
            why = error
        except OSError as error:
            why = _cannot_store(error)
        return [why if one is None else one for one in answers]

    async def _keep(self, new: dict[str, bytes]) -> None:
        quota, size = self._blobs.quota, sum(map(len, new.values()))
        try:
            await quota.arrives(self._user, size)
            await self._blobs.make_room()
            await self._blobs.keep_all(new, self._user)
        finally:
            quota.leaves(self._user, size)
        await quota.refers(self._user, new)

    async def put(self, part: PutBlob) -> bool:
        """Take a part; whether the blob is complete. Raises GridError once for an upload that cannot go on."""
        if part.offset == 0:
            self._drop(part.blob)
        elif part.blob not in self._open:
            raise BadValue("a part of a blob whose beginning was not sent", why=f"offset {part.offset}")
        elif self._open[part.blob] is None:
            return False
        upload = self._open.get(part.blob)
        try:
            self._refuse()
            if upload is None:
                await self._blobs.make_room()
                upload = self._open[part.blob] = self._blobs.begin(part.blob, len(self._open))
            self._blobs.append(upload, part)
            await self._blobs.quota.arrives(self._user, len(part.data))
            if not part.end:
                return False
            del self._open[part.blob]
            await self._blobs.finish(upload, part.blob)
            size, upload.size = upload.size, 0
            self._blobs.quota.leaves(self._user, size)
            await self._blobs.quota.refers(self._user, (part.blob,))
            await asyncio.to_thread(self._blobs.note_sender, self._user, part.blob)
            return True
        except (GridError, OSError) as error:
            self._drop(part.blob)
            if upload is not None:
                self._discard(upload)
            if not part.end and len(self._open) < UPLOADS:
                self._open[part.blob] = None
            if isinstance(error, OSError):
                raise _cannot_store(error) from error
            raise

    def _drop(self, blob: str) -> None:
        if upload := self._open.pop(blob, None):
            self._discard(upload)

    def _discard(self, upload: _Upload) -> None:
        self._blobs.quota.leaves(self._user, upload.size)
        upload.file.close()
        with suppress(OSError):  # what cannot be removed now goes at the next start
            upload.path.unlink()

    def close(self) -> None:
        """Discard unfinished uploads."""
        for blob in list(self._open):
            self._drop(blob)


class Blobs:
    """The cache under a directory; `needed` names the manifests that live jobs need, `needed_by` those of a user's.
    `quota`: bytes for each user (0: by the free disk)."""

    def __init__(
        self,
        root: Path,
        needed: Callable[[], Iterable[str]],
        most: int = CACHE_BYTES,
        quota: int = 0,
        needed_by: Callable[[str], Iterable[str]] = lambda user: (),
    ) -> None:
        self._root = root
        self._needed = needed
        self._most = most
        self._arriving = root / "arriving"
        self._arriving.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._arriving.iterdir():  # of a coordinator that was killed
            left.unlink()
        self._size: int | None = None  # unknown until something is added
        self._manifests: dict[str, frozenset[str]] = {}
        self._senders = root / "senders"
        """A folder for each user, with an empty file for each blob that the user has sent."""
        self.quota = Quota(quota or default_quota(root), self.size, self.contents, needed_by, sent=self.sent_by)

    def _path(self, blob: str) -> Path:
        return self._root / blob[:2] / blob

    def has(self, blob: str) -> bool:
        """Whether it is here; asking counts as use."""
        if not is_blob_hash(blob):
            return False
        try:
            os.utime(self._path(blob))
        except FileNotFoundError:
            return False
        except OSError:  # a disk that takes no writing still has what it has
            return self._path(blob).exists()
        return True

    def note_sender(self, user: str, blob: str) -> None:
        """The user has sent this blob, which the next coordinator is to know. Not synced: after a power cut it may have
        to be sent again."""
        with suppress(OSError):
            folder = self._senders / _folder_of(user)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / blob).touch(0o600)

    def sent_by(self, user: str) -> list[str]:
        """Return the blobs that the user has sent, also to an earlier coordinator; some of them may be gone."""
        with suppress(OSError):
            return os.listdir(self._senders / _folder_of(user))
        return []

    def size(self, blob: str) -> int | None:
        """Return the size of a blob (bytes); None: it is not in the cache."""
        try:
            return os.stat(self._path(blob)).st_size
        except OSError:
            return None

    def contents(self, bundle: str) -> frozenset[str]:
        """The blobs that a manifest names. Raises OSError, BadValue."""
        with open(self._path(bundle), "rb") as file:
            return names_in(file.read(MANIFEST_BYTES + 1))

    def shipped_size(self, bundle: str) -> int:
        """Bytes of what a bundle ships; 0 where its manifest cannot be read. May be called by any thread."""
        if not is_blob_hash(bundle):
            return 0
        try:
            with open(self._path(bundle), "rb") as file:
                entries = decode_manifest(file.read(MANIFEST_BYTES + 1)).entries
        except (OSError, BadValue):
            return 0
        return sum(entry.size for entry in entries)

    def _is_named(self, blob: str, bundles: Iterable[str]) -> bool:
        """Whether one of these manifests names a blob. Those in memory are looked at first: a node fetches what one
        names in a row, and may have jobs with more of them than are kept."""
        for bundle in sorted(bundles, key=lambda one: one not in self._manifests):
            named = self._manifests.pop(bundle, None)
            if named is None:
                try:
                    named = self.contents(bundle)
                except (OSError, BadValue):
                    continue
            self._manifests[bundle] = named
            if len(self._manifests) > MANIFESTS:
                del self._manifests[next(iter(self._manifests))]
            if blob in named:
                return True
        return False

    async def missing(self, blobs: Iterable[str], user: str = "") -> tuple[str, ...]:
        """The blobs that the user has to send, in the order asked; the others count for the user. A blob that another
        user has sent counts as missing: else its hash would be enough to learn that it is here, and to have it laid out
        for a job. Raises BadValue for a malformed hash, GridError above the user's quota."""
        wanted = tuple(dict.fromkeys(blobs))
        for blob in wanted:
            _check(blob)
        owned = await self.quota.owned(user, wanted)
        missing = tuple(blob for blob in wanted if not (blob in owned and self.has(blob)))
        await self.quota.refers(user, set(wanted).difference(missing))
        return missing

    def read(self, want: WantBlob, bundles: Iterable[str]) -> BlobData:
        """The answer to an agent that fetches for jobs with these manifests: bytes, or an error."""
        if not is_blob_hash(want.blob) or want.offset < 0 or want.size < 0:
            return BlobData(id=want.id, error="not a blob's hash, offset and size")
        needed = set(bundles)
        if want.blob not in needed and not self._is_named(want.blob, needed):
            return BlobData(id=want.id, error=f"no job on this node needs the blob {want.blob[:12]}")
        try:
            fd = os.open(self._path(want.blob), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return BlobData(id=want.id, error=f"the coordinator has no blob {want.blob[:12]}: {error.strerror}")
        try:
            data = os.pread(fd, min(want.size, PART_BYTES), want.offset)
            end = want.offset + len(data) >= os.fstat(fd).st_size
        except OSError as error:
            return BlobData(id=want.id, error=f"blob {want.blob[:12]} cannot be read: {error.strerror}")
        finally:
            os.close(fd)
        if want.offset == 0:
            self.has(want.blob)
        return BlobData(id=want.id, data=data, end=end)

    # --- uploads ------------------------------------------------------------------------------------------------------

    async def make_room(self) -> None:
        """Raise GridError if the cache has twice its size and none of it may go."""
        if self._size is not None and self._size > 2 * self._most:
            self._size = await asyncio.to_thread(self._shrink, {*self._needed()})
            if self._size > 2 * self._most:
                raise GridError(
                    "the coordinator has no room for shipped files now",
                    why=f"it keeps {format_bytes(self._size)}, all used within the hour or needed by live jobs",
                    hint="try again later, or put the files where the nodes see them and give --workdir",
                )

    def begin(self, blob: str, others: int) -> _Upload:
        _check(blob)
        if others >= UPLOADS:
            raise BadValue(f"more than {UPLOADS} blobs at the same time", hint="send one after the other")
        path = self._arriving / f"{blob[:12]}.{secrets.token_hex(6)}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return _Upload(path, open(fd, "wb", buffering=0), hasher())  # noqa: SIM115

    def append(self, upload: _Upload, part: PutBlob) -> None:
        if part.offset != upload.size:
            raise BadValue("parts of a blob out of order", why=f"offset {part.offset} after {upload.size} bytes")
        if upload.size + len(part.data) > BLOB_BYTES:
            raise BadValue("a shipped file is too large", why=f"more than {BLOB_BYTES >> 20} MiB are not taken")
        write_sparse(upload.file.fileno(), part.data, upload.size)
        upload.digest.update(part.data)
        upload.size += len(part.data)

    async def finish(self, upload: _Upload, blob: str) -> None:
        _check_content(blob, upload.digest.hexdigest())
        await asyncio.to_thread(self._keep, upload, self._path(blob))
        await self._grow(upload.size)

    async def keep_all(self, contents: dict[str, bytes], user: str) -> None:
        """Write these blobs to disk, as sent by this user. Raises OSError: then none counts as kept."""
        if contents:
            await asyncio.to_thread(self._keep_all, contents, user)
            await self._grow(sum(map(len, contents.values())))

    async def _grow(self, size: int) -> None:
        if self._size is not None:
            self._size += size
        if self._size is None or self._size > self._most:
            self._size = await asyncio.to_thread(self._shrink, {*self._needed()})

    def _keep_all(self, contents: dict[str, bytes], user: str) -> None:
        """Write files, sync them together, give them their names, and sync these: two syncs for any number of files."""
        paths = {blob: self._arriving / f"{blob[:12]}.{secrets.token_hex(6)}" for blob in contents}
        named: list[Path] = []
        root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # knows of errors from now on
        try:
            for blob, path in paths.items():
                with open(path, "xb", buffering=0, opener=_private) as file:
                    write_sparse(file.fileno(), contents[blob], 0)
            _sync_together(root, [*paths.values()])
            for blob, path in paths.items():
                named.append(self._path(blob))
                named[-1].parent.mkdir(mode=0o700, exist_ok=True)
                os.replace(path, named[-1])
            _sync_together(root, [self._root, *{path.parent for path in named}])
        except OSError:
            for path in (*paths.values(), *named):
                with suppress(OSError):
                    path.unlink()
            raise
        finally:
            os.close(root)
        for blob in contents:
            self.note_sender(user, blob)

    @staticmethod
    def _keep(upload: _Upload, path: Path) -> None:
        _sync(upload.file.fileno())
        upload.file.close()
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            sync(path.parent.parent)
        os.replace(upload.path, path)
        try:
            sync(path.parent)
        except OSError:
            path.unlink(missing_ok=True)
            raise

    # --- the bound ----------------------------------------------------------------------------------------------------

    def _pinned(self, bundles: Iterable[str]) -> set[str]:
        pinned: set[str] = set()
        for bundle in bundles:
            pinned.add(bundle)
            try:
                pinned |= self.contents(bundle)
            except (OSError, BadValue) as error:
                log.warning("a live job's manifest cannot be read", blob=bundle[:12], error=str(error))
        return pinned

    def _shrink(self, bundles: set[str]) -> int:
        """Remove the least recently used blobs down to the bound, but for what these manifests need; the bytes left. A
        last use in the future was noted before the wall clock was set back, and counts as none. In a thread: to read
        thousands of manifests takes seconds."""
        now = time.time()
        kept = [
            (entry.stat().st_mtime, entry.stat().st_size, entry.path)
            for folder in os.scandir(self._root)
            if len(folder.name) == 2
            for entry in os.scandir(folder.path)
        ]
        size = sum(row[1] for row in kept)
        pinned = self._pinned(bundles) if size > self._most else set()
        for used, bytes_, path in sorted(kept):
            if size <= self._most:
                break
            if now - MIN_GC_AGE < used <= now:
                continue
            if os.path.basename(path) not in pinned:
                with suppress(OSError):
                    os.unlink(path)
                    size -= bytes_
                    self._forget_senders(os.path.basename(path))
        return size

    def _forget_senders(self, blob: str) -> None:
        for folder in self._senders.glob("*"):
            (folder / blob).unlink(missing_ok=True)


@fault("coordinator.blob")
def _sync(fd: int, how: Callable[[int], object] = os.fsync) -> None:
    """Make what was written to this file durable, or all of its filesystem (`_syncfs`)."""
    how(fd)


def _syncfs(fd: int) -> None:
    if _LIBC is not None and _LIBC.syncfs(fd):
        raise OSError(number := ctypes.get_errno(), os.strerror(number))


def _sync_together(folder: int, paths: Sequence[Path]) -> None:
    """Sync these files or names: with the whole filesystem of the folder, where the kernel then tells of every error
    since that was opened (Linux 5.8); else one by one."""
    if len(paths) > FEW and _LIBC is not None:
        _sync(folder, _syncfs)
        return
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _sync(fd)
        finally:
            os.close(fd)


def _tells_errors(release: str) -> bool:
    """Whether syncfs of this kernel fails where something could not be written."""
    version = re.match(r"(\d+)\.(\d+)", release)
    return version is not None and (int(version[1]), int(version[2])) >= (5, 8)


_LIBC = ctypes.CDLL(None, use_errno=True) if _tells_errors(os.uname().release) else None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _cannot_store(error: OSError) -> GridError:
    hint = "see to the disk the coordinator's state directory is on"
    return GridError("the coordinator cannot store the shipped files", _reason(error), hint)


def _check_content(blob: str, found: str) -> None:
    if found != blob:
        raise BadValue(
            "a shipped file does not have the content it was announced with",
            why=f"the hash of what came is {found[:12]}…, not {blob[:12]}…",
            hint="it may have changed while it was sent: submit again",
        )


def _folder_of(user: str) -> str:
    """A name may have characters that no file's may."""
    return hashlib.blake2b(user.encode(), digest_size=16).hexdigest()


def _reason(error: OSError) -> str:
    return f"{error.strerror}: {error.filename}" if error.filename else error.strerror or str(error)


def _check(blob: str) -> None:
    if not is_blob_hash(blob):
        raise BadValue(f"{blob[:80]!r} is not a blob's hash", why="a blob's name is 64 hex digits")
