"""Removes what a slot's user left outside of the directories of its jobs: files in memory and on disk, and System V
objects. Stdlib only."""

import contextlib
import ctypes
import os
import time

from distributed_grid.agent.walls import files

MEMORY = ("/dev/shm", "/dev/mqueue")  # noqa: S108 - what our user has there is removed
DISK = ("/tmp", "/var/tmp")  # noqa: S108 - the same
CLEAR_SECONDS = 5.0
"""Timeout for removing one file, directory or object (s); what is left is removed at the next request."""
_SURE = 50_000_000  # changes of a directory that are further apart (ns) have different timestamps for sure
_TABLES = {"shm": "shmid", "sem": "semid", "msg": "msqid"}  # by table, the column with the number of an object
_HEAD = 1024  # bytes: more than the first line of such a table
_IPC_RMID = 0  # IPC_RMID

_libc = ctypes.CDLL(None, use_errno=True)


class Leftovers:
    """The files and objects that the user `uid` owns. A directory that has not changed since nothing of that user was
    in it is not listed again, and the tables of System V objects are opened once: after a job that left nothing, each
    costs one system call."""

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._clean: dict[str, tuple[int, int, int]] = {}
        """Directories without anything of this user: device, inode and time of change."""
        self._tables: dict[str, int] = {}

    def clear(self, folders: tuple[str, ...], seconds: float = CLEAR_SECONDS, spare: str = "") -> None:
        """Remove what the user owns directly in these directories, recursively, except names that begin with `spare`,
        and its System V objects. Failures are ignored."""
        for folder in folders:
            with contextlib.suppress(OSError):
                self._clear_folder(folder, seconds, spare)
        for table in _TABLES:
            with contextlib.suppress(OSError, ValueError, IndexError):
                self._clear_table(table)

    def _clear_folder(self, folder: str, seconds: float, spare: str) -> None:
        seen = os.stat(folder)
        state = seen.st_dev, seen.st_ino, seen.st_ctime_ns
        if self._clean.get(folder) == state:
            return
        sure = seen.st_ctime_ns + _SURE < time.time_ns()
        above = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os.scandir(above) as entries:
                ours = [entry.name for entry in entries if _owner(entry) == self._uid]
            for name in map(os.fsencode, ours):
                if spare and name.startswith(spare.encode()):
                    continue
                with contextlib.suppress(OSError):
                    files.remove(above, name, seconds)
        finally:
            os.close(above)
        if sure and not ours:
            self._clean[folder] = state

    def _clear_table(self, table: str) -> None:
        """Remove the user's objects of a table. Each line of /proc/sysvipc is an object; the columns named in its first
        line are its number, owner and creator."""
        if (fd := self._tables.get(table, -1)) < 0:
            fd = self._tables[table] = os.open(f"/proc/sysvipc/{table}", os.O_RDONLY | os.O_CLOEXEC)
        found = os.pread(fd, _HEAD, 0)
        if found.count(b"\n") == 1:
            return
        while part := os.pread(fd, 1 << 16, len(found)):
            found += part
        head, *lines = found.decode().splitlines()
        names = head.split()
        number, owner, maker = (names.index(one) for one in (_TABLES[table], "uid", "cuid"))
        for line in lines:
            values = line.split()
            if str(self._uid) in (values[owner], values[maker]):
                if table == "sem":
                    _libc.semctl(int(values[number]), 0, _IPC_RMID)
                else:
                    getattr(_libc, f"{table}ctl")(int(values[number]), _IPC_RMID, None)


def _owner(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return -1
