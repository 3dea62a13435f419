"""The user and the walls that jobs run with: what the configuration asks for, what this machine supports, and what the
node reports."""

import asyncio
import contextlib
import getpass
import os
import pwd
import stat
from pathlib import Path
from typing import Any, NamedTuple

from distributed_grid.agent.walls import available, enclosure
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.nodes import OWNERS_MOST
from distributed_grid.protocol.placement import LEAST_SHARED, Trust, Walls, open_to_all

AGENT, SUBMITTER = "agent", "submitter"
PASSABLE = 0o711
PASSED = ("jobs", "recalls")
"""Directories in the state directory that jobs of other users may enter."""


class Account(NamedTuple):
    """A user with all its groups, from the machine's user database."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    def environment(self) -> dict[str, str]:
        """The variables that a login of this user sets."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell or "/bin/sh"}


def look_up(name: str) -> Account:
    """Return the account of this name. Raises GridError."""
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):  # a name with a zero byte
        raise GridError(f"there is no user {name!r} on this machine") from None
    groups = tuple(os.getgrouplist(name, entry.pw_gid))
    return Account(name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell)


class RunAs:
    """Finds the account of each launch by the setting: `agent`, `submitter`, or a user name. `needed` is false where
    all jobs run as the agent's user."""

    def __init__(self, setting: str = AGENT) -> None:
        self.needed = setting != AGENT
        self._setting = setting
        self._found: dict[str, Account] = {}

    async def find(self, launch: Launch) -> Account | None:
        """Find the account of this launch; `take` returns it later. Runs in a thread, as the user database may be
        remote. Raises GridError for an unknown user, and for root unless the setting names it."""
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
        """Return the account found for this allocation, and forget it."""
        return self._found.pop(allocation, None)


def check_run_as(setting: str, state_dir: Path, founded: bool) -> None:
    """Check that this agent can run jobs as configured. Raises GridError."""
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
    """Make the working directories of jobs reachable for other users, and nothing else in the state directory. Files
    that this process creates from now on are private to its user. Raises OSError."""
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


AUTO = "auto"
SYSCTL = Path("/proc/sys")
_SYSCTLS = (
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ("user/max_user_namespaces", "0", "15000"),
)
"""Kernel settings: path, the value that forbids user namespaces, and one that allows them."""


class WallSettings(NamedTuple):
    """The configuration of walls: `walls` as in agent.walls; `owners` is empty if none are configured."""

    state_dir: Path
    run_as: str = AGENT
    walls: str = AUTO
    owners: tuple[str, ...] = ()
    trust: str = Trust.OWNER.value


def strongest_walls(asked: WallSettings) -> tuple[Walls, str]:
    """The strongest walls available to this user on this machine, and why none stronger."""
    if asked.run_as != AGENT:
        return Walls.USER, ""
    found, lacks = available.survey(asked.state_dir)
    return Walls(found), "; ".join(f"not {level}: {why}" for level, why in lacks.items())


def choose_walls(asked: WallSettings) -> tuple[Walls, str]:
    """The walls that this agent uses, and why none stronger. Raises GridError if the configured ones are not
    available."""
    best, lacks = strongest_walls(asked)
    named = best if asked.walls == AUTO else Walls(asked.walls)
    if asked.run_as != AGENT and named is not Walls.USER:
        raise GridError(
            f"jobs cannot be run behind walls {named} here (agent.walls)",
            why="agent.run_as says as which user they run, which is walls user",
            hint="leave out one of the two",
        )
    if named is not best and (lacks := available.why_not(named, asked.state_dir)):
        raise GridError(
            f"jobs cannot be run behind walls {named} here (agent.walls)",
            why=lacks,
            hint=f"set agent.walls: {AUTO}, which is {best} here"
            + ("" if best is Walls.USER else f"; or {walls_remedy()}"),
        )
    return named, lacks if named is best else "agent.walls asks for no stronger ones"


def shares_account(run_as: str) -> bool:
    """Whether all jobs run as one configured user: isolated from the agent, but not from each other."""
    return run_as not in (AGENT, SUBMITTER)


