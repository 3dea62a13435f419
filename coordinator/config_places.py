"""Where a configuration is looked for. Light, so that who finds none need not load the schema."""

import os
from collections.abc import Mapping
from pathlib import Path

HERE = ("grid.yaml", "config/my-cluster-enhanced.yaml", "config/my-cluster.yaml", "config/cluster_config.yaml")
"""Where a file is looked for below the current directory, first come first served."""


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
