"""`grid init`: the authority of a grid, its coordinator's certificate, and its first operator."""

import socket
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from distributed_grid.coordinator.access.pki import PKI, Pki
from distributed_grid.coordinator.net.unix_socket import OPEN_TO_PASS
from distributed_grid.coordinator.store import head
from distributed_grid.coordinator.store.open import open_store
from distributed_grid.identity.keys import key_pem, new_key, request_for, save_identity
from distributed_grid.identity.member import Member, write_member
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Role, check_name
from distributed_grid.runtime.service import locked, prepare


class Founded(NamedTuple):
    """What was made: the grid's id, its authority's pin, and the names in the coordinator's certificate."""

    grid: str
    pin: str
    hosts: tuple[str, ...]


def hosts_of(given: Iterable[str]) -> tuple[str, ...]:
    """The names and addresses by which this machine is reached: those given, its own name, and loopback."""
    own = socket.gethostname()
    return tuple(dict.fromkeys([*given, own, socket.getfqdn(own), "localhost", "127.0.0.1", "::1"]))


def found(state_dir: Path, hosts: Iterable[str], user: str, context: Path, url: str) -> Founded:
    """Found the grid whose coordinator keeps its state here, with `user` as its first operator, whose identity goes to
    the folder `context`. Raises GridError; then nothing has changed."""
    check_name("a user", user)
    if context.exists():
        hint = "give another --context, or remove that folder"
        raise GridError(f"there is a context in {context} already", hint=hint)
    prepare(state_dir, OPEN_TO_PASS)
    hint = "stop it first; it reads its authority when it starts"
    with locked(state_dir, "coordinator", hint):
        (state_dir / "grid.db").touch(0o600)
        store = open_store(state_dir / "grid.db")
        try:
            grid = head.read(store).grid
        finally:
            store.close()
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
