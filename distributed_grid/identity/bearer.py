"""A bearer token at the side of who has it: in a file that nobody else can read, never on a command line."""

import os
import ssl
from pathlib import Path

from distributed_grid.identity.tls import AUTHORITY, check_private, client_context, trusting_context
from distributed_grid.protocol.errors import GridError

BEARER = "bearer"
"""The file, in the folder of a context."""
VARIABLE = "GRID_TOKEN_FILE"
"""Names another file, for programs that get their secrets so."""


def bearer_in(folder: Path) -> str:
    """The token that is to be shown, if there is one. Raises GridError."""
    named = os.environ.get(VARIABLE, "")
    path = Path(named) if named else folder / BEARER
    if not named and not path.exists():
        return ""
    check_private(path)
    token = path.read_text(errors="replace").strip().rpartition("/")[2]
    if token.count(".") == 3:  # as it stands in an invitation, with the authority's pin
        token = ".".join(part for number, part in enumerate(token.split(".")) if number != 1)
    if not token.startswith("gridu1.") or not token.isascii() or not token.isprintable() or " " in token:
        raise GridError(f"{path} holds no bearer token", hint="grid token create --bearer, by an operator")
    return token


def as_member(folder: Path) -> tuple[ssl.SSLContext, dict[str, str]]:
    """How a person connects with what is in the folder of a context: a certificate, or a bearer token in this header.
    Raises GridError."""
    if token := bearer_in(folder):
        try:
            authority = (folder / AUTHORITY).read_text()
        except OSError as error:
            why = error.strerror or str(error)
            raise GridError(f"{folder / AUTHORITY} cannot be read", why, "grid login") from None
        return trusting_context(authority), {"Authorization": f"Bearer {token}"}
    return client_context(folder), {}
