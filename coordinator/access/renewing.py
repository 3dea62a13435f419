"""Renews certificates: for connected peers, over their session; and for a node whose certificate expired while its jobs
continued (after a long partition, or sleep), if it proves that it has the old key."""

import asyncio
import datetime
import secrets
import time
from collections import deque
from collections.abc import Mapping

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from distributed_grid.coordinator.access.ca import UNREADABLE, Pki, Presented, checked, presented
from distributed_grid.coordinator.audit.log import RequestLog
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.net.limits import FailedTries, LogThrottle
from distributed_grid.identity.keys import RENEW_AT
from distributed_grid.protocol import codec
from distributed_grid.protocol.errors import BadFrame, BadValue, GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import NewCertificate, Refused, WantCertificate
from distributed_grid.protocol.messages.handshake import Challenge, Renew, signed_to_renew
from distributed_grid.protocol.text import format_duration
from distributed_grid.runtime.logs import get_logger

SECONDS = 10.0
AT_MOST = 20
"""Renewals of one name within the life of a certificate: its owner may be on several machines."""
AGAIN = "grid agent join, with a token from `grid token create --node {name}` on the master"

log = get_logger("renewing")


class Renewals:
    """Answers both kinds of renewal. `nodes` are the ledger's, by name."""

    def __init__(self, pki: Pki, audit: RequestLog, nodes: Mapping[str, Node], throttle: LogThrottle) -> None:
        self._pki = pki
        self._audit = audit
        self._nodes = nodes
        self._throttle = throttle
        self._tries = FailedTries()
        self._given: dict[tuple[Role, str], deque[float]] = {}

    # --- over the session ---------------------------------------------------------------------------------------------

    def due_in(self, shown: Presented) -> float:
        """Seconds until this certificate is due for renewal; 0 or less: it is due."""
        return shown.life.at(RENEW_AT) - time.time()

    def renew(self, shown: Presented | None, asked: WantCertificate) -> NewCertificate:
        """The answer to a peer that is connected with this certificate."""
        try:
            if shown is None:
                raise GridError("this connection has no certificate that could be renewed")
            return NewCertificate(certificate=self._renewed(shown, asked.request), id=asked.id)
        except GridError as error:
            who = shown.identity.uri if shown is not None else ""
            self._throttle.warning("not renewed", who, error=error.what, why=error.why)
            return NewCertificate(error=f"{error.what}: {error.why}" if error.why else error.what, id=asked.id)

    def _renewed(self, shown: Presented, request: str, **how: str) -> str:
        who = shown.identity
        checked(request.encode())
        self._spend(who.role, who.name)
        kept = self._pki.identities.certified(shown.serial)
        certificate = self._pki.certify(request, who.role, who.name, kept.token if kept is not None else "")
        log.info("certificate renewed", role=who.role.value, name=who.name, **how)
        self._audit.request(who.name, "renew", role=who.role.value, serial=shown.serial, **how)
        return certificate

    def _spend(self, role: Role, name: str) -> None:
        now, life = time.monotonic(), self._pki.lives.of(role)
        given = self._given.setdefault((role, name), deque(maxlen=AT_MOST))
        if len(given) == AT_MOST and given[0] > now - life:
            raise GridError(f"{role} {name} was given {AT_MOST} certificates within {format_duration(life)}")
        given.append(now)

    # --- of what has expired ------------------------------------------------------------------------------------------

    async def serve(self, wire: ServerConnection) -> None:
        """Send a challenge, read one answer and reply to it."""
        peer = str(wire.remote_address[0]) if wire.remote_address else "?"
        nonce = secrets.token_hex(32)  # of this connection alone: what was said on another is worth nothing here
        try:
            async with asyncio.timeout(SECONDS):
                await wire.send(codec.encode(1, [Challenge(nonce=nonce)]))
                frame = await wire.recv()
                answer = self._answer(frame if isinstance(frame, bytes) else b"", nonce, peer)
                await wire.send(codec.encode(2, [answer]))
                await wire.close()
        except (TimeoutError, ConnectionClosed):
            log.info("turned away: no request to renew in time", peer=peer)

    def _answer(self, frame: bytes, nonce: str, peer: str) -> NewCertificate | Refused:
        try:
            self._tries.check(peer)
            asked: Renew = codec.decode_first(frame, Renew)
            shown = self._proved(asked, nonce)
            self._judge(shown)
            return NewCertificate(certificate=self._renewed(shown, asked.request, peer=peer, expired="yes"))
        except GridError as error:
            self._tries.failed(peer)
            self._throttle.warning("not renewed", peer=peer, error=error.what, why=error.why)
            return Refused(error.what, error.why, error.hint, final=not isinstance(error, BadFrame))

    def _proved(self, asked: Renew, nonce: str) -> Presented:
        """The certificate, once it is proved that this authority signed it and that its key has signed the nonce."""
        try:
            certificate = x509.load_pem_x509_certificate(asked.certificate.encode())
            certificate.verify_directly_issued_by(self._pki.authority.certificate)
            public = certificate.public_key()
            if not isinstance(public, ec.EllipticCurvePublicKey):
                raise InvalidSignature
            words = signed_to_renew(nonce, asked.request)
            public.verify(bytes.fromhex(asked.signature), words, ec.ECDSA(hashes.SHA256()))
        except UNREADABLE:
            raise BadValue(
                "this is not proved to be a node of this grid",
                why="the certificate is not of its authority, or its key has not signed what was asked",
            ) from None
        return presented(certificate.public_bytes(serialization.Encoding.DER))

    def _busy(self, name: str) -> bool:
        """Whether something of the grid runs, or may run, on the node of this name."""
        node = self._nodes.get(name)
        return node is not None and bool(node.allocations or node.orphans)

    def _judge(self, shown: Presented) -> None:
        """Raise GridError if this certificate may not be renewed by its key alone."""
        who, hint = shown.identity, AGAIN.format(name=shown.identity.name)
        if who.grid != self._pki.authority.grid or who.role is not Role.AGENT:
            raise GridError("only nodes renew a certificate that has expired", hint="ask for a token, then: grid login")
        kept, bound = self._pki.identities.certified(shown.serial), self._pki.lives.renew_expired
        if kept is None:
            raise GridError(f"this certificate of node {who.name} is not known any more", hint=hint)
        if kept.revoked:
            raise GridError(f"the certificate of node {who.name} was taken back", hint=hint)
        if self._pki.identities.joined_since(kept):
            raise GridError(f"somebody has joined as node {who.name} since", hint=hint)
        over = time.time() - shown.life.end
        if over > bound:
            since = datetime.datetime.fromtimestamp(shown.life.end, datetime.UTC)
            raise GridError(
                f"the certificate of node {who.name} expired on {since:%Y-%m-%d}",
                why=f"it could be renewed for {format_duration(bound)} (certificates.renew_expired)",
                hint=hint,
            )
        if over > 0 and not self._busy(who.name):
            raise GridError(
                f"the certificate of node {who.name} has expired", why="no job of the grid runs there", hint=hint
            )
