"""The sharing guide's `distributed_grid.orchestration.intelligent_scheduler`."""

from distributed_grid.coordinator.client.compat.scheduler import IntelligentScheduler, TaskRequest
from distributed_grid.orchestration.resource_sharing import AllocationPriority
from distributed_grid.protocol.resources import ResourceType

__all__ = ["AllocationPriority", "IntelligentScheduler", "ResourceType", "TaskRequest"]
