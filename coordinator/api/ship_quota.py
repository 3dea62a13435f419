"""How many bytes of shipped files one user may have at the coordinator.

A blob counts for each user who sent it, asked for it or submitted it, as long as a live job of that user needs it, and
for an hour after its last use: so long it stays in any case, and takes room from others.
"""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.resources import format_bytes

QUOTA = 10 << 30
PART_OF_DISK = 4
"""If nothing is configured: so many bytes, or 1/4 of what is free on the disk at the start, whichever is less."""
RECENT = 3600.0
"""Seconds after its last use in which a blob counts in any case."""
LEAST_BYTES = 4096
"""A blob counts for at least so many, as a file takes on a disk."""
REMEMBERED = 10_000
"""So many blobs of a user are remembered before it is looked which of them count no more."""
LOOK_SECONDS = 1.0
"""Interval between looks at what of a user that is over the quota counts no more."""


def default_quota(state_dir: Path) -> int:
    """The quota if nothing is configured."""
    disk = os.statvfs(state_dir)
    return min(QUOTA, disk.f_bavail * disk.f_frsize // PART_OF_DISK)


class _Account:
    """What counts for one user: blobs with their sizes and last uses, and bytes of blobs that are on their way."""

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[int, float]] = {}
        self.bundles: set[str] = set()
        """Manifests whose blobs all count."""
        self.total = 0
        self.arriving = 0
        self.looked = float("-inf")
        self.most = REMEMBERED

    def count(self, blob: str, size: int, now: float) -> None:
        size = max(size, LEAST_BYTES)
        before, _ = self.blobs.get(blob, (0, 0.0))
        self.total += size - before
        self.blobs[blob] = (size, now)

    def drop(self, blob: str) -> None:
        self.total -= self.blobs.pop(blob)[0]


class Quota:
    """`limit` is in bytes. `size` tells a blob's size (None: it is gone), `contents` the blobs of a manifest, and
    `live` the manifests that live jobs of a user need."""

    def __init__(
        self,
        limit: int,
        size: Callable[[str], int | None],
        contents: Callable[[str], Iterable[str]],
        live: Callable[[str], Iterable[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = limit
        self._size = size
        self._contents = contents
        self._live = live
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def owns(self, user: str, blob: str) -> bool:
        """Whether the user has sent it, as far as that is remembered: while it counts, and mostly longer."""
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
        else:
            self.refers(user, (bundle, *self._read(bundle)))
            account.bundles.add(bundle)

    def arrives(self, user: str, size: int) -> None:
        """More of a blob has come; negative: what came is kept (and counted by `refers`), or given up. Raises GridError
        above the quota."""
        account = self._account(user)
        account.arriving = max(0, account.arriving + size)
        if size > 0:
            self._check(user, account)

    def held(self, user: str) -> int:
        """What counts for a user now, in bytes; an upper bound of it while that is below the quota."""
        account = self._account(user)
        return account.total + account.arriving

    def _account(self, user: str) -> _Account:
        if (account := self._accounts.get(user)) is None:
            account = self._accounts[user] = _Account()
            for blob in self._needed(user):  # submitted before this coordinator started
                if (size := self._size(blob)) is not None:
                    account.count(blob, size, self._clock() - RECENT)
        return account

    def _check(self, user: str, account: _Account) -> None:
        if account.total + account.arriving <= self.limit and len(account.blobs) <= account.most:
            return
        now = self._clock()
        if now - account.looked >= LOOK_SECONDS:
            account.looked = now
            needed = self._needed(user)
            for blob, (_, used) in list(account.blobs.items()):
                if self._size(blob) is None or (blob not in needed and now - used > RECENT):
                    account.drop(blob)
                    account.bundles.clear()
            account.most = max(REMEMBERED, 2 * len(account.blobs))
        held = account.total + account.arriving
        if held > self.limit:
            raise GridError(
                f"the files that {user} has shipped are {format_bytes(held)} at the coordinator, and"
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
