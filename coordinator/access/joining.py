"""Letting in who has a token. Nobody else can say anything here: one frame is read, with the limits for strangers."""

import asyncio
import time

import structlog
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from distributed_grid.coordinator.access.ca import checked
from distributed_grid.coordinator.access.pki import Pki
from distributed_grid.coordinator.audit.log import RequestLog
from distributed_grid.coordinator.net.limits import Tries
from distributed_grid.coordinator.net.log_throttle import Seldom
from distributed_grid.protocol import codec
from distributed_grid.protocol.errors import BadFrame, GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import Refused
from distributed_grid.protocol.messages.handshake import Join, Joined

JOIN_SECONDS = 10.0

log = structlog.get_logger("joining")


class Joining:
    """The door. `serve` is given each connection that comes to it."""

    def __init__(self, pki: Pki, audit: RequestLog, seldom: Seldom) -> None:
        self._pki = pki
        self._audit = audit
        self._tries = Tries()
        self._seldom = seldom

    async def serve(self, wire: ServerConnection) -> None:
        """Read one request to join and answer it."""
        peer = str(wire.remote_address[0]) if wire.remote_address else "?"
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                frame = await wire.recv()
                answer = self._answer(frame if isinstance(frame, bytes) else b"", peer)
                await wire.send(codec.encode(1, [answer]))
                await wire.close()
        except (TimeoutError, ConnectionClosed):
            self._seldom.warning("turned away: nobody asked to join in time", peer=peer)

    def _answer(self, frame: bytes, peer: str) -> Joined | Refused:
        try:
            self._tries.judge(peer)
            join: Join = codec.decode_first(frame, Join)
            checked(join.request.encode())  # before the token is used up
            token = self._pki.identities.use(join.token, join.secret, join.name, time.time(), join.to_be)
            certificate = self._pki.certify(join.request, token.role, token.name, token.id)
            self._pki.identities.label(token.role, token.name, token.labels)
        except GridError as error:
            self._tries.failed(peer)
            self._seldom.warning("turned away", peer=peer, error=error.what, why=error.why)
            return Refused(error.what, error.why, error.hint, final=not isinstance(error, BadFrame))
        log.info("joined", peer=peer, role=token.role.value, name=token.name, token=token.id)
        self._audit.request(token.name, "join", role=token.role.value, token=token.id, peer=peer)
        labels = token.labels if token.role is Role.AGENT else {}
        return Joined(
            grid=self._pki.authority.grid, role=token.role, name=token.name, certificate=certificate, labels=labels
        )
