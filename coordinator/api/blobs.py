"""Shipped files at the coordinator: blobs by the hash of their content, on disk, with who has sent them, bounded by the
size of the cache and by a quota for each user.
"""

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from distributed_grid.coordinator.store.open import sync
from distributed_grid.protocol.bundle import MANIFEST_BYTES, decode_manifest, hasher, is_blob_hash, names_in
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.messages import BlobData, PutBlob, WantBlob
from distributed_grid.protocol.resources import format_bytes
from distributed_grid.runtime.faults import fault
from distributed_grid.runtime.logs import get_logger

QUOTA = 10 << 30
PART_OF_DISK = 4
"""The default quota: this many bytes, or a quarter of the disk that is free at the start, whichever is less."""
RECENT = 3600.0
"""Seconds after its last use during which a blob counts in any case."""
LEAST_BYTES = 4096
"""Minimum that a blob counts, as a file takes on a disk."""
REMEMBERED = 10_000
"""Blobs of a user that are remembered before those that count no more are counted_at for."""
COUNT_SECONDS = 1.0
COUNT_PAUSE = 20.0
"""Minimum interval between searches for blobs that count no more, of a user over the quota: so many seconds, and so
many times as long as the last one took."""


def default_quota(state_dir: Path) -> int:
    """The quota if nothing is configured."""
    disk = os.statvfs(state_dir)
    return min(QUOTA, disk.f_bavail * disk.f_frsize // PART_OF_DISK)


class _Account:
    """What counts for one user: blobs with sizes and last uses, and bytes of uploads in progress."""

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[int, float]] = {}
        self.bundles: set[str] = set()
        """Manifests whose blobs all count."""
        self.total = 0
        self.arriving = 0
        self.counted_at, self.took = float("-inf"), 0.0
        """When it was searched for what counts no more, and how long that took (s)."""
        self.most = REMEMBERED

    @property
    def counted(self) -> int:
        """What counts now, in bytes; an upper bound while it is below the quota."""
        return self.total + self.arriving

    def count(self, blob: str, size: int, now: float) -> None:
        size = max(size, LEAST_BYTES)
        before, _ = self.blobs.get(blob, (0, 0.0))
        self.total += size - before
        self.blobs[blob] = (size, now)

    def drop(self, blob: str) -> None:
        self.total -= self.blobs.pop(blob)[0]


class Quota:
    """`limit` is in bytes. `size` tells a blob's size (None: it is gone), `contents` the blobs of a manifest, `live`
    the manifests that live jobs of a user need, and `sent` what the user had sent before the coordinator started."""

    def __init__(
        self,
        limit: int,
        size: Callable[[str], int | None],
        contents: Callable[[str], Iterable[str]],
        live: Callable[[str], Iterable[str]],
        clock: Callable[[], float] = time.monotonic,
        sent: Callable[[str], Iterable[str]] = lambda user: (),
    ) -> None:
        self.limit = limit
        self._sent = sent
        self._size = size
        self._contents = contents
        self._live = live
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def owns(self, user: str, blob: str) -> bool:
        """Whether the user has sent this blob, as far as that is remembered: while it counts, and mostly longer."""
        return blob in self._account(user).blobs

    def owns_all(self, user: str, bundle: str) -> bool:
        """The same of a manifest and all that it names."""
        account = self._account(user)
        return bundle in account.blobs and (
            bundle in account.bundles or all(blob in account.blobs for blob in self._read(bundle))
        )

    def refers(self, user: str, blobs: Iterable[str]) -> None:
        """The user has sent these blobs, or uses what was sent before. Raises GridError above the quota."""
        account, now = self._account(user), self._clock()
        for blob in blobs:
            if (size := self._size(blob)) is not None:
                account.count(blob, size, now)
        self._check(user, account)

    def submits(self, user: str, bundle: str) -> None:
        """The user submits jobs with this manifest. Raises GridError above the quota."""
        account = self._account(user)
        if bundle in account.bundles:
            self.refers(user, (bundle,))
            return
        now = self._clock()
        for blob in (bundle, *self._read(bundle)):
            size = account.blobs[blob][0] if blob in account.blobs else self._size(blob)
            if size is not None:
                account.count(blob, size, now)
        self._check(user, account)
        account.bundles.add(bundle)

    def arrives(self, user: str, size: int) -> None:
        """Bytes of an upload have come; negative: the upload is finished (and counted by `refers`) or given up. Raises
        GridError above the quota."""
        account = self._account(user)
        account.arriving = max(0, account.arriving + size)
        if size > 0:
            self._check(user, account)

    def _account(self, user: str) -> _Account:
        if (account := self._accounts.get(user)) is None:
            account = self._accounts[user] = _Account()
            for blob in self._needed(user).union(self._sent(user)):  # before this coordinator started
                if (size := self._size(blob)) is not None:
                    account.count(blob, size, self._clock() - RECENT)
        return account

    def _check(self, user: str, account: _Account) -> None:
        if account.counted <= self.limit and len(account.blobs) <= account.most:
            return
        now = self._clock()
        if now - account.counted_at >= max(COUNT_SECONDS, COUNT_PAUSE * account.took):
            account.counted_at, began = now, time.monotonic()
            needed = self._needed(user)
            for blob, (_, used) in list(account.blobs.items()):
                if self._size(blob) is None or (blob not in needed and now - used > RECENT):
                    account.drop(blob)
                    account.bundles.clear()
            account.most = max(REMEMBERED, 2 * len(account.blobs))
            account.took = time.monotonic() - began
        if account.counted > self.limit:
            raise GridError(
                f"the files that {user} has shipped are {format_bytes(account.counted)} at the coordinator, and"
                f" {format_bytes(self.limit)} are the most for one user",
                why="they count while a live job needs them, and for an hour after their last use",
                hint="ship less (.gridignore), wait, or have an operator raise coordinator.ship_quota",
            )

    def _needed(self, user: str) -> set[str]:
        needed: set[str] = set()
        for bundle in set(self._live(user)):
            needed.add(bundle)
            needed.update(self._read(bundle))
        return needed

    def _read(self, bundle: str) -> Iterable[str]:
        with suppress(OSError, GridError):
            return self._contents(bundle)
        return ()


