"""Which user of this machine a job runs as, where that is not for the walls to say.

Only root can hand a job to another user. A spawner does it (walls/); here is decided who it is, by
the user database of this machine, and the way to the directories of jobs is opened.
"""

import asyncio
import os
import pwd
import stat
from pathlib import Path
from typing import NamedTuple

from distributed_grid.agent.walls import available, enclosure
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import Launch

AGENT, SUBMITTER = "agent", "submitter"
PASSABLE = 0o711
PASSED = ("jobs", "recalls")
"""The directories in the state directory that jobs of other users pass."""


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
    """See that this agent can run jobs as it is set to. Raises GridError."""
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
    if why := available.why_not(enclosure.USER, state_dir):
        raise GridError(
            f"other users cannot get to the directories of their jobs below {state_dir.resolve()}",
            why=why,
            hint="give a --state-dir that is not, such as /var/lib/grid/agent",
        )


def open_to_jobs(state_dir: Path) -> None:
    """Open the way to the working directories of jobs that run as other users, and to nothing else in the state
    directory. What this process makes from now on is for its own user alone. Raises OSError."""
    own = state_dir.resolve()
    for entry in os.scandir(own):
        mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
        if mode & 0o077 and not entry.is_symlink() and entry.name not in PASSED:
            os.chmod(entry.path, mode & 0o700)
    for path in (*(own / name for name in PASSED), own):
        path.mkdir(exist_ok=True)
        path.chmod(PASSABLE)
    os.umask(0o077)
    if os.geteuid() == 0:
        os.setgroups([])  # root needs none
