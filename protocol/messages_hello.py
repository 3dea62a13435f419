"""The base of all messages, and the first ones of a connection, read before anything is known of the peer."""

import msgspec

from distributed_grid.protocol.nodes import NodeFacts, Stamp
from distributed_grid.protocol.numbers import Code, Number, Span, Word


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
    """The coordinator's answer to a hello: its own versions, its epoch, the session, and how often to be heard.
    `instance` is this coordinator process's own: two that claim the same epoch of a grid are told apart by it. `renew`:
    the certificate that a client came with is old enough to be renewed (WantCertificate), and `renew_in`: it will be in
    so many seconds (0: not known). `user`: who the peer is to the grid, which its connection has told, and `role` as
    what. `stamp`: an agent keeps it, for its next hello."""

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


class Refused(Message, frozen=True, tag="refused"):
    """The coordinator's last message on a connection it will not keep: what and why. `final`: do not come back."""

    what: str
    why: str = ""
    hint: str = ""
    final: bool = False