BLOB_BYTES = 1 << 30
"""The largest blob."""
CACHE_BYTES = 10 << 30
"""Size of the cache; above it the least recently used blobs go, unless a live job needs them. Above twice this, no
upload begins."""
UPLOADS = 16
"""Blobs one connection may be sending at the same time."""
MANIFESTS = 16
"""Manifests that are kept decoded."""
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
            self._blobs.quota.arrives(self._user, len(part.data))
            if not part.end:
                return False
            del self._open[part.blob]
            await self._blobs.finish(upload, part.blob)
            size, upload.size = upload.size, 0
            self._blobs.quota.arrives(self._user, -size)
            self._blobs.quota.refers(self._user, (part.blob,))
            await asyncio.to_thread(self._blobs.note_sender, self._user, part.blob)
            return True
        except (GridError, OSError) as error:
            self._drop(part.blob)
            if upload is not None:
                self._discard(upload)
            if not part.end and len(self._open) < UPLOADS:
                self._open[part.blob] = None
            if isinstance(error, OSError):
                hint = "see to the disk the coordinator's state directory is on"
                raise GridError("the coordinator cannot store the shipped files", _reason(error), hint) from error
            raise

    def _drop(self, blob: str) -> None:
        if upload := self._open.pop(blob, None):
            self._discard(upload)

    def _discard(self, upload: _Upload) -> None:
        self._blobs.quota.arrives(self._user, -upload.size)
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
        """What the user has sent, also to an earlier coordinator; some of it may be gone."""
        with suppress(OSError):
            return os.listdir(self._senders / _folder_of(user))
        return []

    def size(self, blob: str) -> int | None:
        """Its bytes; None: it is not here."""
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

    def missing(self, blobs: Iterable[str], user: str = "") -> tuple[str, ...]:
        """The blobs that the user has to send, in the order asked; the others count for the user. A blob that another
        user has sent counts as missing: else its hash would be enough to learn that it is here, and to have it laid out
        for a job. Raises BadValue for a malformed hash, GridError above the user's quota."""
        wanted = tuple(dict.fromkeys(blobs))
        for blob in wanted:
            _check(blob)
        missing = tuple(blob for blob in wanted if not (self.quota.owns(user, blob) and self.has(blob)))
        self.quota.refers(user, set(wanted).difference(missing))
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
        left = memoryview(part.data)
        while left:
            left = left[upload.file.write(left) :]
        upload.digest.update(part.data)
        upload.size += len(part.data)

    async def finish(self, upload: _Upload, blob: str) -> None:
        if upload.digest.hexdigest() != blob:
            raise BadValue(
                "a shipped file does not have the content it was announced with",
                why=f"the hash of what came is {upload.digest.hexdigest()[:12]}…, not {blob[:12]}…",
                hint="it may have changed while it was sent: submit again",
            )
        await asyncio.to_thread(self._keep, upload, self._path(blob))
        if self._size is not None:
            self._size += upload.size
        if self._size is None or self._size > self._most:
            self._size = await asyncio.to_thread(self._shrink, {*self._needed()})

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
def _sync(fd: int) -> None:
    os.fsync(fd)


def _folder_of(user: str) -> str:
    """A name may have characters that no file's may."""
    return hashlib.blake2b(user.encode(), digest_size=16).hexdigest()


def _reason(error: OSError) -> str:
    return f"{error.strerror}: {error.filename}" if error.filename else error.strerror or str(error)


def _check(blob: str) -> None:
    if not is_blob_hash(blob):
        raise BadValue(f"{blob[:80]!r} is not a blob's hash", why="a blob's name is 64 hex digits")
