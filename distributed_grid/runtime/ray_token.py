"""The file with the token of a Ray cluster that wants one (RAY_AUTH_MODE=token)."""

import os
from pathlib import Path

from distributed_grid.protocol.errors import GridError

OWN = "~/.ray/auth_token"
"""Where Ray itself looks last."""
ANYBODY = 0o007


def find(named: str, setting: str) -> Path:
    """The file: the named one, else what `RAY_AUTH_TOKEN_PATH` names, else Ray's own. Ray itself does not say that one
    is missing or empty: it ends its process by an abort. Raises GridError with the setting that could name another."""
    path = Path(named or os.environ.get("RAY_AUTH_TOKEN_PATH") or OWN).expanduser()
    try:
        empty, mode = not path.read_bytes().strip(), path.stat().st_mode
    except OSError as error:
        raise _unusable(path, setting, error.strerror or str(error)) from None
    if empty:
        raise _unusable(path, setting, "it is empty")
    if named and mode & ANYBODY:  # Ray makes its own one readable to all
        raise GridError(f"the Ray cluster's token in {path} is no secret", "anybody can read it", f"chmod 600 {path}")
    return path


def _unusable(path: Path, setting: str, why: str) -> GridError:
    hint = f"put it there, readable to nobody else, or name its file with {setting}"
    return GridError(f"there is no token for the Ray cluster in {path}", why, hint)
