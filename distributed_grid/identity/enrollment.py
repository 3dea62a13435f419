"""Getting a certificate for a token, and renewing it. The private key is made here and never leaves this machine."""

import asyncio
import http.client
import random
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from distributed_grid.identity.credentials import (
    AUTHORITY,
    BEARER,
    KEY,
    blind_context,
    clock_words,
    has_identity,
    hint_of,
    tls_words,
    trusting_context,
)
from distributed_grid.identity.keys import (
    EARLY,
    RENEW_AT,
    certificate_in,
    key_pem,
    new_key,
    pin_of,
    read_secret,
    replace_identity,
    request_for,
    save_identity,
    validity_of,
    write_secret,
)
from distributed_grid.identity.member import Member, write_member
from distributed_grid.protocol import codec
from distributed_grid.protocol.codec import HELLO_BYTES
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import NewCertificate, Refused
from distributed_grid.protocol.messages.handshake import (
    AUTHORITY_PATH,
    JOIN_PATH,
    RENEW_PATH,
    Challenge,
    Join,
    Joined,
    Renew,
    signed_to_renew,
)


def unknown_to(url: str, authority: str) -> connect:
    """A websocket that shows no certificate and trusts this authority (PEM) only; to be entered by `async with`.

    Not the library's `sync` client: it reads and writes from two threads, and before Python 3.13 nothing keeps two
    threads apart in one TLS connection: one in some hundred connections never sent its request."""
    return connect(
        url,
        ssl=trusting_context(authority),
        compression=None,
        close_timeout=1,
        max_size=HELLO_BYTES,
        ping_interval=None,
        proxy=None,
        user_agent_header=None,
    )


JOIN_SECONDS = 10.0
PORT = 7433
BEARERS = "gridu1"
AUTHORITY_BYTES = 16 << 10


class Invitation(NamedTuple):
    """`grid://HOST:PORT/TOKEN`, taken apart. Its text is never repeated: it is a secret."""

    host: str
    port: int
    pin: str
    token: str
    secret: str
    kind: str = "grid1"

    @property
    def bearer(self) -> str:
        """The token as it is shown with each connection, where it is one of those; else empty."""
        return f"{BEARERS}.{self.token}.{self.secret}" if self.kind == BEARERS else ""

    @property
    def url(self) -> str:
        """The address of the coordinator."""
        return f"wss://{self.address}"

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_invitation(text: str) -> Invitation:
    """Raises BadValue."""
    form = "an invitation looks like grid://HOST:PORT/grid1.….….…"
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port or PORT
    except ValueError:
        host, port = None, 0
    if not host or parts.scheme != "grid":
        raise BadValue("this is not an invitation to a grid", why=form, hint="grid token create, on the master")
    token = parts.path.strip("/").split(".")
    if len(token) != 4 or token[0] not in ("grid1", BEARERS) or not all(token) or len(token[1]) != 52:
        raise BadValue("this is not an invitation to a grid", why=form, hint="grid token create, on the master")
    return Invitation(host, port, token[1], token[2], token[3], token[0])


def join(invitation: Invitation, name: str, folder: Callable[[str], Path], node: bool) -> Joined:
    """Join as a node or as a person, proposing this name, and keep the identity in the folder for the name that was
    given. Raises GridError; then nothing is kept."""
    if invitation.bearer:
        raise BadValue("this is a bearer token, which cannot be used to join", hint="grid login, as who it is for")
    authority = _authority(invitation)
    key = new_key()
    asked = Join(
        token=invitation.token,
        secret=invitation.secret,
        request=request_for(key).decode(),
        name=name,
        to_be="node" if node else "person",
    )
    answer = _ask(invitation, authority, asked)
    if isinstance(answer, Refused):
        raise GridError(f"the grid at {invitation.address} did not let us in: {answer.what}", answer.why, answer.hint)
    if (answer.role is Role.AGENT) != node:  # of a coordinator that does not compare them
        hint = "grid login, as that person" if node else "grid agent join, on that node"
        raise GridError(f"this token was for {answer.role} {answer.name}", "it is used up now", f"{hint}, with another")
    where = folder(answer.name)
    save_identity(where, key_pem(key), answer.certificate, authority)
    write_member(where, Member(invitation.url, answer.grid, answer.role, answer.name, answer.labels))
    return answer


