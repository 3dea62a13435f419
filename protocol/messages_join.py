"""How somebody becomes a member of a grid: one question and one answer, on a connection of their own at `/v1/join`."""

from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages_hello import Message

JOIN_PATH = "/v1/join"
AUTHORITY_PATH = "/v1/ca"
"""Answers a plain GET with the authority's certificate. Who asks compares it with the pin of the token it was given."""


class Join(Message, frozen=True, tag="join"):
    """Let me in: the id and secret of a token, what I would be called if the token leaves that open, and a certificate
    request (PEM) for a key that never leaves my machine."""

    token: str
    secret: str
    request: str
    name: str = ""


class Joined(Message, frozen=True, tag="joined"):
    """You are in: as what, under which name and labels, with this certificate (PEM)."""

    grid: str
    role: Role
    name: str
    certificate: str
    labels: dict[str, str] = {}
