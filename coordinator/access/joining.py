"""Joining with a token; and `grid init`, which makes a grid's authority, the coordinator's certificate and the first
operator. A connection to join sends one frame, within the limits of peers that are not identified."""

import asyncio
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from distributed_grid.coordinator.access.ca import Pki, checked, is_host
from distributed_grid.coordinator.access.identities import PKI
from distributed_grid.coordinator.audit.log import RequestLog
from distributed_grid.coordinator.net.limits import FailedTries, LogThrottle
from distributed_grid.coordinator.net.listener import OPEN_TO_PASS
from distributed_grid.coordinator.store.errors import failure
from distributed_grid.coordinator.store.open import open_store, read_head
from distributed_grid.identity.credentials import AUTHORITY
from distributed_grid.identity.keys import key_pem, new_key, request_for, save_identity
from distributed_grid.identity.member import Member, write_member
from distributed_grid.protocol import codec
from distributed_grid.protocol.errors import BadFrame, BadValue, GridError
from distributed_grid.protocol.identity import Role, check_name
from distributed_grid.protocol.messages import Refused
from distributed_grid.protocol.messages.handshake import Join, Joined
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.service import locked, prepare

JOIN_SECONDS = 10.0

log = get_logger("joining")


class Joining:
    """Answers requests to join; `serve` gets each connection at the path for that."""

    def __init__(self, pki: Pki, audit: RequestLog, throttle: LogThrottle) -> None:
        self._pki = pki
        self._audit = audit
        self._tries = FailedTries()
        self._throttle = throttle

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
            self._throttle.warning("turned away: nobody asked to join in time", peer=peer)

    def _answer(self, frame: bytes, peer: str) -> Joined | Refused:
        try:
            self._tries.check(peer)
            join: Join = codec.decode_first(frame, Join)
            checked(join.request.encode())  # before the token is used up
            token = self._pki.identities.redeem(join.token, join.secret, join.name, time.time(), join.to_be)
            certificate = self._pki.certify(join.request, token.role, token.name, token.id)
            self._pki.identities.label(token.role, token.name, token.labels)
        except GridError as error:
            self._tries.failed(peer)
            self._throttle.warning("turned away", peer=peer, error=error.what, why=error.why)
            return Refused(error.what, error.why, error.hint, final=not isinstance(error, BadFrame))
        log.info("joined", peer=peer, role=token.role.value, name=token.name, token=token.id)
        self._audit.request(token.name, "join", role=token.role.value, token=token.id, peer=peer)
        labels = token.labels if token.role is Role.AGENT else {}
        return Joined(
            grid=self._pki.authority.grid, role=token.role, name=token.name, certificate=certificate, labels=labels
        )


class Founded(NamedTuple):
    """The result of founding a grid: its id, its authority's pin, and the names in the coordinator's certificate."""

    grid: str
    pin: str
    hosts: tuple[str, ...]


def hosts_of(given: Iterable[str]) -> tuple[str, ...]:
    """The names and addresses by which this machine is reached: those given, its own name, and loopback."""
    own = socket.gethostname()
    names = [name for name in (own, socket.getfqdn(own)) if is_host(name)]
    return tuple(dict.fromkeys([*given, *names, "localhost", "127.0.0.1", "::1"]))


def _check_hosts(hosts: Iterable[str]) -> None:
    for host in hosts:
        if not is_host(host):
            raise BadValue(
                f"{host!r} is not a name or address of a coordinator",
                hint="give a host name, an IPv4 address, or an IPv6 address without brackets; its port by --port",
            )


@contextmanager
def _undone_on_failure(pki: Path, context: Path) -> Iterator[None]:
    """Remove the new authority and the new context where founding fails. What was there before stays."""
    existed, had = pki.exists(), {name for name in ("ca.key", AUTHORITY) if (pki / name).exists()}
    try:
        yield
    except BaseException:
        shutil.rmtree(context, ignore_errors=True)
        if not existed:
            shutil.rmtree(pki, ignore_errors=True)
        elif not had:
            for name in ("ca.key", AUTHORITY):
                (pki / name).unlink(missing_ok=True)
        raise


def found(state_dir: Path, hosts: Iterable[str], user: str, context: Path, url: str) -> Founded:
    """Found the grid whose coordinator keeps its state here, with `user` as its first operator, whose identity goes to
    the folder `context`. Raises GridError; then nothing has changed."""
    check_name("a user", user)
    hosts = tuple(hosts)
    _check_hosts(hosts)
    if context.exists():
        hint = "give another --context, or remove that folder"
        raise GridError(f"there is a context in {context} already", hint=hint)
    prepare(state_dir, OPEN_TO_PASS)
    hint = "stop it first; it reads its authority when it starts"
    with locked(state_dir, "coordinator", hint), _undone_on_failure(state_dir / PKI, context):
        (state_dir / "grid.db").touch(0o600)
        try:
            with closing(open_store(state_dir / "grid.db")) as store:
                grid = read_head(store).grid
        except sqlite3.Error as error:
            raise failure(state_dir / "grid.db", error) from None
        names = hosts_of(hosts)
        pki = Pki.create(state_dir / PKI, grid, names)
        try:
            key = new_key()
            certificate = pki.certify(request_for(key).decode(), Role.OPERATOR, user)
            save_identity(context, key_pem(key), certificate, pki.authority.pem.decode())
            write_member(context, Member(url, grid, Role.OPERATOR, user))
            return Founded(grid, pki.authority.pin, names)
        finally:
            pki.close()
