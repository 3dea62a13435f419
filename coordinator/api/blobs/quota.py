"""The quota of shipped files at the coordinator: what counts for each user, and for how long."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.resources import format_bytes

QUOTA = 10 << 30
PART_OF_DISK = 4
"""The default quota: this many bytes, or a quarter of the disk that is free at the start, whichever is less."""
RECENT = 3600.0
"""Seconds after its last use during which a blob counts in any case."""
LEAST_BYTES = 4096
"""Minimum that a blob counts, as a file takes on a disk."""
REMEMBERED = 10_000
"""Blobs of a user that are remembered before those that count no more are counted_at for."""
SLICE = 10_000
"""Blobs that are dropped in one turn of the loop."""
COUNT_SECONDS = 1.0
COUNT_PAUSE = 20.0
"""Minimum interval between searches for blobs that count no more, of a user over the quota: so many seconds, and so
many times as long as the last one took."""


def default_quota(state_dir: Path) -> int:
    """The quota if nothing is configured."""
    disk = os.statvfs(state_dir)
    return min(QUOTA, disk.f_bavail * disk.f_frsize // PART_OF_DISK)


class _Account:
    """The counted storage of one user: blobs with sizes and last uses, and bytes of uploads in progress."""

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[int, float]] = {}
        self.bundles: set[str] = set()
        """Manifests whose blobs all count."""
        self.total = 0
        self.arriving = 0
        self.counted_at, self.took = float("-inf"), 0.0
        """When it was searched for what counts no more, and how long that took (s)."""
        self.most = REMEMBERED
        self.counting = asyncio.Lock()

    @property
    def counted(self) -> int:
        """The counted bytes now; an upper bound while it is below the quota."""
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
    the manifests that live jobs of a user need, and `sent` what the user had sent before the coordinator started. All
    but `live` may be called by any thread: for a user with millions of files they are called for seconds."""

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
        self._opening: dict[str, asyncio.Task[_Account]] = {}

    async def owned(self, user: str, blobs: Iterable[str]) -> set[str]:
        """Return those of these blobs that the user has sent, as far as that is remembered: while they count, and
        mostly longer."""
        account = await self._account(user)
        return {blob for blob in blobs if blob in account.blobs}

    async def owns_all(self, user: str, bundle: str) -> bool:
        """Whether the user has sent a manifest and all that it names."""
        account = await self._account(user)
        return bundle in account.blobs and (
            bundle in account.bundles or all(blob in account.blobs for blob in self._read(bundle))
        )

    async def refers(self, user: str, blobs: Iterable[str]) -> None:
        """The user has sent these blobs, or uses what was sent before. Raises GridError above the quota."""
        account, now = await self._account(user), self._clock()
        for blob in blobs:
            if (size := self._size(blob)) is not None:
                account.count(blob, size, now)
        await self._check(user, account)

    async def submits(self, user: str, bundle: str) -> None:
        """The user submits jobs with this manifest. Raises GridError above the quota."""
        account = await self._account(user)
        if bundle in account.bundles:
            await self.refers(user, (bundle,))
            return
        now = self._clock()
        for blob in (bundle, *self._read(bundle)):
            size = account.blobs[blob][0] if blob in account.blobs else self._size(blob)
            if size is not None:
                account.count(blob, size, now)
        await self._check(user, account)
        account.bundles.add(bundle)

    async def arrives(self, user: str, size: int) -> None:
        """Bytes of an upload have come; to be followed by `leaves` in any case. Raises GridError above the quota."""
        account = await self._account(user)
        account.arriving += size
        await self._check(user, account)

    def leaves(self, user: str, size: int) -> None:
        """Stop counting an upload of this size (bytes): it is finished (and counted by `refers`) or given up."""
        if (account := self._accounts.get(user)) is not None:
            account.arriving = max(0, account.arriving - size)

    async def _account(self, user: str) -> _Account:
        if (account := self._accounts.get(user)) is not None:
            return account
        if (opening := self._opening.get(user)) is None:
            opened = asyncio.to_thread(self._opened, user, {*self._live(user)})
            opening = self._opening[user] = asyncio.create_task(opened)
            opening.add_done_callback(lambda _: self._opening.pop(user))
        account = await asyncio.shield(opening)
        return self._accounts.setdefault(user, account)

    def _opened(self, user: str, live: set[str]) -> _Account:
        """Return the account for the time before this coordinator started."""
        account, used = _Account(), self._clock() - RECENT
        for blobs in (self._sent(user), *((bundle, *self._read(bundle)) for bundle in live)):
            for blob in blobs:
                if blob not in account.blobs and (size := self._size(blob)) is not None:
                    account.count(blob, size, used)
        return account

    async def _check(self, user: str, account: _Account) -> None:
        if account.counted <= self.limit and len(account.blobs) <= account.most:
            return
        async with account.counting:
            if self._clock() - account.counted_at >= max(COUNT_SECONDS, COUNT_PAUSE * account.took):
                await self._recount(user, account)
        if account.counted > self.limit:
            raise GridError(
                f"the files that {user} has shipped are {format_bytes(account.counted)} at the coordinator, and"
                f" {format_bytes(self.limit)} are the most for one user",
                why="they count while a live job needs them, and for an hour after their last use",
                hint="ship less (.gridignore), wait, or have an operator raise coordinator.ship_quota",
            )

    async def _recount(self, user: str, account: _Account) -> None:
        """Search for what counts no more, in a thread, and drop it a slice at a time: others have their turn."""
        account.counted_at, began = self._clock(), time.monotonic()
        account.bundles.clear()  # so that what is submitted from now on counts as used
        seen = [*account.blobs.items()]
        gone = await asyncio.to_thread(self._search, seen, {*self._live(user)}, account.counted_at - RECENT)
        for at in range(0, len(gone), SLICE):
            for blob, facts in gone[at : at + SLICE]:
                if account.blobs.get(blob) == facts:  # else it was used meanwhile
                    account.drop(blob)
            await asyncio.sleep(0)
        account.most = max(REMEMBERED, 2 * len(account.blobs))
        account.took = time.monotonic() - began

    def _search(
        self, seen: list[tuple[str, tuple[int, float]]], live: set[str], since: float
    ) -> list[tuple[str, tuple[int, float]]]:
        """Return the blobs that do not count any more: they are gone from the disk, or were not used since and no live
        job needs them. One manifest is in memory at a time: hundreds with a hundred thousand names each would take
        gigabytes."""
        gone = {blob: facts for blob, facts in seen if self._size(blob) is None}
        old = {blob: facts for blob, facts in seen if facts[1] < since and blob not in gone}
        for bundle in live:
            if not old:
                break
            for blob in (bundle, *self._read(bundle)):
                old.pop(blob, None)
        return [*gone.items(), *old.items()]

    def _read(self, bundle: str) -> Iterable[str]:
        with suppress(OSError, GridError):
            return self._contents(bundle)
        return ()
