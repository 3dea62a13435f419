"""Cache of contents shipped with jobs: files named by the hash of their content."""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path

from distributed_grid.protocol.bundle import MANIFEST_BYTES, Manifest, decode_manifest, hasher, is_blob_hash
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import BlobData
from distributed_grid.runtime.sparse import write_sparse

KEPT_BYTES = 2 << 30
AT_ONCE = 8
"""Maximum number of blobs fetched concurrently for one job."""

Part = Callable[[str, int], Awaitable[BlobData]]


class BlobCache:
    """The blobs in one directory. `part` asks the coordinator for the bytes of a blob from an offset on. Above `kept`
    bytes the least recently used are removed, but never one that is being unpacked."""

    def __init__(self, directory: Path, part: Part, kept: int = KEPT_BYTES) -> None:
        self.directory = directory
        self._part = part
        self._kept = kept
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._in_use: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def bundle(self, blob: str) -> AsyncIterator[Manifest]:
        """The manifest with this hash. As long as the context is open, all its contents are in the directory. Raises
        GridError."""
        with self._pinned([blob]):
            await self._ensure(blob, MANIFEST_BYTES)
            manifest = await asyncio.to_thread(self._manifest, blob)
            sizes = {entry.blob: entry.size for entry in manifest.entries if entry.blob}
            with self._pinned(sizes):
                await self._ensure_all(sizes)
                yield manifest
        for name in await asyncio.to_thread(self._excess):
            if name not in self._in_use and name.lstrip(".") not in self._fetching:
                (self.directory / name).unlink(missing_ok=True)

    def _manifest(self, blob: str) -> Manifest:
        return decode_manifest((self.directory / blob).read_bytes())

    @contextlib.contextmanager
    def _pinned(self, blobs: Iterable[str]) -> Iterator[None]:
        names = [*blobs]
        self._in_use.update(names)
        try:
            yield
        finally:
            self._in_use.subtract(names)
            for name in names:
                if self._in_use[name] <= 0:
                    del self._in_use[name]

    async def _ensure_all(self, sizes: dict[str, int]) -> None:
        turns = asyncio.Semaphore(AT_ONCE)

        async def have(blob: str, size: int) -> None:
            async with turns:
                await self._ensure(blob, size)

        try:
            async with asyncio.TaskGroup() as group:
                for blob, size in sizes.items():
                    group.create_task(have(blob, size))
        except ExceptionGroup as errors:  # not except*: before Python 3.11.4 that wraps again what is raised here
            raise errors.exceptions[0] from None

    async def _ensure(self, blob: str, most: int) -> None:
        """Fetch it if it is missing; concurrent callers wait for the same fetch."""
        if not is_blob_hash(blob):
            raise GridError(f"{blob[:80]!r} is not the name of anything shipped")
        with contextlib.suppress(OSError):
            os.utime(self.directory / blob)
            return
        task = self._fetching.get(blob)
        if task is None:
            task = self._fetching[blob] = asyncio.create_task(self._fetch(blob, most), name=f"blob {blob[:8]}")
            task.add_done_callback(lambda done: self._fetched(blob, done))
        await asyncio.shield(task)

    def _fetched(self, blob: str, task: "asyncio.Task[None]") -> None:
        del self._fetching[blob]
        if not task.cancelled():
            task.exception()  # raised to waiting callers, if any

    async def _fetch(self, blob: str, most: int) -> None:
        """Write to a temporary file, check it, and rename: a file with a blob's name is always whole."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = self.directory / f".{blob}"
        content, size = hasher(), 0
        try:
            with open(aside, "wb", buffering=0, opener=_private) as file:  # noqa: ASYNC230 - in small parts
                while True:
                    part = await self._part(blob, size)
                    if part.error:
                        raise GridError("what was shipped with the job is not to be had", why=part.error)
                    if size + len(part.data) > most:
                        raise GridError("what was shipped with the job is not what was announced", why="it is larger")
                    content.update(part.data)
                    write_sparse(file.fileno(), part.data, size)
                    size += len(part.data)
                    if part.end:
                        break
                    if not part.data:
                        raise GridError("what was shipped with the job is not to be had", why="it does not go on")
            if content.hexdigest() != blob:
                raise GridError("what was shipped with the job came damaged", why=f"its hash is not {blob[:16]}…")
            os.replace(aside, self.directory / blob)
        except OSError as error:
            why = f"{error.strerror} ({error.filename or aside})"
            raise GridError("what was shipped with the job cannot be kept on this node", why=why) from None
        finally:
            aside.unlink(missing_ok=True)

    def _excess(self) -> list[str]:
        """Blobs above the bound, least recently used first, and partial fetches of an agent that was killed."""
        found, total, gone = [], 0, []
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if is_blob_hash(entry.name):
                    seen = entry.stat()
                    found.append((seen.st_mtime, seen.st_size, entry.name))
                    total += seen.st_size
                else:
                    gone.append(entry.name)
        for _, size, name in sorted(found):
            if total <= self._kept:
                break
            if name not in self._in_use:
                gone.append(name)
                total -= size
        return gone


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
