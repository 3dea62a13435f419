"""How the coordinator is reached from here, for `grid doctor`: as whom, how fast, and whether both ends fit."""

import http.client
import ssl
import statistics
import time
from collections.abc import Generator, Iterator
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from distributed_grid import __version__
from distributed_grid.cli.connection import Connection
from distributed_grid.cli.context import Invocation
from distributed_grid.identity.member import identity_for, read_member
from distributed_grid.identity.tls import IDENTITY, client_context, has_identity, tls_words
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import GetStatus, Status, joined, next_page
from distributed_grid.protocol.messages.handshake import AUTHORITY_PATH
from distributed_grid.protocol.nodes import NodeState, NodeView
from distributed_grid.protocol.walls import LEAST_SHARED, level_of, open_to_all
from distributed_grid.runtime.health import CLOCK, Finding, Level, certificate, failed

SLOW = 0.25
"""Seconds of a round trip above which it is warned of: followed output and ^C are felt to lag."""
APART, FAR_APART = 2.0, 60.0
"""Seconds between two clocks that are warned of, and that make fresh certificates look not valid yet."""
ROUNDS = 5
_NOBODY = "\U0010ffff"  # comes behind all names: a status without any nodes
_SECONDS = 5.0
_ANSWER_BYTES = 1 << 16


def client_side(invocation: Invocation, node: str) -> Iterator[Finding]:
    """As who submits reaches it: two connections, one for control and one for data, and what it says of the grid."""
    try:
        url = invocation.url()
        folder = identity_for(url)
        if folder is not None:
            yield certificate("your identity", folder, "grid login INVITATION, with a token from an operator")
        began = time.monotonic()
        control = Connection(url)
        took = time.monotonic() - began
    except GridError as error:
        yield failed("control connection", error)
        return
    try:
        status, trip = yield from _talks("control connection", control, url, took)
        yield _skew(status.at, trip)
        yield _software(status)
        yield from _data(url)
        yield from _grid(control, status, node)
    except GridError as error:
        yield failed("control connection", error)
    finally:
        control.close()


def _talks(check: str, connection: Connection, url: str, took: float) -> Generator[Finding, None, tuple[Status, float]]:
    trips = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        status: Status = connection.call(GetStatus(id=connection.number(), past=_NOBODY))
        trips.append(time.monotonic() - began)
    trip = statistics.median(trips)
    what = f"{url}: opened in {took * 1000:.0f} ms, a round trip takes {trip * 1000:.1f} ms"
    if trip > SLOW:
        yield Finding(check, Level.WARNING, what, "the network, or a coordinator that is too busy", "grid status")
    else:
        yield Finding(check, Level.OK, what)
    return status, trip


def _data(url: str) -> Iterator[Finding]:
    """Logs and files go beside control, on a connection of their own."""
    began = time.monotonic()
    try:
        second = Connection(url)
    except GridError as error:
        yield failed("data connection", error)
        return
    try:
        yield from _talks("data connection", second, url, time.monotonic() - began)
    finally:
        second.close()


def _skew(at: float, trip: float) -> Finding:
    """The coordinator read its clock some time within the round trip."""
    ahead = time.time() - trip / 2 - at
    return _apart("clock skew", ahead, trip / 2)


def _apart(check: str, ahead: float, doubt: float) -> Finding:
    way = "ahead of" if ahead > 0 else "behind"
    what = f"this clock is {abs(ahead):.3f} s {way} the coordinator's (give or take {doubt:.3f} s)"
    if abs(ahead) - doubt < APART:
        return Finding(check, Level.OK, what)
    level = Level.ERROR if abs(ahead) > FAR_APART else Level.WARNING
    return Finding(check, level, what, "times that are shown are wrong, and certificates may seem not to hold", CLOCK)


def _software(status: Status) -> Finding:
    if status.software == __version__:
        return Finding("coordinator's grid", Level.OK, f"{status.software}, as here")
    why = f"here is {__version__}; one minor release apart works"
    hint = f"pip install distributed-grid=={status.software}, or upgrade the coordinator"
    return Finding("coordinator's grid", Level.WARNING, status.software, why, hint)


def _grid(connection: Connection, status: Status, node: str) -> Iterator[Finding]:
    if status.trouble:
        yield Finding("grid", Level.ERROR, "it takes no new jobs", status.trouble, "see to that on the master")
    nodes = _nodes(connection)
    away = [one for one in nodes if one.state is not NodeState.UP]
    what = f"{len(nodes) - len(away)} of {len(nodes)} nodes are up"
    if away:
        names = ", ".join(f"{one.facts.name} ({one.state})" for one in away[:5]) + (", …" if len(away) > 5 else "")
        yield Finding("nodes", Level.WARNING, what, f"not up: {names}", "grid doctor, on such a node")
    elif not nodes:
        yield Finding("nodes", Level.WARNING, "no node is known", "nothing can be lent", "grid token create; README")
    else:
        yield Finding("nodes", Level.OK, what)
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


def _nodes(connection: Connection) -> list[NodeView]:
    request = GetStatus(id=connection.number())
    answer = page = connection.call(request)
    while (request := next_page(request, page, connection.number())) is not None:
        page = connection.call(request)
        answer = joined(answer, page)
    return list(answer.nodes)


def node_side(state_dir: Path) -> Iterator[Finding]:
    """As the agent of this machine reaches it, with its identity, and without being taken for it."""
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
        hint = "grid doctor, on the master; and see whether a firewall is between"
        yield Finding("agent's way", Level.ERROR, f"the coordinator at {url} is not reached", why, hint)
    else:
        if answer.status != HTTPStatus.OK:
            hint = f"grid access, on the master; then remove {folder}, and grid agent join with a new token"
            yield Finding("agent's way", Level.ERROR, f"{url} does not let this node in", said, hint)
            return
        took = (time.monotonic() - began) * 1000
        yield Finding("agent's way", Level.OK, f"{url} answers in {took:.0f} ms, and takes this node's identity")
        if date := answer.headers.get("Date"):
            yield _apart("clock skew", time.time() - parsedate_to_datetime(date).timestamp() - 0.5, 0.5)
