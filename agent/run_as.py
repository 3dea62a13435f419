"""Which user of this machine a job runs as, where that is not the agent's own; and reading files with that user's
rights.

Only root can hand a job to another user. The supervisor does it (supervisor_spawn.py); here is decided who it is, by
the user database of this machine, and the way to what is that user's is opened.
"""

import asyncio
import ctypes
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import Launch

AGENT, SUBMITTER = "agent", "submitter"
PASSABLE = 0o711
_libc = ctypes.CDLL(None, use_errno=True)


class Account(NamedTuple):
    """A user, with all groups it is in by the machine's user database."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    def environment(self) -> dict[str, str]:
        """What a login of this user has."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell or "/bin/sh"}


def look_up(name: str) -> Account:
    """The user of this name. Raises GridError."""
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):  # a name with a zero byte
        raise GridError(f"there is no user {name!r} on this machine") from None
    groups = tuple(os.getgrouplist(name, entry.pw_gid))
    return Account(name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell)


class RunAs:
    """Finds the account of each launch by the setting: `agent`, `submitter`, or the name of a user. `needed` is false
    where all jobs run as the agent's user, and nothing is to be looked up."""

    def __init__(self, setting: str = AGENT) -> None:
        self.needed = setting != AGENT
        self._setting = setting
        self._found: dict[str, Account] = {}

    async def find(self, launch: Launch) -> Account | None:
        """Whose this launch is; kept for `take`. The user database may be on the network, so another thread asks it.
        Raises GridError where there is no such user, or it is root and was not named in the setting."""
        if not self.needed:
            return None
        name = launch.user if self._setting == SUBMITTER else self._setting
        try:
            account = await asyncio.to_thread(look_up, name)
        except GridError:
            why = f"it runs jobs as those who submit them, and has no user {name!r}"
            raise GridError("this node cannot run it", why=why) from None
        if account.uid == 0 and self._setting == SUBMITTER:
            raise GridError("this node cannot run it", why="it runs jobs as those who submit them, but never as root")
        self._found[launch.allocation] = account
        return account

    def take(self, allocation: str) -> Account | None:
        """What was found for it, once."""
        return self._found.pop(allocation, None)


def begin(setting: str, state_dir: Path, founded: bool) -> None:
    """See that this agent can run jobs as it is set to, and open the way to their directories, and to nothing else in
    the state directory. Raises GridError."""
    if setting == AGENT:
        return
    if os.geteuid() != 0:
        raise GridError(
            f"jobs cannot be run as {setting!r} (agent.run_as)",
            why=f"only root can do that, and this agent is user {os.geteuid()}",
            hint="run the agent as root, or set agent.run_as: agent",
        )
    if setting == SUBMITTER and not founded:
        raise GridError(
            "jobs cannot be run as their submitters (agent.run_as)",
            why="this node has not joined a grid with an authority, and in any other one everybody may give any name",
            hint="grid agent join grid://HOST:PORT/TOKEN first, or name one user in agent.run_as",
        )
    if setting != SUBMITTER:
        try:
            look_up(setting)
        except GridError as error:
            raise GridError(error.what, why="agent.run_as names it", hint="make it, or name another one") from None
    own = state_dir.resolve()
    for above in own.parents:
        if not above.stat().st_mode & stat.S_IXOTH:
            raise GridError(
                f"other users cannot get to the directories of their jobs below {own}",
                why=f"{above} is closed to them",
                hint="give a --state-dir that is not, such as /var/lib/grid/agent",
            )
    for entry in os.scandir(own):
        mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
        if mode & 0o077 and not entry.is_symlink() and entry.name not in ("allocs", "recalls"):
            os.chmod(entry.path, mode & 0o700)
    (own / "allocs").mkdir(exist_ok=True)
    for path in (own / "allocs", own):
        path.chmod(PASSABLE)
    os.umask(0o077)
    os.setgroups([])  # root needs none, and `rights_of` cannot put them aside


@contextmanager
def rights_of(directory: Path) -> Iterator[None]:
    """Open files in this thread with the rights of the user whom this directory belongs to, where that is not us: what
    is read for somebody is what that user can read, wherever links and names lead. Raises OSError."""
    try:
        owner = directory.lstat()
    except FileNotFoundError:
        owner = None
    if os.geteuid() != 0 or owner is None or owner.st_uid == 0:
        yield
        return
    try:
        _become(owner.st_uid, owner.st_gid)
        yield
    finally:
        _become(0, 0)


def _become(uid: int, gid: int) -> None:
    """Of this thread alone, and for files alone; the rights of root on files go and come with it (setfsuid(2))."""
    for call, wanted in ((_libc.setfsgid, gid), (_libc.setfsuid, uid)):
        call(wanted)
        if call(-1) != wanted:
            raise PermissionError(f"files cannot be read as user {uid}")
