"""The steps that make a host a node, in order, each with the step that undoes it. Input is what was found on the host
and what the coordinator knows. Pure: nothing is done here."""

from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import check_name
from distributed_grid.protocol.resources import format_bytes

PYTHON = (3, 11)
DISK = 512 << 20
"""Bytes that have to be free where the environment is made; one takes about 120 MiB."""


class Target(NamedTuple):
    """A host as a person names it: `USER@HOST` or `HOST`. Empty or 0: as the user's ssh configuration says."""

    host: str
    user: str = ""
    port: int = 0

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")


def parse_target(text: str, port: int = 0) -> Target:
    """`USER@HOST`, `HOST` or either with `:PORT`, which wins over `port`. Raises BadValue."""
    user, at, place = text.rpartition("@")
    try:
        parts = urlsplit(f"ssh://{place}")
        host, own = parts.hostname or "", parts.port or 0
    except ValueError:
        host, own = "", 0
    if (
        not host
        or host.startswith("-")
        or (at and not user)
        or user.startswith("-")
        or any(c in text for c in "/ \t\n")
    ):
        raise BadValue(f"{text!r} names no host", hint="write it as USER@HOST, as for ssh")
    return Target(host, user, own or port)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a host. `service`: what can run its agent (`system`, `user` for the user's systemd, `none`);
    `linger`: whether the user's services run without a session; `builds`: the versions that are installed and complete,
    `current` the one in use; `grid`: the grid that it is a node of; `agent`: the pid of its agent (0: none runs) and
    `running` that agent's version; `foreign`: the unit of a service that is another agent's; `unreached`: why the
    coordinator cannot be reached from there; `lacks`: what its Python lacks to make environments."""

    hostname: str
    name: str
    user: str
    root: bool
    python: str
    machine: str
    system: str
    disk_free: int
    service: str
    linger: bool
    builds: tuple[str, ...] = ()
    current: str = ""
    grid: str = ""
    agent: int = 0
    running: str = ""
    foreign: str = ""
    unreached: str = ""
    lacks: str = ""
    state_dir: str
    state_there: bool = False
    home: str = ""


class Known(NamedTuple):
    """What the coordinator of this grid knows of a node of some name: whether it exists and is up, the incarnation of
    its agent that was last heard, and whether it has a valid certificate."""

    grid: str
    there: bool = False
    up: bool = False
    incarnation: int = 0
    certified: bool = False


class Step(NamedTuple):
    """Something that is done to a host, or at the coordinator for it; how it is told, and how what undoes it is told
    (empty: it leaves nothing that had to be undone)."""

    name: str
    doing: str
    undoing: str


COPY = Step("copy", "copying version {build}", "what was copied is removed")
INSTALL = Step("install", "installing it, with what it needs, into an environment of its own", "that is removed")
INVITE = Step("invite", "making a token that lets {name} in, once", "the token is taken back")
JOIN = Step("join", "joining the grid as {name}", "its identity is removed, and its certificate taken back")
SWITCH = Step("switch", "putting {build} in use", "what was in use before is so again")
START = Step("start", "starting its agent ({how})", "its agent is as it was")
AWAIT = Step("await", "waiting for its first heartbeat", "")

BRING = (COPY, INSTALL)
ENTER = (INVITE, JOIN)
RUN = (SWITCH, START, AWAIT)
STEPS = (*BRING, *ENTER, *RUN)

HOW = {
    "system": "a systemd service",
    "user": "a service of the user's systemd",
    "none": "a process of its own",
}


class Plan(NamedTuple):
    """The steps in their order, and what the operator should know before them. No steps: there is nothing to do."""

    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()

    @property
    def fresh(self) -> bool:
        """Whether the host becomes a node by it, and was none before."""
        return JOIN in self.steps

    @property
    def verb(self) -> str:
        """The result as one word."""
        if not self.steps:
            return "unchanged"
        return "added" if self.fresh else "upgraded" if SWITCH in self.steps else "started"


def warning(found: Found) -> GridError:
    """Return a warning about the node of a user whose services do not run without a session."""
    return GridError(
        f"{found.name} will be disconnected as soon as the last session of {found.user} on {found.hostname} ends",
        why=f"its agent is a service of {found.user}, whose services run during a session only, and not after a reboot",
        hint=f"on {found.hostname}: sudo loginctl enable-linger {found.user}",
    )


def judge(found: Found, address: str) -> None:
    """Raise GridError where a host cannot be a node as it is; `address`: where it would reach the coordinator."""
    host = found.hostname
    if found.system != "Linux":
        raise GridError(f"{host} runs {found.system}", why="an agent needs Linux")
    if found.lacks:
        raise GridError(
            f"the Python {found.python} of {host} cannot make environments",
            why=f"it has no {found.lacks}",
            hint=f"on {host}: sudo apt-get install python3-venv; or name another one with --python",
        )
    if found.disk_free < DISK:
        raise GridError(
            f"{host} has too little room: {format_bytes(found.disk_free)} are free in {found.home}",
            why=f"the grid and what it needs want {format_bytes(DISK)}",
        )
    if found.foreign:
        raise GridError(
            f"{host} has an agent already, as a service that was not made for {found.name} by grid node add",
            why=f"{found.foreign} is there",
            hint=f"on {host}: grid agent uninstall; or add it under the name that it has",
        )
    if found.unreached:
        raise GridError(
            f"{host} cannot reach the coordinator at {address}",
            why=found.unreached,
            hint="the grid has to be founded with an address that its nodes know (grid init --host); a name of it that"
            " only nodes know is given with --reached-at HOST:PORT",
        )


def decide(found: Found, known: Known, build: str) -> Plan:
    """Return the plan for a host that `judge` accepts: it has to run this build as a node of the grid `known.grid`.
    Raises GridError if that would take the host from another user or grid."""
    name = check_name("a node", found.name)
    notes = _notes(found)
    if found.grid and found.grid != known.grid:
        raise GridError(
            f"{found.hostname} is a node of another grid ({found.grid})",
            hint=f"remove it there first, or remove {found.state_dir}/identity on it",
        )
    if not found.grid:
        if known.there or known.certified:
            raise GridError(
                f"there is a node {name} already, which is not {found.hostname}",
                why="two nodes of one name would be taken for one",
                hint=f"give this one another --name; or, if {name} is no more: grid node remove {name} --forget",
            )
        return Plan(STEPS if build not in found.builds else (*ENTER, *RUN), notes)
    bring = () if build in found.builds else BRING
    if not known.certified:
        return Plan((*bring, *ENTER, *RUN), (f"{name} has no certificate that holds any more, and joins anew", *notes))
    if found.current != build or (found.agent and found.running and found.running != build):
        return Plan((*bring, *RUN), notes)
    if not (found.agent and known.up):
        return Plan((START, AWAIT), notes)
    return Plan(())


def _notes(found: Found) -> tuple[str, ...]:
    notes = []
    if found.root:
        notes.append(f"jobs on {found.name} will run as root, since that is who you are there")
    if found.service == "none":
        notes.append(f"{found.hostname} runs no systemd that we may use: after a reboot, say `grid node add` again")
    return tuple(notes)
