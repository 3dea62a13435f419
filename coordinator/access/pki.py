"""The coordinator's folder of keys: the authority, its own certificate, what it remembers of identities."""

import datetime
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from distributed_grid.coordinator.access.ca import DAY, Authority
from distributed_grid.coordinator.access.identities import Identities
from distributed_grid.identity.keys import (
    RENEW_AT,
    certificate_in,
    key_pem,
    life_of,
    new_key,
    replace_identity,
    request_for,
)
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Identity, Role

PKI = "pki"
"""The folder, below the coordinator's state directory."""
IDENTITIES = "identities.db"


class Lives(NamedTuple):
    """How long certificates hold, by whom they are for, and how long after its end a node that still has jobs may renew
    its own: seconds."""

    agent: float = 7 * DAY
    person: float = 90 * DAY
    server: float = 90 * DAY
    renew_expired: float = 30 * DAY

    def of(self, role: Role) -> float:
        """That of a new certificate for this role."""
        return {Role.AGENT: self.agent, Role.COORDINATOR: self.server}.get(role, self.person)


LIVES = Lives()


class Pki:
    """The authority at work. Times are taken from the wall clock: certificates are for other machines to judge."""

    def __init__(self, folder: Path, grid: str, lives: Lives = LIVES) -> None:
        self.folder = folder
        self.lives = lives
        self.authority = Authority.load(folder, grid)
        self.identities = Identities(folder / IDENTITIES)

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether `create` was called for this folder."""
        return (folder / "ca.key").exists()

    @staticmethod
    def create(folder: Path, grid: str, hosts: Iterable[str]) -> "Pki":
        """Make the authority and the coordinator's certificate. Raises GridError where there is one already."""
        if Pki.exists(folder):
            raise GridError(
                f"there is an authority in {folder} already",
                why="with a new one, all nodes and people would have to join again",
                hint="see `grid token create`; to begin anew, move that folder away first",
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        Authority.create(grid, _now()).save(folder)
        pki = Pki(folder, grid)
        pki.certify_self(hosts)
        return pki

    def certify_self(self, hosts: Iterable[str]) -> None:
        """A new key and certificate for the coordinator, who is reached by these names and addresses."""
        key = new_key()
        identity = Identity(self.authority.grid, Role.COORDINATOR)
        signed = self.authority.sign(request_for(key), identity, _now(), self.lives.server, hosts)
        # The authority goes along, so that who joins can be asked for nothing but the token.
        chain = signed.public_bytes(serialization.Encoding.PEM) + self.authority.pem
        replace_identity(self.folder, key_pem(key), chain.decode())

    def refresh_self(self) -> bool:
        """Renew the coordinator's certificate if it is time, for the same names; whether it was."""
        old = certificate_in(self.folder)
        if time.time() < life_of(old).at(RENEW_AT):
            return False
        self.certify_self(self.hosts())
        return True

    def hosts(self) -> list[str]:
        """The names and addresses that the coordinator's certificate is for."""
        names = certificate_in(self.folder).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(one).lower() for kind in (x509.DNSName, x509.IPAddress) for one in names.get_values_for_type(kind)]

    def certify(self, request: str, role: Role, name: str, token: str = "") -> str:
        """A certificate (PEM) for an agent or a person, by its request (PEM), remembered. Raises BadValue."""
        now = _now()
        identity = Identity(self.authority.grid, role, name)
        signed = self.authority.sign(request.encode(), identity, now, self.lives.of(role))
        expires = signed.not_valid_after_utc.timestamp()
        self.identities.signed(signed.serial_number, role, name, expires, now.timestamp(), token)
        return signed.public_bytes(serialization.Encoding.PEM).decode()

    def close(self) -> None:
        self.identities.close()


def _now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time.time(), datetime.UTC)
