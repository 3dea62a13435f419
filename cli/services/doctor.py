"""`grid doctor`: checks of this machine: a node, the master, or a client, and its connection to the coordinator."""

import http.client
import platform
import ssl
import statistics
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from distributed_grid import __version__
from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, client, complete_files, current, printable
from distributed_grid.cli.lazy import Command
from distributed_grid.coordinator.client.blocking import GridClient
from distributed_grid.identity.credentials import IDENTITY, client_context, has_identity, hint_of, tls_words
from distributed_grid.identity.member import identity_for, read_member
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import GetStatus, Status
from distributed_grid.protocol.messages.handshake import AUTHORITY_PATH
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.placement import LEAST_SHARED, level_of, open_to_all
from distributed_grid.protocol.text import counted, suggestion
from distributed_grid.runtime.health import CLOCK, Finding, Level, certificate, clock, failed

if TYPE_CHECKING:
    from distributed_grid.config.settings import ClusterConfig

NO_NODES = "grid agent run, on each machine that lends; where the grid gives invitations, with one (grid token create)"
SLOW = 0.25
"""Seconds of a round trip above which it is warned of: followed output and ^C are felt to lag."""
APART, FAR_APART = 2.0, 60.0
"""Seconds between two clocks that are warned of, and that make fresh certificates look not valid yet."""
ROUNDS = 5
_NOBODY = "\U0010ffff"  # comes behind all names: a status without any nodes
_SECONDS = 5.0
_ANSWER_BYTES = 1 << 16


def check_connection(invocation: Invocation, node: str, config: "ClusterConfig") -> Iterator[Finding]:
    """Check the coordinator as a submitter reaches it: two connections, one for control and one for data, and the state
    of the grid and of the nodes in this configuration."""
    try:
        url = invocation.url()
        folder = identity_for(url)
        if folder is not None:
            yield certificate("your identity", folder, "grid login INVITATION, with a token from an operator")
        began = time.monotonic()
        control = client(url, trusts=invocation.trusts()).connect()
        took = time.monotonic() - began
    except GridError as error:
        yield failed("control connection", error)
        return
    try:
        status, trip = yield from _round_trips("control connection", control, url, took)
        yield _skew(status.at, trip)
        yield _software(status)
        yield from _data(url, invocation.trusts())
        yield from _grid(control, status, node, config)
    except GridError as error:
        yield failed("control connection", error)
    finally:
        control.close()


def _round_trips(
    check: str, connection: GridClient, url: str, took: float
) -> Generator[Finding, None, tuple[Status, float]]:
    trips = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        status: Status = connection.call(GetStatus(id=0, past=_NOBODY))
        trips.append(time.monotonic() - began)
    trip = statistics.median(trips)
    what = f"{url}: opened in {took * 1000:.0f} ms, a round trip takes {trip * 1000:.1f} ms"
    if trip > SLOW:
        yield Finding(check, Level.WARNING, what, "the network, or a coordinator that is too busy", "grid status")
    else:
        yield Finding(check, Level.OK, what)
    return status, trip


def _data(url: str, trusts: str) -> Iterator[Finding]:
    """Logs and files go beside control, on a connection of their own."""
    began = time.monotonic()
    try:
        second = client(url, trusts=trusts).connect()
    except GridError as error:
        yield failed("data connection", error)
        return
    try:
        yield from _round_trips("data connection", second, url, time.monotonic() - began)
    finally:
        second.close()


def _skew(at: float, trip: float) -> Finding:
    """The coordinator read its clock some time within the round trip."""
    ahead = time.time() - trip / 2 - at
    return _clock_finding(ahead, trip / 2)


def _clock_finding(ahead: float, doubt: float) -> Finding:
    way = "ahead of" if ahead > 0 else "behind"
    what = f"this clock is {abs(ahead):.3f} s {way} the coordinator's (give or take {doubt:.3f} s)"
    if abs(ahead) - doubt < APART:
        return Finding("clock skew", Level.OK, what)
    level = Level.ERROR if abs(ahead) > FAR_APART else Level.WARNING
    why = "times that are shown are wrong, and certificates may seem not to hold"
    return Finding("clock skew", level, what, why, CLOCK)


def _software(status: Status) -> Finding:
    if status.software == __version__:
        return Finding("coordinator's grid", Level.OK, f"{status.software}, as here")
    why = f"here is {__version__}; one minor release apart works"
    hint = f"install the wheel of {status.software} here, or upgrade the coordinator: docs/services.md"
    return Finding("coordinator's grid", Level.WARNING, status.software, why, hint)


