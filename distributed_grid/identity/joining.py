"""Becoming a member of a grid, as an agent or a person: a token is exchanged for a certificate. The private key is made
here and stays here. The secret of the token is said only to who has proved to be the grid that the token pins.
"""

import asyncio
import http.client
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from cryptography import x509
from websockets.exceptions import WebSocketException

from distributed_grid.identity.bearer import BEARER
from distributed_grid.identity.keys import key_pem, new_key, pin_of, request_for, save_identity, write_secret
from distributed_grid.identity.member import Member, write_member
from distributed_grid.identity.strangers import unknown_to
from distributed_grid.identity.tls import AUTHORITY, blind_context
from distributed_grid.protocol import codec
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import Refused
from distributed_grid.protocol.messages.handshake import AUTHORITY_PATH, JOIN_PATH, Join, Joined

SECONDS = 10.0
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
        """Where the coordinator is."""
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
        raise BadValue("this is a bearer token, and nobody joins with it", hint="grid login, as who it is for")
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
    connection = http.client.HTTPSConnection(invitation.host, invitation.port, timeout=SECONDS, context=blind_context())
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
    except (OSError, TimeoutError, WebSocketException) as error:
        why = str(error) or "it did not answer in time"
        raise GridError(f"joining the grid at {invitation.address} failed", why=why, hint="try again") from None
    answer: Joined | Refused = codec.decode_first(frame, Joined | Refused)
    return answer


async def _say(url: str, authority: str, frame: bytes) -> bytes:
    async with asyncio.timeout(SECONDS), unknown_to(url, authority) as socket:
        await socket.send(frame)
        answer = await socket.recv()
    return answer if isinstance(answer, bytes) else b""
