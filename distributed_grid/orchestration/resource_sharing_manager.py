"""The sharing guide's `distributed_grid.orchestration.resource_sharing_manager`."""

from distributed_grid.coordinator.client.compat.sharing import ResourceSharingManager
from distributed_grid.orchestration.resource_sharing import AllocationPriority
from distributed_grid.protocol.resources import ResourceType

__all__ = ["AllocationPriority", "ResourceSharingManager", "ResourceType"]
