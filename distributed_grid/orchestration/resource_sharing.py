"""The seeds' `distributed_grid.orchestration.resource_sharing`."""

from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.resources import ResourceType

AllocationPriority = Priority

__all__ = ["AllocationPriority", "Priority", "ResourceType"]