def _grid(connection: GridClient, status: Status, node: str, config: "ClusterConfig") -> Iterator[Finding]:
    if status.trouble:
        yield Finding("grid", Level.ERROR, "it takes no new jobs", status.trouble, "see to that on the master")
    nodes = connection.nodes()
    away = [one for one in nodes if one.state is not NodeState.UP]
    what = f"{len(nodes) - len(away)} of {counted(len(nodes), 'node')} {'is' if len(nodes) == 1 else 'are'} up"
    if away:
        names = ", ".join(f"{one.facts.name} ({one.state})" for one in away[:5]) + (", …" if len(away) > 5 else "")
        yield Finding("nodes", Level.WARNING, what, f"not up: {names}", "grid doctor, on such a node")
    elif not nodes:
        yield Finding("nodes", Level.WARNING, "no node is known", "nothing can be lent", NO_NODES)
    else:
        yield Finding("nodes", Level.OK, what)
    yield from _unknown_nodes(config, [one.facts.name for one in nodes])
    if other := sorted({one.facts.software for one in nodes} - {status.software}):
        names = ", ".join(one.facts.name for one in nodes if one.facts.software != status.software)
        why = f"{names}: {', '.join(other)}; the coordinator has {status.software}"
        yield Finding("nodes' grid", Level.WARNING, "nodes have other releases", why, "upgrade these: jobs go on")
    for facts in [one.facts for one in nodes if one.facts.unknown][:5]:
        hint = "look there for what is left of its jobs, then: grid agent accept-loss; or reboot it"
        yield Finding("nodes' journals", Level.ERROR, f"{facts.name} takes no jobs", facts.unknown, hint)
    weak = [one.facts for one in nodes if not level_of(one.facts.walls).meets(LEAST_SHARED)]
    if closed := [one.name for one in weak if not open_to_all(one.walls, one.trusts)]:
        names = ", ".join(closed[:5]) + (", …" if len(closed) > 5 else "")
        what = f"{len(closed)} of {len(nodes)} nodes run jobs of their owners only: {names}"
        why = "their walls are weaker than namespace; grid nodes shows them"
        yield Finding("nodes' walls", Level.OK, what, why)
    mine = next((one for one in nodes if one.facts.name == node), None)
    if mine is not None and mine.withheld and mine.state is NodeState.UP:
        why = "; ".join(f"{one.what}: {one.why}" for one in mine.withheld[:3])
        yield Finding("this node lends", Level.OK, f"{mine.offered} now; not all, since {why}")


def _unknown_nodes(config: "ClusterConfig", known: list[str]) -> Iterator[Finding]:
    """The nodes of the configuration that the grid does not have: nothing that is set for them counts."""
    for name in [one.name for one in config.nodes if one.name not in known][:5]:
        where = config.origins.get(f"nodes.{name}.name", "the configuration")
        hint = suggestion(name, known).strip() or "leave the entry out, or give the name as in `grid nodes`"
        what, why = f"the grid has no node {name}", f"{where} has settings for it, which count nowhere"
        yield Finding("nodes' settings", Level.WARNING, what, why, hint)


def check_agent_connection(state_dir: Path) -> Iterator[Finding]:
    """Check the coordinator as the agent of this machine reaches it, with its identity, and without being taken for
    it."""
    folder = state_dir / IDENTITY
    if not has_identity(folder):
        return
    url = ""
    try:
        member = read_member(folder)
        if member is None:
            return
        url, parts = member.url, urlsplit(member.url)
        began = time.monotonic()
        wire = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=_SECONDS, context=client_context(folder)
        )
        try:
            wire.request("GET", AUTHORITY_PATH)
            answer = wire.getresponse()
            said = answer.read(_ANSWER_BYTES).decode(errors="replace").strip()
        finally:
            wire.close()
    except GridError as error:
        yield failed("agent's way", error)
    except (OSError, http.client.HTTPException) as error:
        why = tls_words(error) if isinstance(error, ssl.SSLError) else str(error) or type(error).__name__
        hint = hint_of(error) if isinstance(error, ssl.SSLError) else ""
        hint = hint or "grid doctor, on the master; and see whether a firewall is between"
        yield Finding("agent's way", Level.ERROR, f"the coordinator at {url} is not reached", why, hint)
    else:
        if answer.status != HTTPStatus.OK:
            hint = f"grid access, on the master; then remove {folder}, and grid agent join with a new token"
            yield Finding("agent's way", Level.ERROR, f"{url} does not let this node in", said, hint)
            return
        took = (time.monotonic() - began) * 1000
        yield Finding("agent's way", Level.OK, f"{url} answers in {took:.0f} ms, and takes this node's identity")
        if date := answer.headers.get("Date"):
            yield _clock_finding(time.time() - parsedate_to_datetime(date).timestamp() - 0.5, 0.5)


