"""Whether the disk below this node's state directory takes anything. Where it does not, that is the node's trouble and
not that of a job: jobs are declined, so that they run elsewhere, and nothing is offered until it can be written again.
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import structlog

ROOM = 4 << 20
"""Bytes there must be room for: a job's spec, its directory, and the supervisor's journal, which grows by a MiB."""
EVERY = 10.0
AGAIN = 1.0
"""Seconds between two looks, while all is well and while it is not."""

log = structlog.get_logger("agent")


class Disk:
    """`trouble` says why no job can be started here; empty: it can. `changed` is called when that has changed."""

    def __init__(self, state_dir: Path, changed: Callable[[], None]) -> None:
        self.trouble = ""
        self._dir = state_dir
        self._changed = changed

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(AGAIN if self.trouble else EVERY)

    async def look(self) -> None:
        """Try it."""
        try:
            await asyncio.to_thread(self._try)
        except OSError as error:
            self.failed(error)
        else:
            self._note("")

    def failed(self, error: OSError) -> str:
        """Something could not be written there: that is so from now on, until a look finds otherwise. It in words."""
        kind = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EROFS: "read-only"}.get(error.errno or 0, "failing")
        self._note(f"disk {kind}: {error.strerror} in {self._dir}")
        return self.trouble

    def _try(self) -> None:
        """Take the room and give it back. Raises OSError."""
        path = self._dir / ".room"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, ROOM)
            os.pwrite(fd, b"x", 0)
            os.fdatasync(fd)
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()

    def _note(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        if trouble:
            log.error("no jobs are taken", why=trouble)
        else:
            log.info("the disk can be written again: jobs are taken", was=self.trouble)
        self.trouble = trouble
        self._changed()
