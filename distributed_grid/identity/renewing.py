"""Keeping an identity: a new key and certificate before the old one expires, and after, where the grid allows it. The
key is made anew each time, so that an old copy of it is soon worth nothing.
"""

import asyncio
import random
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.exceptions import WebSocketException

from distributed_grid.identity.keys import (
    RENEW_AT,
    certificate_in,
    key_pem,
    life_of,
    new_key,
    read_secret,
    replace_identity,
    request_for,
)
from distributed_grid.identity.strangers import unknown_to
from distributed_grid.identity.tls import AUTHORITY, KEY, has_identity
from distributed_grid.protocol import codec
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import NewCertificate, Refused
from distributed_grid.protocol.messages.handshake import RENEW_PATH, Challenge, Renew, signed_to_renew

SECONDS = 10.0
SPREAD = 0.1
"""Renewals are spread over this part of a certificate's life: nodes that joined together do not come together."""


class NotRenewed(GridError):
    """Why there is no new certificate. `final`: nor will there be one later."""

    def __init__(self, what: str, why: str = "", hint: str = "", final: bool = False) -> None:
        super().__init__(what, why, hint)
        self.final = final


def renewal_time(folder: Path) -> float:
    """When the identity in this folder is to be renewed, in seconds since the epoch: at two thirds of its life, or a
    little before. Raises GridError."""
    return life_of(certificate_in(folder)).at(RENEW_AT - random.uniform(0, SPREAD))  # noqa: S311


def has_expired(folder: Path) -> bool:
    """Whether the identity in this folder is over, by this machine's clock. Raises GridError."""
    return time.time() >= life_of(certificate_in(folder)).end


def hung_up(url: str, identity: Path | None) -> str:
    """Why a coordinator may have ended a connection before it said a word: what TLS says at the end is often lost."""
    if not url.startswith("wss:"):
        return "it ended the connection without an answer; a grid with an authority has an address with wss://"
    try:
        if identity is not None and has_identity(identity) and has_expired(identity):
            return "our certificate has expired"
    except GridError as error:
        return error.what
    return "it ended the connection when it had seen our certificate; its log says why"


class Asked:
    """A renewal that was begun: `request` is to be sent, `keep` takes the certificate that was given for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = new_key()
        self.request = request_for(self._key).decode()

    def keep(self, certificate: str) -> None:
        """Replace the identity. Raises NotRenewed, which leaves the old one: the answer may be to another question."""
        try:
            given = x509.load_pem_x509_certificate(certificate.encode())
        except ValueError:
            raise NotRenewed("what was sent is no certificate") from None
        if given.public_key() != self._key.public_key():
            raise NotRenewed("the certificate that was sent is for another key")
        try:
            replace_identity(self._folder, key_pem(self._key), certificate)
        except OSError as error:
            raise NotRenewed(f"the new certificate cannot be kept in {self._folder}", str(error)) from None


def revive(folder: Path, url: str) -> None:
    """Renew a node's identity that has expired, by its old key. Raises GridError."""
    asked, old = Asked(folder), read_secret(folder / KEY)
    key = serialization.load_pem_private_key(old, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise NotRenewed(f"the key in {folder} is none of a grid", hint="join the grid again", final=True)
    certificate = certificate_in(folder).public_bytes(serialization.Encoding.PEM).decode()
    authority = (folder / AUTHORITY).read_text()
    try:
        answer = asyncio.run(_prove(url + RENEW_PATH, authority, key, certificate, asked.request))
    except (OSError, TimeoutError, WebSocketException) as error:
        raise NotRenewed(f"the coordinator at {url} cannot be reached", str(error) or "it does not answer") from None
    if isinstance(answer, Refused):
        raise NotRenewed(answer.what, answer.why, answer.hint, answer.final)
    asked.keep(answer.certificate)


async def _prove(
    url: str, authority: str, key: ec.EllipticCurvePrivateKey, certificate: str, request: str
) -> NewCertificate | Refused:
    async with asyncio.timeout(SECONDS), unknown_to(url, authority) as socket:
        challenge: Challenge = codec.decode_first(_frame(await socket.recv()), Challenge)
        signature = key.sign(signed_to_renew(challenge.nonce, request), ec.ECDSA(hashes.SHA256())).hex()
        await socket.send(codec.encode(1, [Renew(certificate=certificate, request=request, signature=signature)]))
        answer: NewCertificate | Refused = codec.decode_first(_frame(await socket.recv()), NewCertificate | Refused)
    return answer


def _frame(data: str | bytes) -> bytes:
    return data if isinstance(data, bytes) else b""
