"""How somebody becomes a member of a grid, and stays one: joining, on a connection of its own at `/v1/join`; renewal
over the session; and renewal of what has expired, at `/v1/renew`."""

from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages_hello import Message
from distributed_grid.protocol.numbers import Number, Text, Word

JOIN_PATH = "/v1/join"
RENEW_PATH = "/v1/renew"
AUTHORITY_PATH = "/v1/ca"
"""Answers a plain GET with the authority's certificate. Who asks compares it with the pin of the token it was given."""


class Join(Message, frozen=True, tag="join"):
    """Let me in: the id and secret of a token, what I would be called if the token leaves that open, and a certificate
    request (PEM) for a key that never leaves my machine. `to_be`: what I mean to become, `node` or `person`; a token
    for something else is refused and not used up (empty: whatever the token says)."""

    token: Word
    secret: Word
    request: Text
    name: Word = ""
    to_be: Word = ""


class Joined(Message, frozen=True, tag="joined"):
    """You are in: as what, under which name and labels, with this certificate (PEM)."""

    grid: str
    role: Role
    name: str
    certificate: str
    labels: dict[str, str] = {}


class WantCertificate(Message, frozen=True, tag="want-certificate"):
    """A new certificate for who is on this connection, by a request (PEM) for a key that was made anew; the one that
    it was opened with stays good until it expires. Answered by NewCertificate; a client's has a number."""

    request: Text
    id: Number = 0


class NewCertificate(Message, frozen=True, tag="new-certificate"):
    """The certificate (PEM); or why there is none now, and what is held goes on."""

    certificate: str = ""
    error: str = ""
    id: Number = 0


class Challenge(Message, frozen=True, tag="challenge"):
    """The coordinator's first word at `/v1/renew`: what is to be signed, which is never the same twice."""

    nonce: str


class Renew(Message, frozen=True, tag="renew"):
    """A node's answer, which has no certificate to connect with any more: the one that expired (PEM), a request (PEM)
    for a new key, and the old key's signature (hex) of nonce and request. Answered by NewCertificate or Refused."""

    certificate: Text
    request: Text
    signature: Word


def signed_to_renew(nonce: str, request: str) -> bytes:
    """What the signature of a Renew is of."""
    return f"grid renew\0{nonce}\0{request}".encode()
