"""Requests of operators: make, list and revoke tokens, revoke certificates, give orders for nodes, and grant rights."""

import math
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from distributed_grid.coordinator.core.commands import (
    DrainRequested,
    LabelsRequested,
    NodeDeclared,
    RemovalRequested,
    RightsSet,
    SettingsRequested,
    UndrainRequested,
)
from distributed_grid.coordinator.net.connection import Connection
from distributed_grid.protocol import messages
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import PEOPLE, Role, is_valid_name
from distributed_grid.protocol.messages.rights import NO_RIGHTS, check_name
from distributed_grid.protocol.nodes import ORDERED, REASON_CHARS, check_labels
from distributed_grid.protocol.resources import MILLI, MOST_MEMORY
from distributed_grid.protocol.text import MOST, counted

if TYPE_CHECKING:
    from distributed_grid.coordinator.access.ca import Pki
    from distributed_grid.coordinator.access.renewing import Renewals

Cut = Callable[[Role | None, str, Collection[str], Connection | None], int]


class NoAuthority(GridError):
    """This grid issues neither certificates nor tokens."""

    code = "no-authority"


class AccessRequests:
    """Answers requests about tokens and certificates. `cut` ends the live connections of a role and name, and of bearer
    tokens, and returns their number; the requester's own connection is ended by the answer."""

    def __init__(self, pki: "Pki | None", cut: Cut, renewals: "Renewals | None") -> None:
        self._pki = pki
        self._renewals = renewals
        self._cut = cut

    def answer(
        self,
        user: str,
        message: messages.MakeToken | messages.ListAccess | messages.Withdraw,
        asker: Connection | None = None,
    ) -> messages.TokenMade | messages.Access | messages.Done:
        """Answer one request. Raises GridError, BadValue."""
        if self._pki is None:
            raise NoAuthority(
                "this grid has no authority, so there is nothing to give access to",
                why="everybody who can connect to this machine's loopback address is let in",
                hint="grid init, then start the coordinator again",
            )
        match message:
            case messages.MakeToken():
                return self._make(self._pki, user, message)
            case messages.ListAccess():
                return self._list(self._pki, message)
            case messages.Withdraw():
                return self._withdraw(self._pki, message, asker)

    def expel(self, role: Role, name: str) -> None:
        """Revoke all certificates and tokens of this role and name, and cut its connections."""
        if self._pki is not None:
            _revoke(self._pki, role, name)
        self._cut(role, name, (), None)

    def renew(self, connection: Connection, asked: messages.WantCertificate) -> messages.NewCertificate:
        """A new certificate for a peer that is connected with one. The connection ends when the new one expires."""
        if self._renewals is None or self._pki is None:
            return messages.NewCertificate(error="this grid has no authority", id=asked.id)
        answer = self._renewals.renew(connection.presented, asked)
        if answer.certificate:
            connection.presented = shown = self._pki.presented(answer.certificate.encode())
            connection.holds_until(shown.life.end, "certificate")
        return answer

    def _make(self, pki: "Pki", user: str, asked: messages.MakeToken) -> messages.TokenMade:
        if asked.role is Role.COORDINATOR:
            raise GridError("a coordinator does not join by a token", hint="grid init makes one")
        if asked.bearer:
            made = pki.identities.bearers.mint(asked.role, asked.name, asked.ttl, user, time.time())
            return messages.TokenMade(id=asked.id, token=made, pin=pki.authority.pin)
        if asked.labels:
            check_labels(asked.labels)
        token = pki.identities.mint(
            pki.authority.pin, asked.role, asked.name, asked.labels, asked.uses, asked.ttl, user, time.time()
        )
        return messages.TokenMade(id=asked.id, token=token)

    def _list(self, pki: "Pki", asked: messages.ListAccess) -> messages.Access:
        now = time.time()
        tokens = (
            messages.TokenView(one.id, one.role, one.name, one.uses, one.expires, one.creator, one.labels)
            for one in pki.identities.tokens(now)
        )
        members = [
            messages.MemberView(one.role, one.name, one.serial, one.issued, one.expires, one.revoked)
            for one in pki.identities.certificates(now)
        ]
        members += [
            messages.MemberView(one.role, one.name, one.id, one.created, one.expires, one.revoked, bearer=True)
            for one in pki.identities.bearers.listed(now)
        ]
        return messages.Access(id=asked.id, tokens=tuple(tokens), members=tuple(members))

    def _withdraw(self, pki: "Pki", asked: messages.Withdraw, asker: Connection | None) -> messages.Done:
        if asked.token:
            if gone := pki.identities.bearers.withdraw(time.time(), id=asked.token):
                ended = self._cut(None, "", gone, asker)
                text = f"bearer token {asked.token} opens nothing any more{_live(ended)}"
                return messages.Done(id=asked.id, text=text)
            if not pki.identities.withdraw(asked.token):
                raise GridError(f"there is no token {asked.token[:40]!r}", hint="see `grid token list`")
            return messages.Done(id=asked.id, text=f"token {asked.token} opens nothing any more")
        if asked.role is None or not asked.name:
            raise GridError("neither a token nor somebody's certificates are named")
        count, tokens = _revoke(pki, asked.role, asked.name)
        bearers = pki.identities.bearers.withdraw(time.time(), name=asked.name) if asked.role in PEOPLE else []
        if not (count or tokens or bearers):
            raise GridError(f"{asked.role} {asked.name[:80]} has no certificate that holds", hint="see `grid access`")
        ended = self._cut(asked.role, asked.name, bearers, asker)
        taken = ((count, "certificate"), (tokens, "token"), (len(bearers), "bearer token"))
        named = " and ".join(counted(number, what) for number, what in taken if number)
        return messages.Done(id=asked.id, text=f"{named} of {asked.name} taken back{_live(ended)}")


