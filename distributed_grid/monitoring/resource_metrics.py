"""The sharing guide's `distributed_grid.monitoring.resource_metrics`."""

from distributed_grid.coordinator.client.compat.metrics import ResourceMetricsCollector
from distributed_grid.protocol.resources import ResourceType

__all__ = ["ResourceMetricsCollector", "ResourceType"]
