"""The resource boost guide's `distributed_grid.orchestration.resource_boost_manager`, and what goes to Ray."""

from distributed_grid.coordinator.client.compat.boosts import (
    ResourceBoost,
    ResourceBoostManager,
    ResourceBoostRequest,
    boost_placement_group_options,
    boost_scheduling_options,
)
from distributed_grid.orchestration.resource_sharing import AllocationPriority
from distributed_grid.protocol.resources import ResourceType

__all__ = [
    "AllocationPriority",
    "ResourceBoost",
    "ResourceBoostManager",
    "ResourceBoostRequest",
    "ResourceType",
    "boost_placement_group_options",
    "boost_scheduling_options",
]