def _revoke(pki: "Pki", role: Role, name: str) -> tuple[int, int]:
    """Revoke the certificates of this role and name, those that have expired as well, and the tokens to join with that
    are for this name alone; how many of each could have been used."""
    now, renewable = time.time(), pki.lives.renew_expired if role is Role.AGENT else 0.0
    tokens = pki.identities.withdraw_of(role, name, now)
    return pki.identities.revoke(role, name, now, renewable), tokens


def _live(ended: int) -> str:
    return f", and {ended} connection{'s' if ended > 1 else ''} ended" if ended else ""


NODES_MOST = 10_000
"""Nodes that one request may name."""


Order = messages.DrainNodes | messages.UndrainNodes | messages.LabelNodes | messages.SetNodes | messages.ForgetNodes


def order(
    message: Order, user: str, token: Callable[[], int]
) -> DrainRequested | UndrainRequested | LabelsRequested | SettingsRequested | RemovalRequested:
    """The event for the ledger, with a `token` that is drawn once the request has been checked. Raises BadValue."""
    if not message.nodes:
        raise BadValue("no node is named", hint="see `grid nodes`")
    if len(message.nodes) > NODES_MOST:
        raise BadValue(f"{len(message.nodes)} nodes in one request", why=f"{NODES_MOST} are the most")
    match message:
        case messages.DrainNodes(nodes=nodes, deadline=deadline):
            if deadline > MOST or not math.isfinite(deadline):
                raise BadValue(f"a deadline in {deadline:g} s cannot be used", hint="give seconds, below ten years")
            return DrainRequested(token(), nodes, user, message.reason[:REASON_CHARS], deadline)
        case messages.UndrainNodes(nodes=nodes):
            return UndrainRequested(token(), nodes, user)
        case messages.LabelNodes(nodes=nodes, labels=labels):
            check_labels(labels)
            return LabelsRequested(token(), nodes, labels, user)
        case messages.SetNodes(nodes=nodes, values=values, unset=unset):
            if not (values.given() or unset):
                raise BadValue("nothing to set", hint="see `grid node set --help`")
            if others := [name for name in (*values.given(), *unset) if name not in ORDERED]:
                raise BadValue(f"{others[0][:80]!r} is not set by orders", why=f"only {', '.join(ORDERED)} are")
            return SettingsRequested(token(), nodes, values, unset, user)
        case messages.ForgetNodes(nodes=nodes):
            return RemovalRequested(token(), nodes, user)


DECLARED_CORES, DECLARED_GPUS = 4096, 256
"""The most that a node may be declared to have."""


def declaration(message: messages.DeclareNode, user: str, token: Callable[[], int]) -> NodeDeclared:
    """The event for the ledger, as `order`. Raises BadValue."""
    name, whole, free = message.node, message.whole, message.free
    if not is_valid_name(name):
        raise BadValue(f"a node cannot be called {name[:80]!r}", hint="give 1 to 64 printable characters")
    if not message.known and not whole:
        raise BadValue(f"nothing is declared of {name}", hint="say what it has, such as its cores and memory")
    if max(whole.cpu, free.cpu) > DECLARED_CORES * MILLI or max(whole.gpu, free.gpu) > DECLARED_GPUS * MILLI:
        raise BadValue(
            f"{name} cannot have that many", why=f"{DECLARED_CORES} cores, {DECLARED_GPUS} GPUs are the most"
        )
    if max(whole.memory, free.memory) > MOST_MEMORY:
        raise BadValue(f"{name} cannot have that much memory")
    if not message.known and not free.fits(whole):
        raise BadValue(f"{free} cannot be free on {name}", why=f"it has {whole}")
    if message.labels:
        check_labels(message.labels)
    return NodeDeclared(
        token(), name, whole, free, message.gpu_model, message.gpu_memory, message.labels, message.known, user,
        message.kept,
    )  # fmt: skip


def rights(message: messages.SetRights, user: str, token: Callable[[], int]) -> RightsSet:
    """The event for the ledger, as `order`. Raises BadValue."""
    check_name(message.whose, message.name)
    if message.rights == NO_RIGHTS:
        raise BadValue("no right is named", hint="such as --cores 8; see grid quota set --help")
    return RightsSet(token(), message.whose, message.name, message.rights, user)
