"""Who is on a connection. It is told by the connection itself, and what its hello says of a name is only compared.

Without an authority (`grid init` was not run) the coordinator listens on this machine alone, and everybody who can
connect is an operator under the name they give.
"""

import ssl
import time

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers

from distributed_grid.coordinator.access.ca import Presented, presented
from distributed_grid.coordinator.access.pki import Pki
from distributed_grid.coordinator.access.tokens import Bearer
from distributed_grid.protocol.errors import BadValue, GridError, ProtocolMismatch
from distributed_grid.protocol.identity import PEOPLE, Identity, Role
from distributed_grid.protocol.messages import Hello
from distributed_grid.protocol.nodes import NodeFacts, check_facts


class NotAdmitted(GridError):
    """Who comes is nobody here, or not who it says it is."""


class Admission:
    """Judges connections. `pki` None: there is no authority."""

    def __init__(self, pki: Pki | None, grid: str) -> None:
        self._pki = pki
        self._grid = grid

    def bearer(self, headers: Headers) -> Bearer | None:
        """The bearer token that a request shows, before anything else is heard; None: it shows none. Raises
        NotAdmitted."""
        shown = headers.get_all("Authorization")
        if self._pki is None or not shown:
            return None
        scheme, _, token = shown[0].partition(" ")
        try:
            if len(shown) > 1 or scheme.lower() != "bearer":
                raise GridError("this is no bearer token")
            return self._pki.identities.bearers.judge(token.strip(), time.time())
        except GridError as error:
            raise NotAdmitted(error.what, error.why, error.hint) from None

    def presented(self, wire: ServerConnection) -> Presented | None:
        """The certificate that a connection is of; None: nobody asks. The handshake has judged it. Raises
        NotAdmitted."""
        if self._pki is None:
            return None
        socket: ssl.SSLObject = wire.transport.get_extra_info("ssl_object")
        certificate = socket.getpeercert(binary_form=True)
        if certificate is None:
            raise NotAdmitted(
                "this grid asks who you are",
                why="the connection has no certificate",
                hint="grid agent join, or grid login, with a token from `grid token create` on the master",
            )
        try:
            shown = presented(certificate)
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

    def still_holds(self, shown: Presented | None, bearer: Bearer | None) -> None:
        """Raise NotAdmitted where what somebody came with was taken back since it was judged: on the way in there are
        waits, and who is not in yet is not cut."""
        taken = shown is not None and self._pki is not None and shown.serial in self._pki.identities.revoked
        if bearer is not None and self._pki is not None:
            taken = taken or not self._pki.identities.bearers.holds(bearer.id)
        if taken:
            raise NotAdmitted("what this connection was let in by was taken back", hint="ask for a new token")

    def refuses(self, wire: ServerConnection) -> NotAdmitted | None:
        """Why who shows a certificate would not be let in with it; None: would be, or shows none."""
        socket: ssl.SSLObject = wire.transport.get_extra_info("ssl_object")
        try:
            if socket.getpeercert(binary_form=True) is not None:
                self.presented(wire)
        except NotAdmitted as error:
            return error
        return None


def admitted(identity: Identity | None, hello: Hello) -> tuple[str, Role]:
    """The name and role that a peer has from now on. Raises NotAdmitted where its hello says something else."""
    agent = hello.role in ("agent", "agent-data")
    if identity is None:
        return hello.name, Role.AGENT if agent else Role.OPERATOR
    if agent and (identity.role is not Role.AGENT or identity.name != hello.name):
        raise NotAdmitted(
            f"this connection may not speak for node {hello.name[:80]!r}",
            why=f"its certificate is that of {identity.role} {identity.name}",
        )
    if not agent and identity.role not in PEOPLE:
        raise NotAdmitted("a node may not ask what people ask", why=f"the certificate is that of node {identity.name}")
    return identity.name, identity.role


def sane(name: str) -> bool:
    """Whether a peer may be called so."""
    return 0 < len(name) <= 64 and name.isprintable()


def facts_of(hello: Hello) -> NodeFacts:
    """What an agent's hello says of its node. Raises ProtocolMismatch for what no node is."""
    facts, name = hello.facts, hello.name
    if facts is None or facts.name != name or not sane(name):
        raise ProtocolMismatch(f"an agent cannot be called {name[:80]!r}", why="1 to 64 printable characters")
    try:
        check_facts(facts)
    except BadValue as error:
        raise ProtocolMismatch(f"node {name}: {error.what}", error.why) from None
    return facts


def host_of(header: str) -> str:
    """The name or address of a Host header, without a port and in small letters."""
    host = header.strip().lower()
    return host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]
