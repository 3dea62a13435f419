"""The coordinator's folder of keys: the authority, its own certificate, what it remembers of identities."""

import datetime
import time
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from distributed_grid.coordinator.ca import (
    AGENT_DAYS,
    PERSON_DAYS,
    SERVER_DAYS,
    Authority,
)
from distributed_grid.coordinator.identities import Identities
from distributed_grid.keys import key_pem, new_key, request_for, write_secret
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Identity, Role
from distributed_grid.tls import AUTHORITY, CERTIFICATE, KEY

PKI = "pki"
"""The folder, below the coordinator's state directory."""
RENEW_AT = 1 / 3
"""A certificate of the coordinator's own is renewed when this part of its life is left."""


class Pki:
    """The authority at work. Times are taken from the wall clock: certificates are for other machines to judge."""

    def __init__(self, folder: Path, grid: str) -> None:
        self.folder = folder
        self.authority = Authority.load(folder, grid)
        self.identities = Identities(folder / "identities.db")

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
        signed = self.authority.sign(request_for(key), identity, _now(), SERVER_DAYS, hosts)
        # The authority goes along, so that who joins can be asked for nothing but the token.
        write_secret(self.folder / KEY, key_pem(key))
        (self.folder / AUTHORITY).write_bytes(self.authority.pem)
        (self.folder / CERTIFICATE).write_bytes(signed.public_bytes(serialization.Encoding.PEM) + self.authority.pem)

    def refresh_self(self) -> bool:
        """Renew the coordinator's certificate if it is time, for the same names; whether it was."""
        old = x509.load_pem_x509_certificate((self.folder / CERTIFICATE).read_bytes())
        life = old.not_valid_after_utc - old.not_valid_before_utc
        if old.not_valid_after_utc - _now() > life * RENEW_AT:
            return False
        names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [str(one) for kind in (x509.DNSName, x509.IPAddress) for one in names.get_values_for_type(kind)]
        self.certify_self(hosts)
        return True

    def certify(self, request: str, role: Role, name: str, token: str = "") -> str:
        """A certificate (PEM) for an agent or a person, by its request (PEM), remembered. Raises BadValue."""
        now = _now()
        days = AGENT_DAYS if role is Role.AGENT else PERSON_DAYS
        identity = Identity(self.authority.grid, role, name)
        signed = self.authority.sign(request.encode(), identity, now, days)
        expires = signed.not_valid_after_utc.timestamp()
        self.identities.signed(signed.serial_number, role, name, expires, now.timestamp(), token)
        return signed.public_bytes(serialization.Encoding.PEM).decode()

    def close(self) -> None:
        self.identities.close()


def _now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time.time(), datetime.UTC)
