"""Authentication: who a connection is from. That follows from its certificate, its bearer token, or the kernel (for
users of this machine), never from its hello. Without an authority the coordinator's own user and root are operators and
agents under the names that they give, other users of this machine are clients, and nobody else can connect, except with
`--insecure`."""

import asyncio
import os
import pwd
import re
import socket
import ssl
import time
from typing import TYPE_CHECKING

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers

from distributed_grid.coordinator.access.identities import Bearer
from distributed_grid.coordinator.net.connection import Connection
from distributed_grid.protocol.errors import BadValue, GridError, ProtocolMismatch
from distributed_grid.protocol.identity import PEOPLE, Identity, Role, is_valid_name
from distributed_grid.protocol.messages import Hello
from distributed_grid.protocol.nodes import NodeFacts, check_facts
from distributed_grid.protocol.placement import is_wall_uid
from distributed_grid.runtime import loopback, unix
from distributed_grid.runtime.accounts import AGENT, service_users

if TYPE_CHECKING:
    from distributed_grid.coordinator.access.ca import Pki, Presented


class NotAdmitted(GridError):
    """The peer is unknown, or not the member it claims to be."""


class Admission:
    """Determines the member on a connection. `pki` None: there is no authority."""

    def __init__(self, pki: "Pki | None", grid: str) -> None:
        self._pki = pki
        self._grid = grid

    async def authenticate(self, connection: Connection, hello: Hello) -> None:
        """Give a connection whose hello was read the name and role of its peer; it ends when what proved them expires.
        Raises NotAdmitted."""
        identity = await self._identity(connection, hello)
        connection.name, connection.rights = _authorized(identity, hello, connection.via)

    async def _identity(self, connection: Connection, hello: Hello) -> Identity | None:
        """The identity that the connection proves; None: there is no authority, so nothing has to be proved."""
        wire = connection.wire
        ours: socket.socket = wire.transport.get_extra_info("socket")
        # Where there is an authority, nodes have certificates.
        node = hello.name if self._pki is None and hello.role in AGENTS else ""
        if ours.family == socket.AF_UNIX:
            connection.via = f"uid {unix.credentials(ours).uid}"
            uid = await asyncio.to_thread(user_of_peer, ours, wire.accepted)
            return identity_of_user(uid, self._grid, node)
        if (bearer := wire.bearer) is not None:
            connection.via = f"bearer {bearer.id}"
            connection.holds_until(bearer.expires, "bearer token")
            return Identity(self._grid, bearer.role, bearer.name)
        if (shown := self.presented(wire)) is None:
            near = await asyncio.to_thread(user_on_loopback, ours)
            if near in (None, 0, os.geteuid()):
                return None
            connection.via = f"uid {near}"
            return identity_of_user(near, self._grid, node)
        connection.presented, connection.via = shown, f"certificate {shown.serial}"
        connection.holds_until(shown.life.end, "certificate")
        return shown.identity

    def bearer(self, headers: Headers) -> Bearer | None:
        """The bearer token of an HTTP request, checked before anything else is read; None: it has none. Raises
        NotAdmitted."""
        shown = headers.get_all("Authorization")
        if self._pki is None or not shown:
            return None
        scheme, _, token = shown[0].partition(" ")
        try:
            if len(shown) > 1 or scheme.lower() != "bearer":
                raise GridError("this is no bearer token")
            return self._pki.identities.bearers.verify(token.strip(), time.time())
        except GridError as error:
            raise NotAdmitted(error.what, error.why, error.hint) from None

    def presented(self, wire: ServerConnection) -> "Presented | None":
        """The certificate of a connection, which the handshake has verified; None: there is no authority. Raises
        NotAdmitted."""
        if self._pki is None:
            return None
        tls: ssl.SSLObject = wire.transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True)
        if certificate is None:
            raise NotAdmitted(
                "this grid asks who you are",
                why="the connection has no certificate",
                hint="grid agent join, or grid login, with a token from `grid token create` on the master",
            )
        try:
            shown = self._pki.presented(certificate)
        except BadValue as error:
            raise NotAdmitted(error.what, error.why) from None
        identity = shown.identity
        if identity.grid != self._grid or identity.role is Role.COORDINATOR:
            raise NotAdmitted(f"{identity.uri} is nobody who may connect to grid {self._grid}")
        if time.time() >= shown.life.end:  # since the handshake, which has looked at that too
            raise NotAdmitted(f"the certificate of {identity.role} {identity.name} has expired")
        if shown.serial in self._pki.identities.revoked:
            raise NotAdmitted(
                f"the certificate of {identity.role} {identity.name} was taken back", hint="ask for a new token"
            )
        return shown

    def still_holds(self, shown: "Presented | None", bearer: Bearer | None) -> None:
        """Raise NotAdmitted where what was verified has been revoked since: admission waits here and there, and a
        revocation cuts only connections that are admitted."""
        if self._pki is None:
            return
        known = self._pki.identities
        if (shown and shown.serial in known.revoked) or (bearer and not known.bearers.holds(bearer.id)):
            raise NotAdmitted("what this connection was let in by was taken back", hint="ask for a new token")

    def refuses(self, wire: ServerConnection) -> NotAdmitted | None:
        """Why a peer's certificate would not be accepted; None: it would be, or the peer shows none."""
        tls: ssl.SSLObject = wire.transport.get_extra_info("ssl_object")
        try:
            if tls.getpeercert(binary_form=True) is not None:
                self.presented(wire)
        except NotAdmitted as error:
            return error
        return None


