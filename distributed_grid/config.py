"""The seeds' `distributed_grid.config`."""

from distributed_grid.coordinator.config import ClusterConfig, ConfigError, load

__all__ = ["ClusterConfig", "ConfigError", "load"]
