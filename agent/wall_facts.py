"""What a node tells of the walls behind which its jobs run, and of whose jobs it runs."""

import contextlib
import getpass
import os
import pwd
from pathlib import Path
from typing import Any, NamedTuple

from distributed_grid.agent.launch.run_as import AGENT
from distributed_grid.agent.walls import available
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.nodes import OWNERS_MOST
from distributed_grid.protocol.walls import LEAST_SHARED, Trust, Walls

AUTO = "auto"
SYSCTL = Path("/proc/sys")
_SYSCTLS = (
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ("user/max_user_namespaces", "0", "15000"),
)
"""Settings of the kernel, the value that keeps users from making namespaces, and one that lets them."""


class Asked(NamedTuple):
    """What the configuration says: `walls` as agent.walls has it, `owners` empty where it names none."""

    state_dir: Path
    run_as: str = AGENT
    walls: str = AUTO
    owners: tuple[str, ...] = ()
    trust: str = Trust.OWNER.value


def strongest(asked: Asked) -> tuple[Walls, str]:
    """The strongest walls that can be had on this machine by this user, and why there are no stronger ones."""
    if asked.run_as != AGENT:
        return Walls.USER, ""
    found, lacks = available.survey(asked.state_dir)
    return Walls(found), "; ".join(f"not {level}: {why}" for level, why in lacks.items())


def chosen(asked: Asked) -> tuple[Walls, str]:
    """The walls that this agent uses, and why none stronger. Raises GridError where those that are named cannot be
    had."""
    best, lacks = strongest(asked)
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
            hint=f"set agent.walls: {AUTO}, which is {best} here" + ("" if best is Walls.USER else f"; or {remedy()}"),
        )
    return named, lacks if named is best else "agent.walls asks for no stronger ones"


def wall_facts(asked: Asked) -> dict[str, Any]:
    """The fields of NodeFacts about walls and owners. Raises GridError as `chosen`."""
    walls, why = chosen(asked)
    owners = asked.owners or default_owners()
    if len(owners) > OWNERS_MOST:
        raise GridError(
            f"{len(owners)} owners are too many (agent.owners)",
            why=f"{OWNERS_MOST} are the most",
            hint="agent.trust: everyone, where all may run jobs here",
        )
    nameless = available.nameless() if walls is Walls.USER and asked.run_as == AGENT else ""
    told = {"walls": walls.value, "walls_why": why, "owners": owners, "trusts": asked.trust}
    return told | ({"nameless": nameless} if nameless else {})


def proof(walls: str, run_as: str, grouped: bool) -> str:
    """By what a node knows that nothing of a job lives: its `user id` or its `pid namespace`, where it has one of its
    own, else the `control group` of its slot, else `descent`: its processes are looked for below its spawner, and ended
    in rounds."""
    if run_as == AGENT and walls == Walls.USER:
        return "user id"
    if walls == Walls.NAMESPACE:
        return "pid namespace"
    return "control group" if grouped else "descent"


def default_owners() -> tuple[str, ...]:
    """Whom this agent belongs to if nobody says it: the user it runs as, and who became that user by sudo."""
    names = [os.environ.get("SUDO_USER", "")]
    with contextlib.suppress(KeyError, OSError):
        names.append(getpass.getuser())
    with contextlib.suppress(KeyError):
        names.append(pwd.getpwuid(os.geteuid()).pw_name)
    return tuple(dict.fromkeys(filter(None, names)))


def weak(walls: Walls) -> bool:
    """Whether jobs of others than the owners need trust behind these walls."""
    return not walls.meets(LEAST_SHARED)


def remedy(sysctl: Path = SYSCTL) -> str:
    """How this machine gets stronger walls: as a service that root installs, or by what the kernel has to allow."""
    install = "sudo grid agent install, for walls user"
    closed = [f"{name.replace('/', '.')}={new}" for name, off, new in _SYSCTLS if _read(sysctl / name) == off]
    return f"{install}; sudo sysctl {' '.join(closed)}, for walls namespace" if closed else install


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
