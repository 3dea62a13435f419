"""Default places: of configurations, of the state of services, and of the coordinator. It imports little, so that a
command without a configuration need not load the schema."""

import grp
import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path

from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.runtime import xdg
from distributed_grid.runtime.local import SCHEME, SOCKET, is_socket

HERE = ("grid.yaml", "config/my-cluster-enhanced.yaml", "config/my-cluster.yaml", "config/cluster_config.yaml")
"""Where a file is looked for below the current directory, first come first served."""
SYSTEM = Path("/var/lib/grid")
"""Below it the services keep their state that run as root."""
NO_HOST = "none"
"""As `coordinator.host`: the coordinator listens on no port."""
DEFAULT_URL = "ws://127.0.0.1:7433"
"""The default address of a coordinator."""


def places(environment: Mapping[str, str] | None = None, here: Path | None = None) -> list[Path]:
    """The places where a configuration is searched if none is named, in order."""
    environment = os.environ if environment is None else environment
    here = here or Path()
    own = xdg.config_home(environment) / "grid" / "config.yaml"
    return [*(here / name for name in HERE), own, Path("/etc/grid/grid.yaml")]


def as_path(what: str, given: object) -> Path:
    """The path that a program gave as this. Raises BadValue."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    if not isinstance(text, str) or "\0" in text:
        raise BadValue(f"{what} cannot be {given!r:.80}", hint="give a path, as text or a pathlib.Path")
    return Path(text)


def find(
    path: str | Path | None = None, environment: Mapping[str, str] | None = None, here: Path | None = None
) -> Path | None:
    """Return the file to read: the named one, `$GRID_CONFIG`, or the first of `places` that exists. None: there is
    none. Raises UntrustedConfig for one in the current directory that another user could have written, and GridError if
    that cannot be determined."""
    environment = os.environ if environment is None else environment
    if path:
        return Path(path)
    if named := environment.get("GRID_CONFIG"):
        return Path(named)
    here = here or Path()
    for place in places(environment, here):
        if is_config(place):
            if place.is_relative_to(here) and (why := _not_trusted(here, place.relative_to(here), environment)):
                raise UntrustedConfig(place, why)
            return place
    return None


def is_config(place: Path) -> bool:
    """Whether there is a file. Raises GridError where that cannot be seen."""
    try:
        return place.is_file()
    except OSError as error:
        why = (error.strerror or "").lower()
        hint = f"id shows who you are, and ls -ld {place.parent} whose that is; --config FILE names another"
        raise GridError(f"a configuration cannot be looked for at {place}", why, hint) from None


class UntrustedConfig(GridError):
    """A configuration in the current directory that another user could have written. See docs/decisions/0012."""

    def __init__(self, path: Path, why: str) -> None:
        named = shown(path)
        super().__init__(
            f"the configuration {named} is not read",
            why=f"{why}, and nobody named it: it was found in the current directory",
            hint=f"if it is wanted: --config {path} · else run grid in another directory",
        )


def shown(path: Path) -> str:
    """The path for messages: one below the current directory begins with `./`."""
    return str(path) if path.is_absolute() or str(path).startswith(("./", "../")) else f"./{path}"


def _not_trusted(here: Path, relative: Path, environment: Mapping[str, str]) -> str:
    """Return why another user could have written a file; empty: only this user, root, and the user who called sudo
    could."""
    ours = {0, os.geteuid()}
    if os.geteuid() == 0 and (caller := environment.get("SUDO_UID", "")).isdecimal():
        ours.add(int(caller))
    whole = here / relative
    links = [whole, *(here / above for above in relative.parents if above != Path())]
    try:
        for seen in (whole.stat(), *(one.lstat() for one in links)):
            if seen.st_uid not in ours:
                return f"it belongs to {_user(seen.st_uid)}"
        seen = whole.stat()
        if seen.st_mode & stat.S_IWOTH:
            return "all users can write to it"
        if seen.st_mode & stat.S_IWGRP and not is_private_group(seen):
            return "its group can write to it"
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"
    return ""


def _user(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user id {uid}"


def is_private_group(seen: os.stat_result) -> bool:
    """Whether the group of a file has only its owner as member, as many systems make one for each user."""
    try:
        owner, group = pwd.getpwuid(seen.st_uid), grp.getgrgid(seen.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == seen.st_gid and group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}


def state_dir(name: str, environment: Mapping[str, str] | None = None) -> Path:
    """Return the default state directory of a service: `/var/lib/grid` for root, else the user's state directory."""
    if os.geteuid() == 0 and not xdg.named("XDG_STATE_HOME", environment):
        return SYSTEM / name
    return xdg.state_home(environment) / "grid" / name


def near_address() -> str:
    """The address of the coordinator if none is configured: that of the grid whose member we are, else the one on this
    machine, by its socket (our own, the machine's, that of our dev grid) or its default address."""
    here = state_dir("coordinator"), SYSTEM / "coordinator", dev_dir() / "coordinator"
    return _joined() or local_address(*here) or DEFAULT_URL


def usual_address() -> str:
    """Return the default address of the coordinator: from the environment, or the local one."""
    return os.environ.get("GRID_COORDINATOR") or near_address()


def dev_dir() -> Path:
    """The directory of our dev grid, where none is named: one for each user."""
    return state_dir("dev")


def local_address(*state_dirs: Path) -> str:
    """Return the first socket of a coordinator in these state directories, as an address; empty: there is none."""
    sockets = (folder / SOCKET for folder in state_dirs)
    return next((f"{SCHEME}{path}" for path in sockets if is_socket(path)), "")


EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def joined_at(host: str, port: int) -> str:
    """Return the address of the coordinator that listens on this host and port, according to the contexts of this user,
    the current one first; empty: none has it. For a coordinator that listens on every address only the port is
    compared."""
    if not _has_contexts():
        return ""
    from urllib.parse import urlsplit

    from distributed_grid.identity.member import all_contexts, current_context

    same = LOOPBACK if host in LOOPBACK else (host,)
    current = current_context()
    found = []
    for name, member in all_contexts():
        parts = urlsplit(member.url)
        if parts.port == port and (host in EVERY_ADDRESS or parts.hostname in same):
            found.append((name != current, member.url))
    return min(found)[1] if found else ""


def _has_contexts() -> bool:
    """Most have none, and need not wait until more is imported."""
    return os.path.isdir(xdg.config_home() / "grid" / "contexts")


def _joined() -> str:
    if not (os.environ.get("GRID_CONTEXT") or _has_contexts()):
        return ""
    from distributed_grid.identity.member import contexts, current_context, read_member

    name = current_context()
    member = read_member(contexts() / name) if name else None
    return member.url if member is not None else ""
