"""Where a configuration is looked for, where services keep their state, and where the coordinator is if nobody says so.
Light, so that who finds no configuration need not load the schema.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from distributed_grid.local import SCHEME, SOCKET, is_socket

HERE = ("grid.yaml", "config/my-cluster-enhanced.yaml", "config/my-cluster.yaml", "config/cluster_config.yaml")
"""Where a file is looked for below the current directory, first come first served."""
SYSTEM = Path("/var/lib/grid")
"""Below it the services keep their state that run as root."""
DEFAULT_URL = "ws://127.0.0.1:7433"
"""Where a coordinator listens if nobody said otherwise."""


def places(environment: Mapping[str, str] | None = None, here: Path | None = None) -> list[Path]:
    """Where a configuration is looked for when none is named, in this order."""
    environment = os.environ if environment is None else environment
    here = here or Path()
    user = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [*(here / name for name in HERE), user / "grid" / "config.yaml", Path("/etc/grid/grid.yaml")]


def find(
    path: str | Path | None = None, environment: Mapping[str, str] | None = None, here: Path | None = None
) -> Path | None:
    """The file to read: the named one, `$GRID_CONFIG`, or the first of `places` that is there. None: there is none."""
    environment = os.environ if environment is None else environment
    if path:
        return Path(path)
    if named := environment.get("GRID_CONFIG"):
        return Path(named)
    return next((place for place in places(environment, here) if place.is_file()), None)


def state_dir(name: str, environment: Mapping[str, str] | None = None) -> Path:
    """Where a service keeps its state by default: `/var/lib/grid` for root, else the user's state directory."""
    environment = os.environ if environment is None else environment
    if base := environment.get("XDG_STATE_HOME"):
        return Path(base) / "grid" / name
    return SYSTEM / name if os.geteuid() == 0 else Path.home() / ".local/state/grid" / name


def near_address() -> str:
    """Where the coordinator is if nobody has said it: that of the grid whose member we are, else the one on this
    machine, by its socket or where it listens by default."""
    return _joined() or local_address(state_dir("coordinator"), SYSTEM / "coordinator") or DEFAULT_URL


def local_address(*state_dirs: Path) -> str:
    """The first socket of a coordinator in these state directories, as an address; empty: there is none."""
    sockets = (folder / SOCKET for folder in state_dirs)
    return next((f"{SCHEME}{path}" for path in sockets if is_socket(path)), "")


def _joined() -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    if not os.path.isdir(os.path.join(base, "grid", "contexts")):  # most have none, and need not wait for more
        return ""
    from distributed_grid.member import contexts, current_context, read_member

    name = current_context()
    member = read_member(contexts() / name) if name else None
    return member.url if member is not None else ""
