"""The seeds' `distributed_grid.orchestration.resource_sharing`."""

from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.resources import ResourceType

__all__ = ["Priority", "ResourceType"]
