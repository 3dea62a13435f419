"""The base of all messages, and the messages of peers that are not identified yet: the first ones of a connection;
joining, on a connection of its own at `/v1/join`; renewal of a certificate over the session, and of an expired one at
`/v1/renew`."""

import msgspec

from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.nodes import NO_SETTINGS, Layer, NodeFacts, Stamp
from distributed_grid.protocol.resources import Code, Number, Span, Text, Word


class Message(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The base of all messages."""


class Hello(Message, frozen=True, tag="hello"):
    """The first message of a peer: its protocol, its software, its role (agent, agent-data or client) and its name
    (the node's, or the user's). `facts` come with an agent; `session` ties a data connection to its control one;
    `host` is the name of the machine a client is on. `obeyed`: the grid, epoch and instance of the coordinator that an
    agent has obeyed last, so that one whose store has gone back learns of it; `stamp` is that of its welcome."""

    protocol: tuple[Code, Code]
    software: Word
    role: Word
    name: Word
    facts: NodeFacts | None = None
    session: Word = ""
    host: Word = ""
    obeyed: tuple[Word, Number, Word] | None = None
    stamp: Stamp | None = None


class Welcome(Message, frozen=True, tag="welcome"):
    """The coordinator's answer to a hello: its own versions, its epoch, the session, and the interval of heartbeats.
    `instance` identifies this coordinator process among those that claim the same epoch of a grid. `renew`: the
    certificate that a client came with is old enough to be renewed (WantCertificate), and `renew_in`: it will be in
    this many seconds (0: not known). `user` and `role`: those of the peer in the grid, according to its connection.
    `stamp`: an agent keeps it, for its next hello. `settings`: those of the grid for this node; an agent follows them,
    and lends no more than its own configuration says either. `reached_at`: sent to people, the address at which others
    reach this coordinator (empty: unknown)."""

    protocol: tuple[Code, Code]
    software: str
    epoch: Number
    grid: str
    session: str
    heartbeat: Span = 2.0
    instance: str = ""
    renew: bool = False
    user: str = ""
    role: str = ""
    renew_in: Span = 0.0
    stamp: Stamp | None = None
    settings: Layer = NO_SETTINGS
    reached_at: str = ""


class Refused(Message, frozen=True, tag="refused"):
    """The coordinator's last message on a connection it will not keep: what and why. `final`: do not come back."""

    what: str
    why: str = ""
    hint: str = ""
    final: bool = False


JOIN_PATH = "/v1/join"
RENEW_PATH = "/v1/renew"
AUTHORITY_PATH = "/v1/ca"
"""Answers a plain GET with the authority's certificate. Who asks compares it with the pin of the token it was given."""


class Join(Message, frozen=True, tag="join"):
    """Request a certificate: the id and secret of a token, the wanted name if the token leaves that open, and a
    certificate request (PEM) for a key that stays on this machine. `to_be`: the wanted kind of member, `node` or
    `person`; a token for another kind is refused and not used up (empty: that of the token)."""

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
    """Request a new certificate for the member on this connection, by a request (PEM) for a new key; the certificate of
    the connection stays valid until it expires. Answered by NewCertificate; a client's has a number."""

    request: Text
    id: Number = 0


class NewCertificate(Message, frozen=True, tag="new-certificate"):
    """The certificate (PEM); or why there is none now, while the present one stays in use."""

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
    """Return the bytes that the signature of a Renew covers."""
    return f"grid renew\0{nonce}\0{request}".encode()
