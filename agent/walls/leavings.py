"""What a job leaves on the machine outside of its own directory, and whoever is given its user id later would own:
files in the directories where everybody may write, System V memory, semaphores and queues, POSIX queues. Removed with
the rights of the user that left them, which is why nothing of anybody else's can be hit. Stdlib only.
"""

import contextlib
import ctypes
import os

from distributed_grid.agent.walls import files

MEMORY = ("/dev/shm", "/dev/mqueue")  # noqa: S108 - what our user has there is removed
DISK = ("/tmp", "/var/tmp")  # noqa: S108 - the same
SECONDS = 5.0
"""That the removing of one thing may take; what is left then is removed when we are asked again."""
_TABLES = {"shm": "shmid", "sem": "semid", "msg": "msqid"}  # and what their numbers are called
_REMOVE = 0  # IPC_RMID

_libc = ctypes.CDLL(None, use_errno=True)


def clear(uid: int, folders: tuple[str, ...], seconds: float = SECONDS, spare: str = "") -> None:
    """Remove what this user, who we are, owns directly in these directories, with all below it, but for names that
    begin with `spare`, and its System V objects. What cannot be removed stays."""
    for folder in folders:
        with contextlib.suppress(OSError):
            _clear_folder(uid, folder, seconds, spare)
    for table in _TABLES:
        with contextlib.suppress(OSError, ValueError, IndexError):
            _clear_table(uid, table)


def _clear_folder(uid: int, folder: str, seconds: float, spare: str) -> None:
    above = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.scandir(above) as entries:
            ours = [entry.name for entry in entries if _owner(entry) == uid]
        for name in map(os.fsencode, ours):
            if spare and name.startswith(spare.encode()):
                continue
            with contextlib.suppress(OSError):
                files.remove(above, name, seconds)
    finally:
        os.close(above)


def _owner(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return -1


def _clear_table(uid: int, table: str) -> None:
    """Each line of /proc/sysvipc has an object: its number, and the users that own it and made it, by the names in the
    first line."""
    with open(f"/proc/sysvipc/{table}") as file:
        head, *lines = file.read().splitlines()
    names = head.split()
    number, owner, maker = (names.index(one) for one in (_TABLES[table], "uid", "cuid"))
    for line in lines:
        values = line.split()
        if str(uid) in (values[owner], values[maker]):
            if table == "sem":
                _libc.semctl(int(values[number]), 0, _REMOVE)
            else:
                getattr(_libc, f"{table}ctl")(int(values[number]), _REMOVE, None)
