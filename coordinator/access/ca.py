"""The grid's certificate authority, made by `grid init`, and its folder: key and certificate of the authority, the
coordinator's own certificate, and the record of tokens and certificates."""

import datetime
import ipaddress
import re
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from distributed_grid.coordinator.access.identities import IDENTITIES, Identities, has_authority
from distributed_grid.coordinator.store.errors import DiskTrouble, StoreRefused, failure
from distributed_grid.identity.credentials import AUTHORITY
from distributed_grid.identity.keys import (
    EARLY,
    RENEW_AT,
    Validity,
    certificate_in,
    key_pem,
    new_key,
    pin_of,
    read_secret,
    replace_identity,
    request_for,
    validity_of,
    write_secret,
)
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import Identity, Role, parse_uri

DAY = 86400.0
AUTHORITY_DAYS = 3650


class Presented(NamedTuple):
    """A peer's certificate: the identity in it, its serial number in hex, and its validity."""

    identity: Identity
    serial: str
    life: Validity


def presented(certificate: bytes) -> Presented:
    """Return the contents of a certificate (DER, as TLS gives it, or PEM). Raises BadValue if it has no name, or
    several."""
    pem = certificate.startswith(b"-----")
    read = x509.load_pem_x509_certificate(certificate) if pem else x509.load_der_x509_certificate(certificate)
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise BadValue("the certificate names no member of a grid", why=f"it has {len(uris)} URIs")
    return Presented(parse_uri(uris[0]), f"{read.serial_number:x}", validity_of(read))


class Authority:
    """The grid's certificate authority: its certificate and its private key."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, grid: str) -> None:
        self.certificate = certificate
        self.grid = grid
        self._key = key

    @staticmethod
    def create(grid: str, now: datetime.datetime) -> "Authority":
        """A new authority, for the grid with this id."""
        key = new_key()
        name = _name(f"grid {grid} authority")
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(seconds=EARLY))
            .not_valid_after(now + datetime.timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return Authority(built.sign(key, hashes.SHA256()), key, grid)

    @staticmethod
    def load(folder: Path, grid: str) -> "Authority":
        """The authority that `save` has written. Raises GridError."""
        key = serialization.load_pem_private_key(read_secret(folder / "ca.key"), None)
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise GridError(f"{folder}: ca.key is not the key of ca.crt", hint="restore both from one backup")
        return Authority(certificate, key, grid)

    def save(self, folder: Path) -> None:
        """Write ca.key, which only its owner can read, and ca.crt, which is public."""
        write_secret(folder / "ca.key", key_pem(self._key))
        (folder / "ca.crt").write_bytes(self.pem)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def pin(self) -> str:
        return pin_of(self.certificate)

    def secret_of(self, purpose: str) -> bytes:
        """Return a secret of 32 bytes that only this authority can make, the same for the same purpose. It reveals
        neither the private key nor the secret of another purpose."""
        private = self._key.private_numbers().private_value.to_bytes(32, "big")
        return HKDF(hashes.SHA256(), 32, None, b"distributed-grid " + purpose.encode()).derive(private)

    def sign(
        self, request: bytes, identity: Identity, now: datetime.datetime, life: float, hosts: Iterable[str] = ()
    ) -> x509.Certificate:
        """Sign a certificate request, for this identity and for `life` seconds. `hosts`: names and addresses of a
        coordinator. Raises BadValue for a malformed request."""
        public = checked(request)
        if identity.grid != self.grid:
            raise ValueError(f"{identity.uri} is not of grid {self.grid}")
        validity = datetime.timedelta(seconds=life)
        serves = identity.role is Role.COORDINATOR
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri), *map(_host, hosts)]
        return (
            x509.CertificateBuilder()
            .subject_name(_name(identity.name or identity.role.value))
            .issuer_name(self.certificate.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - min(datetime.timedelta(seconds=EARLY), abs(validity) / 10))
            .not_valid_after(min(now + validity, self.certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )


UNREADABLE = (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm, InvalidSignature)
"""What is raised for a request or a certificate of a stranger that cannot be read, or is not signed as it should be."""


def checked(request: bytes) -> ec.EllipticCurvePublicKey:
    """The public key of a certificate request that is signed with its private key. Raises BadValue for others."""
    try:
        asked = x509.load_pem_x509_csr(request)
        if not asked.is_signature_valid:
            raise InvalidSignature
        public = asked.public_key()
    except UNREADABLE:
        raise BadValue(
            "this is not a certificate request", why="it cannot be read, or is not signed by its key"
        ) from None
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
        raise BadValue("this kind of key is not used here", why="keys are ECDSA on P-256")
    return public


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")


def is_host(text: str) -> bool:
    """Whether a certificate can be for this: a host name in ASCII, or an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None
    return True


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


