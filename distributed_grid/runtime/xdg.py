"""The directories of a user, from the variables of the XDG Base Directory Specification. A relative path is ignored, as
the specification asks: it would be another directory for each working directory."""

import os
from collections.abc import Mapping
from pathlib import Path


def named(variable: str, environment: Mapping[str, str] | None = None) -> str:
    """The directory that this variable names; empty: none."""
    path = (os.environ if environment is None else environment).get(variable, "")
    return path if os.path.isabs(path) else ""


def config_home(environment: Mapping[str, str] | None = None) -> Path:
    """The directory of a user's configurations."""
    return Path(named("XDG_CONFIG_HOME", environment) or Path.home() / ".config")


def state_home(environment: Mapping[str, str] | None = None) -> Path:
    """The directory in which a user's programs keep their state."""
    return Path(named("XDG_STATE_HOME", environment) or Path.home() / ".local/state")
