"""What a member of a grid knows of it beside key and certificate: the grid's address, and the member's own name and
role there."""

import os
from pathlib import Path

import msgspec

from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.runtime.xdg import config_home

MEMBER = "member.json"


class Member(msgspec.Struct, frozen=True):
    """A membership, as `member.json` in the folder of an identity keeps it."""

    url: str
    grid: str
    role: Role
    name: str
    labels: dict[str, str] = {}


def write_member(folder: Path, member: Member) -> None:
    """Keep it."""
    (folder / MEMBER).write_bytes(msgspec.json.format(msgspec.json.encode(member)) + b"\n")


def read_member(folder: Path) -> Member | None:
    """The membership in this folder, if there is one. Raises GridError where it cannot be read."""
    try:
        return msgspec.json.decode((folder / MEMBER).read_bytes(), type=Member)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise GridError(f"{folder / MEMBER} cannot be read", why=str(error), hint="join the grid again") from None


# --- a person's contexts: one folder for each grid they have joined ---------------------------------------------------


def contexts() -> Path:
    """Return the folder that holds a person's contexts, each a folder of its own, and `current`, which names one."""
    return config_home() / "grid" / "contexts"


def current_context() -> str:
    """The name of the context that is used where none is named: `$GRID_CONTEXT`, or what `use_context` said last.
    Raises GridError where that variable names none."""
    if named := os.environ.get("GRID_CONTEXT"):
        _check(named, "GRID_CONTEXT names it; ")
        return named
    try:
        return (contexts() / "current").read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        raise _unreadable(error) from None


def use_context(name: str) -> None:
    """Use this context from now on. Raises GridError if there is none of this name."""
    _check(name)
    (contexts() / "current").write_text(name + "\n")


def _check(name: str, why: str = "") -> None:
    names = [one for one, _ in all_contexts()]
    if name not in names:
        known = ", ".join(names) or "none; see `grid login`"
        raise GridError(f"there is no context {name!r}", why=f"{why}there are: {known}")


def all_contexts() -> list[tuple[str, Member]]:
    """Return all contexts, by name. Raises GridError if they cannot be read."""
    try:
        names = sorted(os.listdir(contexts()))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(error) from None
    found = ((name, read_member(contexts() / name)) for name in names)
    return [(name, member) for name, member in found if member is not None]


def _unreadable(error: Exception) -> GridError:
    why = (error.strerror or "").lower() if isinstance(error, OSError) else str(error)
    hint = "id shows who you are, and ls -ld whose these files are; XDG_CONFIG_HOME is where they are looked for"
    return GridError(f"the grids that you have joined cannot be read in {contexts()}", why, hint)


def identity_for(url: str) -> Path | None:
    """The folder of our identity at this address of a coordinator: of the context that names it, the current one before
    others; where none does, the current one, whose grid may be there now. The handshake tells: only what the authority
    in that folder has signed is shown our certificate."""
    current = current_context()
    found = all_contexts()
    matching = [name for name, member in found if member.url == url] or [name for name, _ in found if name == current]
    if not matching:
        return None
    return contexts() / (current if current in matching else matching[0])


def identity_at(url: str) -> Path:
    """The same. Raises GridError where we have joined no grid there."""
    if (identity := identity_for(url)) is None:
        raise GridError(
            f"the grid at {url} asks who you are",
            why="you have joined no grid at that address",
            hint="grid login grid://HOST:PORT/TOKEN, with a token from one of its operators; grid context list",
        )
    return identity


def other_address(url: str, identity: Path | None) -> str:
    """Return what to do if TLS fails at an address that this identity does not name; empty: it names it."""
    member = read_member(identity) if identity is not None else None
    if identity is None or member is None or member.url == url:
        return ""
    another = "if another one is there: grid login, with a token from one of its operators"
    return f"the context {identity.name!r} is for the grid at {member.url}; {another}"
