"""Who a peer is: the grid it belongs to, its role, its name. It is read from the connection (a certificate, a token,
the peer of a Unix socket), never from a message.
"""

import re
from enum import StrEnum

import msgspec

from distributed_grid.protocol.errors import BadValue

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What nodes and users may be called where their name goes into a certificate."""

INVITATION_CHARS = 4096
"""Maximum number of characters that are read of an invitation; it has some hundred."""
MOST_USES = 10_000
"""How often one token may be used to join."""


class Role(StrEnum):
    """The role of a peer. An agent acts for its own node only; a client sees and ends its own jobs, an operator all
    jobs; a viewer sees the state of the grid, but no commands, environments or output."""

    COORDINATOR = "coordinator"
    AGENT = "agent"
    CLIENT = "client"
    OPERATOR = "operator"
    VIEWER = "viewer"


PEOPLE = (Role.CLIENT, Role.OPERATOR, Role.VIEWER)


class Identity(msgspec.Struct, frozen=True):
    """One member of one grid. `uri` is its name in a certificate."""

    grid: str
    role: Role
    name: str = ""

    @property
    def uri(self) -> str:
        """`grid://GRID/ROLE/NAME`; the coordinator has no name."""
        return f"grid://{self.grid}/{self.role}" + (f"/{self.name}" if self.name else "")


def parse_uri(uri: str) -> Identity:
    """The identity that a certificate names. Raises BadValue."""
    scheme, _, rest = uri.partition("://")
    grid, _, path = rest.partition("/")
    role, _, name = path.partition("/")
    if scheme != "grid" or not NAME.fullmatch(grid) or role not in [*Role]:
        raise BadValue(f"{uri[:200]!r} names no member of a grid")
    if (role == Role.COORDINATOR) != (not name) or (name and not NAME.fullmatch(name)):
        raise BadValue(f"{uri[:200]!r} names no member of a grid", why="the name is not one that is given out")
    return Identity(grid, Role(role), name)


def is_valid_name(name: str) -> bool:
    """Whether this is a name that a peer may have."""
    return 0 < len(name) <= 64 and name.isprintable()


def check_name(what: str, name: str) -> str:
    """The name, if a node or user may have it. Raises BadValue."""
    if not NAME.fullmatch(name):
        raise BadValue(
            f"{what} cannot be called {name[:80]!r}",
            why="names are 1 to 64 letters, digits, dots, dashes and underscores, and begin with a letter or digit",
        )
    return name