def keep_bearer(invitation: Invitation, folder: Path) -> None:
    """Keep a bearer token, and the authority that it pins, in a new context. Raises GridError; then nothing is kept."""
    authority = _authority(invitation)
    folder.mkdir(mode=0o700, parents=True)
    write_secret(folder / AUTHORITY, authority.encode())
    write_secret(folder / BEARER, f"{invitation.bearer}\n".encode())


def _authority(invitation: Invitation) -> str:
    """The authority's certificate, which is asked for without trust and judged by the pin."""
    connection = http.client.HTTPSConnection(
        invitation.host, invitation.port, timeout=JOIN_SECONDS, context=blind_context()
    )
    try:
        connection.request("GET", AUTHORITY_PATH)
        answer = connection.getresponse()
        text = answer.read(AUTHORITY_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        why = (
            "nothing listens there" if isinstance(error, ConnectionRefusedError) else str(error) or "no answer in time"
        )
        if isinstance(error, ssl.SSLError):
            why = "what answers there does not speak TLS 1.3, as the coordinator of a grid with identities does"
        raise GridError(
            f"cannot reach a coordinator at {invitation.address}",
            why=why,
            hint="see that the coordinator runs there, and that no firewall is between",
        ) from None
    finally:
        connection.close()
    if answer.status != 200 or pin_in(text) != invitation.pin:
        raise GridError(
            f"what answers at {invitation.address} is not the grid that this token is for",
            why="its authority is another one; the token's secret was not sent",
            hint="see whether the address is right; if it is, somebody may be listening in",
        )
    return text


def pin_in(authority: str) -> str:
    """The pin of an authority as it was sent; empty for what is no certificate."""
    try:
        return pin_of(x509.load_pem_x509_certificate(authority.encode()))
    except ValueError:
        return ""


def _ask(invitation: Invitation, authority: str, asked: Join) -> Joined | Refused:
    try:
        frame = asyncio.run(_say(invitation.url + JOIN_PATH, authority, codec.encode(1, [asked])))
    except ssl.SSLError as error:
        what = f"joining the grid at {invitation.address} failed"
        raise GridError(what, tls_words(error), hint_of(error) or "try again") from None
    except (OSError, TimeoutError, WebSocketException) as error:
        why = str(error) or "it did not answer in time"
        raise GridError(f"joining the grid at {invitation.address} failed", why=why, hint="try again") from None
    answer: Joined | Refused = codec.decode_first(frame, Joined | Refused)
    return answer


async def _say(url: str, authority: str, frame: bytes) -> bytes:
    async with asyncio.timeout(JOIN_SECONDS), unknown_to(url, authority) as socket:
        await socket.send(frame)
        answer = await socket.recv()
    return answer if isinstance(answer, bytes) else b""


RENEW_SECONDS = 10.0
SPREAD = 0.1
"""Renewals are spread over this part of a certificate's life: nodes that joined together do not come together."""


class NotRenewed(GridError):
    """There is no new certificate, for this reason. `final`: nor will there be one later."""

    def __init__(self, what: str, why: str = "", hint: str = "", final: bool = False) -> None:
        super().__init__(what, why, hint)
        self.final = final


def renewal_time(folder: Path) -> float:
    """Return when to renew the identity in this folder, in seconds since the epoch: at two thirds of its life, or a
    little before. Raises GridError."""
    return validity_of(certificate_in(folder)).at(RENEW_AT - random.uniform(0, SPREAD))  # noqa: S311


def renewal_after(folder: Path) -> float:
    """As renewal_time, for an identity that was issued just now: the seconds until then, whatever this machine's clock
    says. Raises GridError."""
    begin, end = validity_of(certificate_in(folder))
    life = end - begin
    return life * (RENEW_AT - random.uniform(0, SPREAD)) - min(EARLY, life / 10)  # noqa: S311


def has_expired(folder: Path) -> bool:
    """Whether the identity in this folder is over, by this machine's clock. Raises GridError."""
    return time.time() >= validity_of(certificate_in(folder)).end


def expired(url: str, identity: Path | None) -> GridError | None:
    """Return the error for a person whose identity there has expired; None: it has not."""
    if identity is None or not has_identity(identity) or not has_expired(identity):
        return None
    return GridError(
        f"your certificate for the grid at {url} has expired",
        why=f"it is renewed by using it, and was not used for long; {clock_words()}",
        hint="grid login grid://HOST:PORT/TOKEN, with a token from one of its operators",
    )


AHEAD = 3600.0
"""Seconds by which this machine's clock may be behind the coordinator's before a certificate counts as one of the
future."""


def is_of_the_future(folder: Path) -> bool:
    """Whether the identity in this folder does not hold yet, by this machine's clock: it was renewed while the clocks
    were ahead. Raises GridError."""
    return time.time() < validity_of(certificate_in(folder)).begin - AHEAD


def disconnect_reason(url: str, identity: Path | None) -> str:
    """Why a coordinator may have ended a connection before it said a word: what TLS says at the end is often lost."""
    if not url.startswith("wss:"):
        return "it ended the connection without an answer; a grid with an authority has an address with wss://"
    try:
        if identity is not None and has_identity(identity) and has_expired(identity):
            return "our certificate has expired"
    except GridError as error:
        return error.what
    return "it ended the connection when it had seen our certificate; its log says why"


class RenewalRequest:
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


def renew_expired(folder: Path, url: str) -> None:
    """Renew a node's identity that does not hold now, since it has expired or is of the future, by its old key. Raises
    GridError."""
    asked, old = RenewalRequest(folder), read_secret(folder / KEY)
    key = serialization.load_pem_private_key(old, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise NotRenewed(f"the key in {folder} is none of a grid", hint="join the grid again", final=True)
    certificate = certificate_in(folder).public_bytes(serialization.Encoding.PEM).decode()
    authority = (folder / AUTHORITY).read_text()
    try:
        answer = asyncio.run(_prove(url + RENEW_PATH, authority, key, certificate, asked.request))
    except ssl.SSLError as error:
        what = f"the coordinator at {url} and this node do not trust each other"
        raise NotRenewed(what, tls_words(error), hint_of(error)) from None
    except (OSError, TimeoutError, WebSocketException) as error:
        raise NotRenewed(f"the coordinator at {url} cannot be reached", str(error) or "it does not answer") from None
    if isinstance(answer, Refused):
        raise NotRenewed(answer.what, answer.why, answer.hint, answer.final)
    asked.keep(answer.certificate)


async def _prove(
    url: str, authority: str, key: ec.EllipticCurvePrivateKey, certificate: str, request: str
) -> NewCertificate | Refused:
    async with asyncio.timeout(RENEW_SECONDS), unknown_to(url, authority) as socket:
        challenge: Challenge = codec.decode_first(_frame(await socket.recv()), Challenge)
        signature = key.sign(signed_to_renew(challenge.nonce, request), ec.ECDSA(hashes.SHA256())).hex()
        await socket.send(codec.encode(1, [Renew(certificate=certificate, request=request, signature=signature)]))
        answer: NewCertificate | Refused = codec.decode_first(_frame(await socket.recv()), NewCertificate | Refused)
    return answer


def _frame(data: str | bytes) -> bytes:
    return data if isinstance(data, bytes) else b""
