"""The sharing guide's `distributed_grid.orchestration.resource_sharing_orchestrator`."""

from distributed_grid.coordinator.client.compat.orchestrator import ResourceSharingOrchestrator
from distributed_grid.orchestration.resource_sharing import AllocationPriority
from distributed_grid.protocol.resources import ResourceType

__all__ = ["AllocationPriority", "ResourceSharingOrchestrator", "ResourceType"]
