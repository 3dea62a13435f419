"""Room that is kept back on the coordinator's disk: when others have filled the rest, results still fit.

It is given up when a commit fails, and made again once there is room. Until then no new jobs are taken.
"""

import os
from contextlib import suppress
from pathlib import Path

RESERVE_BYTES = 16 << 20
SPARE_BYTES = 4 << 20
"""What has to be free besides: made from the last bytes, the reserve would be given up at the next job."""
HARDLY_ANY = 1 << 20
"""With less than this free the disk counts as full already at a start."""


class Reserve:
    """The file `reserve` under the state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "reserve"

    def ease(self) -> None:
        """Before a start: give it up where there is no other room. A coordinator that ended on a full disk has to be
        able to come back and take the results."""
        with suppress(OSError):
            if self._free() < HARDLY_ANY:
                self.give_up()

    def make(self) -> str:
        """Have it, made now if it is not there. Empty, or why not."""
        try:
            if self._path.exists() and self._path.stat().st_blocks * 512 >= RESERVE_BYTES:
                return ""
            if (free := self._free()) < RESERVE_BYTES + SPARE_BYTES:
                return f"{free >> 20} MiB are free, {RESERVE_BYTES + SPARE_BYTES >> 20} MiB are needed for new jobs"
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)
        except OSError as error:
            self.give_up()
            return error.strerror or str(error)
        return ""

    def give_up(self) -> None:
        """Leave its room to the store."""
        with suppress(OSError):  # read-only, or it is not there: then there is none to be had
            self._path.unlink()

    def _free(self) -> int:
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize
