"""Private keys, and how they are stored: made where they are used, in files that nobody else can read, and never sent.
Only this module loads `cryptography`, so a program that only connects need not wait for it."""

import base64
import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from distributed_grid.identity.credentials import AUTHORITY, CERTIFICATE, KEY, check_private
from distributed_grid.protocol.errors import GridError

RENEW_AT = 2 / 3
"""A certificate is renewed when this part of its life is over, at the latest."""
EARLY = 300.0
"""Certificates are valid from this long before they are made (s; a tenth of their life at most): other machines' clocks
may be behind."""


def new_key() -> ec.EllipticCurvePrivateKey:
    """A private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as it is kept in a file that only its owner can read."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that other users cannot read at any moment, and that is complete or absent."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def read_secret(path: Path) -> bytes:
    """A file with a secret. Raises GridError where it is not there, or others can read it."""
    check_private(path)
    return path.read_bytes()


def request_for(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a certificate request: it proves possession of the key, and has no name."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "grid")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def pin_of(authority: x509.Certificate) -> str:
    """Return the pin in a token: the hash of the authority's public key, 52 letters and digits."""
    public = authority.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return base64.b32encode(hashlib.sha256(public).digest()).decode().rstrip("=").lower()


def save_identity(folder: Path, key: bytes, certificate: str, authority: str) -> None:
    """Keep an identity that was given out: the certificate last, since it is what makes the folder an identity."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_secret(folder / AUTHORITY, authority.encode())
    replace_identity(folder, key, certificate)


def replace_identity(folder: Path, key: bytes, certificate: str) -> None:
    """Store a new key with its certificate. Both are in the one file that connections are made with, so that it has the
    old pair or the new one, and never half of each; the certificate alone is stored for others to read."""
    write_secret(folder / KEY, key + certificate.encode())
    write_secret(folder / CERTIFICATE, certificate.encode())


class Validity(NamedTuple):
    """The time in which a certificate is valid, in seconds since the epoch."""

    begin: float
    end: float

    def at(self, part: float) -> float:
        """The moment when this part of it is over."""
        return self.begin + (self.end - self.begin) * part


def certificate_in(folder: Path) -> x509.Certificate:
    """The certificate of an identity. Raises GridError."""
    try:
        return x509.load_pem_x509_certificate(read_secret(folder / KEY))
    except ValueError as error:
        raise GridError(f"the identity in {folder} cannot be read", str(error), "join the grid again") from None


def validity_of(certificate: x509.Certificate) -> Validity:
    """Return the validity of a certificate."""
    return Validity(certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp())
