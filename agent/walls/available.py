"""Which walls this node can build, and why no stronger ones."""

import contextlib
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from distributed_grid.agent.walls import accounts, enclosure, forkserver
from distributed_grid.agent.walls.enclosure import LANDLOCK, NAMESPACE, NONE, USER


class Available(NamedTuple):
    """The strongest walls that can be built, and by stronger kind why that cannot."""

    walls: str
    why: dict[str, str]


def survey(state_dir: Path) -> Available:
    """The walls that an agent with this state directory (it exists) can build."""
    why: dict[str, str] = {}
    for level, reason in ((USER, _no_user), (NAMESPACE, _no_namespace), (LANDLOCK, _no_landlock)):
        if not (found := reason(state_dir)):
            return Available(level, why)
        why[level] = found
    return Available(NONE, why)


def why_not(walls: str, state_dir: Path) -> str:
    """Why these walls cannot be built; empty if they can."""
    reasons = {USER: _no_user, NAMESPACE: _no_namespace, LANDLOCK: _no_landlock}
    return reasons[walls](state_dir) if walls in reasons else ""


def nameless() -> str:
    """Why jobs with a user of their own have no user name, and the remedy. Empty: they have one."""
    if os.path.exists(accounts.NSCD):
        return "nscd answers for the machine, and does not know the users of jobs; systemctl disable --now nscd"
    if os.geteuid() == 0:
        why = _tried(_name)
        return f"{why}; the agent needs CAP_SYS_ADMIN, or to be a service: sudo grid agent install" if why else ""
    why = next(filter(None, map(accounts.why_no_copy, accounts.FILES)), "")
    return f"{why}; sudo grid agent install makes it one" if why else ""


def _name() -> None:
    accounts.mount_over(accounts.NAMELESS, accounts.LAST_UID, accounts.LAST_UID, "/tmp")  # noqa: S108 - in a namespace of our own
    try:
        pwd.getpwuid(accounts.LAST_UID)
    except KeyError:
        raise OSError(f"/etc/nsswitch.conf does not have {accounts.FILES[0]} looked into") from None


def _no_user(state_dir: Path) -> str:
    if not forkserver.privileged():
        return "the agent may not run jobs as other users: that takes root, or a service installed by root"
    for above in state_dir.resolve().parents:
        if above.exists() and not above.stat().st_mode & stat.S_IXOTH:
            return f"{above} is closed to other users, and the directories of jobs are below it"
    return ""


def _no_namespace(state_dir: Path) -> str:
    if os.geteuid() == 0:
        return "root owns all of the machine's files, in a user namespace as well"
    hint = " (kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns, user.max_user_namespaces)"
    return f"no user namespace can be made: {why}{hint}" if (why := _tried(enclosure.try_namespaces)) else ""


def _no_landlock(state_dir: Path) -> str:
    return enclosure.why_no_landlock(str(state_dir))


def _tried(build: Callable[[], None]) -> str:
    """Build it in a child process. Returns why that fails; empty: it does not."""
    failed, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = ""
        try:
            build()
        except OSError as error:
            text = error.strerror or str(error)
        finally:
            os.write(said, text.encode())
            os._exit(0)
    os.close(said)
    try:
        with os.fdopen(failed, "rb") as file:
            text = file.read().decode(errors="replace")
    finally:
        with contextlib.suppress(ChildProcessError):  # the agent reaps whatever ends
            os.waitpid(pid, 0)
    return text