AGENTS = ("agent", "agent-data")
"""What an agent says it is, on its two connections."""


def _authorized(identity: Identity | None, hello: Hello, via: str) -> tuple[str, Role]:
    """Return the name and role of a peer. Raises NotAdmitted if its hello claims others. `via`: what proves the
    identity."""
    agent = hello.role in AGENTS
    if identity is None:
        return hello.name, Role.AGENT if agent else Role.OPERATOR
    if agent and (identity.role is not Role.AGENT or identity.name != hello.name):
        raise NotAdmitted(
            f"this connection may not speak for node {hello.name[:80]!r}",
            why=f"it comes from {identity.role} {identity.name}, by its {via}",
        )
    if not agent and identity.role not in PEOPLE:
        raise NotAdmitted("a node may not ask what people ask", why=f"it comes from node {identity.name}, by its {via}")
    return identity.name, identity.role


def facts_of(hello: Hello) -> NodeFacts:
    """The node's facts from an agent's hello. Raises ProtocolMismatch for facts that no node can have."""
    facts, name = hello.facts, hello.name
    if facts is None or facts.name != name or not is_valid_name(name):
        raise ProtocolMismatch(f"an agent cannot be called {name[:80]!r}", why="1 to 64 printable characters")
    try:
        check_facts(facts)
    except BadValue as error:
        raise ProtocolMismatch(f"node {name}: {error.what}", error.why) from None
    return facts


def host_of(header: str) -> str:
    """The name or address in a Host header, without the port, in lower case."""
    host = header.strip().lower()
    return host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]


OTHERWISE = "for a program that is to submit jobs, make a token of its own: grid token create --bearer --role client"
_NUMBERED = re.compile(r"uid-\d+")


def user_of_peer(ours: socket.socket, accepted: float) -> int:
    """The user at the other end of a Unix socket that was accepted at this time (`unix.boot_clock`). Raises NotAdmitted
    for jobs, and for peers that are gone."""
    try:
        return unix.judge(ours, accepted=accepted).uid
    except unix.PeerRefused as refused:
        what = "a job may not come in by the coordinator's socket" if refused.job else "this connection is refused"
        raise NotAdmitted(what, str(refused), OTHERWISE) from None


def user_on_loopback(ours: socket.socket) -> int | None:
    """The user at the other end of a TCP connection, if that is on this machine. Raises NotAdmitted."""
    try:
        return loopback.peer_user(ours)
    except loopback.UnknownUser as unknown:
        raise NotAdmitted("this connection is refused", str(unknown)) from None


def identity_of_user(uid: int, grid: str, node: str) -> Identity:
    """The identity of a user of this machine in the grid. `node`: the node whose agent it claims to be, if that claim
    is trusted. The name is looked up each time, because users may change. Raises NotAdmitted for users that jobs run
    as."""
    if is_wall_uid(uid):
        why = f"user {uid} is of the range that walls give to jobs"
        raise NotAdmitted("a job may not come in by the coordinator's socket", why, OTHERWISE)
    own = uid in (0, os.geteuid())
    service = not own and uid in service_users(AGENT)
    if node and (own or service):
        return Identity(grid, Role.AGENT, node)
    if service:
        why = f"{user_name(uid)} is the user of this machine's agent, and jobs may run as it"
        raise NotAdmitted("a service account is no client of the grid", why, OTHERWISE)
    return Identity(grid, Role.OPERATOR if own else Role.CLIENT, user_name(uid))


def user_name(uid: int) -> str:
    """The user's name; `uid-1234` for an unknown user, an unprintable name, or a name that looks like that."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
    sane = 0 < len(name) <= 64 and name.isprintable() and not _NUMBERED.fullmatch(name)
    return name if sane else f"uid-{uid}"