class Lives(NamedTuple):
    """Lives of certificates by role, and how long after expiry a node that still has jobs may renew its own (s)."""

    agent: float = 7 * DAY
    person: float = 90 * DAY
    server: float = 90 * DAY
    renew_expired: float = 30 * DAY

    def of(self, role: Role) -> float:
        """The validity of a new certificate for this role."""
        return {Role.AGENT: self.agent, Role.COORDINATOR: self.server}.get(role, self.person)


LIVES = Lives()


def _identities(path: Path) -> Identities:
    """Open the record of tokens and certificates. Raises GridError if there is none: without it revoked members would
    be admitted."""
    restore = "grid coordinator restore BACKUP --force"
    if not path.exists():
        raise StoreRefused(
            f"{path} is missing",
            why="it says whose access was revoked, and without it they would be let in again",
            hint=f"{restore}; or, if nobody's was: touch {path}",
        )
    try:
        return Identities(path)
    except sqlite3.Error as error:
        found = failure(path, error)
        raise (
            found
            if isinstance(found, DiskTrouble)
            else StoreRefused(f"{path} cannot be read", why=str(error), hint=restore)
        ) from None


class Pki:
    """The authority in use. Times are those of the wall clock, as other machines check certificates."""

    def __init__(self, folder: Path, grid: str, lives: Lives = LIVES) -> None:
        """Raises GridError where the folder is not whole."""
        self.folder = folder
        self.lives = lives
        self.authority = Authority.load(folder, grid)
        self.identities = _identities(folder / IDENTITIES)
        self.presented = presented

    @staticmethod
    def create(folder: Path, grid: str, hosts: Iterable[str]) -> "Pki":
        """Make the authority and the coordinator's certificate. Raises GridError where there is one already."""
        if has_authority(folder) or (folder / AUTHORITY).exists():  # or its key is elsewhere
            raise GridError(
                f"there is an authority in {folder} already",
                why="with a new one, all nodes and people would have to join again",
                hint="see `grid token create`; to start again, move that folder away first",
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / IDENTITIES).touch(0o600)
        Authority.create(grid, _now()).save(folder)
        pki = Pki(folder, grid)
        try:
            pki.certify_self(hosts)
        except BaseException:
            pki.close()
            raise
        return pki

    def certify_self(self, hosts: Iterable[str]) -> None:
        """Make a new key and certificate for the coordinator, for these names and addresses."""
        key = new_key()
        identity = Identity(self.authority.grid, Role.COORDINATOR)
        signed = self.authority.sign(request_for(key), identity, _now(), self.lives.server, hosts)
        # The authority goes along, so that who joins can be asked for nothing but the token.
        chain = signed.public_bytes(serialization.Encoding.PEM) + self.authority.pem
        replace_identity(self.folder, key_pem(key), chain.decode())

    def refresh_self(self, reached_at: str = "") -> bool:
        """Renew the coordinator's certificate if it is due, for the same names. Returns whether it was renewed. One
        that is not valid yet was made while the clock was ahead, and is accepted by no peer. `reached_at` is an address
        (wss://) that it has to cover as well, as after a move to another machine."""
        life, hosts = validity_of(certificate_in(self.folder)), self.hosts()
        parts = urlsplit(reached_at)
        host = parts.hostname if parts.scheme == "wss" else None
        if host and is_host(host) and _host(host) not in map(_host, hosts):
            hosts.append(host)
        elif life.begin <= time.time() < life.at(RENEW_AT):
            return False
        self.certify_self(hosts)
        return True

    def hosts(self) -> list[str]:
        """The names and addresses that the coordinator's certificate is for."""
        names = certificate_in(self.folder).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(one).lower() for kind in (x509.DNSName, x509.IPAddress) for one in names.get_values_for_type(kind)]

    def certify(self, request: str, role: Role, name: str, token: str = "") -> str:
        """Sign and record a certificate (PEM) for an agent or a person, by its request (PEM). Raises BadValue."""
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