_COLORS = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}


@click.command(cls=Command)
@click.option(
    "--state-dir", metavar="DIR", shell_complete=complete_files, help="State directory of this machine's coordinator."
)
@click.option(
    "--agent-state-dir", metavar="DIR", shell_complete=complete_files, help="State directory of this machine's agent."
)
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
def doctor(state_dir: str | None, agent_state_dir: str | None, as_json: bool) -> None:
    """Check this machine's installation, and say how to repair what is wrong.

    Exits with 1 if there is an error. Works on the master, on a node and on a client; services that are not
    installed here are skipped."""
    invocation = current()
    if as_json:
        invocation.output = "json"
    findings = list(examine(invocation, state_dir, agent_state_dir))
    levels = [one.level for one in findings]
    errors, warnings = levels.count(Level.ERROR), levels.count(Level.WARNING)
    about = {"errors": errors, "warnings": warnings, "findings": [one._asdict() for one in findings]}
    formatting.show(invocation, about, text_of(findings, invocation.colored()), f"{errors}\n", "findings")
    raise SystemExit(1 if errors else 0)


def text_of(findings: list[Finding], colored: bool = False) -> str:
    """The findings for people, each with its reason and remedy, and how many are bad."""
    width = max(len(one.check) for one in findings)
    lines = []
    for one in findings:
        level = formatting.paint(f"{one.level:<7}", _COLORS[one.level] if colored else "")
        lines.append(f"{level}  {printable(f'{one.check:<{width}}  {one.what}')}")
        if one.level is not Level.OK:
            lines += [printable(f"{'':{width + 11}}why: {one.why}")] * bool(one.why)
            lines += [printable(f"{'':{width + 11}}try: {one.remedy}")] * bool(one.remedy)
    errors, warnings = (sum(one.level is level for one in findings) for level in (Level.ERROR, Level.WARNING))
    said = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    lines.append(said if errors or warnings else "all is well")
    return "".join(line + "\n" for line in lines)


def examine(invocation: Invocation, state_dir: str | None, agent_state_dir: str | None) -> Iterator[Finding]:
    """Yield all findings of this machine. Nothing is changed."""
    from distributed_grid.cli.services.service import agent_name, agent_place
    from distributed_grid.config.places import shown

    yield from _versions()
    yield clock()
    flags = {"coordinator.state_dir": state_dir, "agent.state_dir": agent_state_dir}
    try:
        config = invocation.whole_config(flags)
    except GridError as error:
        yield failed("configuration", error)
        return
    yield Finding(
        "configuration", Level.OK, f"read from {shown(config.path)}" if config.path else "none: all is as usual"
    )
    name, here = agent_name(config), agent_place(config)
    yield from _coordinator(config)
    yield from _agent(config, here)
    yield from _linger()
    yield from check_agent_connection(here)
    yield from check_connection(invocation, name, config)


def _versions() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    yield Finding("python", Level.OK, f"{platform.python_version()} on {platform.system()} {platform.release()}")
    yield Finding("grid", Level.OK, __version__)
    try:
        yield Finding("ray", Level.OK, version("ray"))
    except PackageNotFoundError:
        yield Finding("ray", Level.OK, "not installed (needed for boosts and placement by Ray alone)")


def _coordinator(config: Any) -> Iterator[Finding]:
    from distributed_grid.cli.services.service import coordinator_place
    from distributed_grid.coordinator.diagnostics import run_checks

    yield from run_checks(coordinator_place(config), config.coordinator.host, config.coordinator.port)


def _agent(config: Any, state_dir: Path) -> Iterator[Finding]:
    from distributed_grid.agent.diagnostics import Running, WallSettings, run_checks
    from distributed_grid.cli.services.agent_control import status_of

    own = config.agent
    asked = WallSettings(state_dir, own.run_as, str(own.walls), own.owners, str(own.trust))
    said: dict[str, Any] = {}
    with suppress(GridError):  # another check reports it
        said = status_of(state_dir) or {}
    running = Running(said.get("limits", {}), said.get("ends", ""))
    yield from run_checks(asked, str(own.gpu_backend), own.cgroup, running)


def _linger() -> Iterator[Finding]:
    """Services of a person end with the last of their sessions, unless systemd was told otherwise."""
    from distributed_grid.cli.services.systemd import LINGER, Installed, me

    for kind in ("agent", "coordinator"):
        if Installed(kind, True).path.exists():
            if (LINGER / me()).exists():
                yield Finding("linger", Level.OK, f"the {kind}'s service goes on when you log out")
            else:
                remedy = f"sudo loginctl enable-linger {me()}"
                yield Finding("linger", Level.WARNING, f"the {kind}'s service ends when you log out", "", remedy)
