"""The configuration of the grid: its schema, the places where it is found, and how it is read. The user guides import
from here."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed_grid.config.settings import ClusterConfig, ConfigError, load

__all__ = ["ClusterConfig", "ConfigError", "load"]


def __getattr__(name: str) -> object:
    """Load a module of this package when it is first used, so that users of the others do not wait for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from distributed_grid.config import settings

    return getattr(settings, name)