def runs_all_as_root(asked: WallSettings, built: Walls) -> bool:
    """Whether jobs of everyone run as root: the agent is root, and neither walls nor agent.run_as give them another
    user. In a user namespace, too, its files are root's."""
    if os.geteuid() != 0 or not open_to_all(promised(asked, built, "")[0], asked.trust):
        return False
    if asked.run_as == AGENT:
        return built is not Walls.USER
    return asked.run_as != SUBMITTER and look_up(asked.run_as).uid == 0


ROOT_JOBS = "jobs of everyone run as root on this machine"
NOT_AS_ROOT = "sudo grid agent install, which makes a user for the agent; or agent.walls: user; or agent.run_as: USER"


class Walled(NamedTuple):
    """The walls that the supervisor builds, the fields of NodeFacts about walls and owners, whether jobs of everyone
    run as root, and why our jobs would be taken for the owner's programs."""

    built: Walls
    facts: dict[str, Any]
    all_as_root: bool = False
    hidden: str = ""


def promised(asked: WallSettings, built: Walls, why: str) -> tuple[Walls, str]:
    """The walls that a node which builds these promises to strangers, and why none stronger."""
    if shares_account(asked.run_as):
        return Walls.NONE, f"the jobs of all submitters run as {asked.run_as} (agent.run_as), not kept from each other"
    return built, why


def wall_facts(asked: WallSettings) -> Walled:
    """The walls to build, and what the node reports about them. Raises GridError as `choose_walls`."""
    built, why = choose_walls(asked)
    walls, why = promised(asked, built, why)
    owners = asked.owners or default_owners()
    if len(owners) > OWNERS_MOST:
        raise GridError(
            f"{len(owners)} owners are too many (agent.owners)",
            why=f"{OWNERS_MOST} are the most",
            hint="agent.trust: everyone, where all may run jobs here",
        )
    nameless = available.nameless() if walls is Walls.USER and asked.run_as == AGENT else ""
    told = {"walls": walls.value, "walls_why": why, "owners": owners, "trusts": asked.trust}
    told |= {"nameless": nameless} if nameless else {}
    return Walled(built, told, runs_all_as_root(asked, built), why_hidden(built))


PROC = Path("/proc")
SHOWN = "add the agent's group to gid= of its mount"


def why_hidden(built: Walls) -> str:
    """Why we cannot see the processes of jobs, which have users of their own, and the remedy. Empty: we can."""
    if built is not Walls.USER or os.geteuid() == 0:
        return ""
    try:
        (PROC / "1/stat").open().close()
    except OSError:
        return f"/proc hides processes, so that jobs would be taken for the owner's programs; {SHOWN}"
    return ""


def end_proof(walls: str, run_as: str, grouped: bool) -> str:
    """Return what proves to a node that no process of a job is alive: its own `user id` or `pid namespace`, else the
    `control group` of its slot, else `descent`: processes below its spawner are searched for and killed in rounds."""
    if run_as == AGENT and walls == Walls.USER:
        return "user id"
    if walls == Walls.NAMESPACE:
        return "pid namespace"
    return "control group" if grouped else "descent"


def default_owners() -> tuple[str, ...]:
    """Return the owners if none are configured: the user that the agent runs as, and the one who called sudo."""
    names = [os.environ.get("SUDO_USER", "")]
    with contextlib.suppress(KeyError, OSError):
        names.append(getpass.getuser())
    with contextlib.suppress(KeyError):
        names.append(pwd.getpwuid(os.geteuid()).pw_name)
    return tuple(dict.fromkeys(filter(None, names)))


def are_weak(walls: Walls) -> bool:
    """Whether jobs of non-owners need trust behind these walls."""
    return not walls.meets(LEAST_SHARED)


def walls_remedy(sysctl: Path = SYSCTL) -> str:
    """Describe how to get stronger walls on this machine: a service installed by root, or kernel settings."""
    install = "sudo grid agent install, for walls user"
    closed = [f"{name.replace('/', '.')}={new}" for name, off, new in _SYSCTLS if _read(sysctl / name) == off]
    return f"{install}; sudo sysctl {' '.join(closed)}, for walls namespace" if closed else install


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
