"""The resource management document's `distributed_grid.orchestration.dynamic_resource_manager`."""

from distributed_grid.coordinator.client.compat.resources import DynamicResourceManager

__all__ = ["DynamicResourceManager"]
