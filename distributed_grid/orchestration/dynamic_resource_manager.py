"""The resource management document's `distributed_grid.orchestration.dynamic_resource_manager`."""

from distributed_grid.coordinator.client.compat.resources import (
    DEFAULT_EVALUATION_WINDOW,
    DEFAULT_HISTORY_RETENTION,
    DEFAULT_SCALE_DOWN_COOLDOWN,
    DEFAULT_SCALE_DOWN_THRESHOLD,
    DEFAULT_SCALE_UP_COOLDOWN,
    DEFAULT_SCALE_UP_THRESHOLD,
    DEFAULT_TARGET_UTILIZATION,
    DEFAULT_WORKER_REASSESSMENT_INTERVAL,
    DynamicResourceManager,
    ScalingDecision,
)

__all__ = [
    "DEFAULT_EVALUATION_WINDOW",
    "DEFAULT_HISTORY_RETENTION",
    "DEFAULT_SCALE_DOWN_COOLDOWN",
    "DEFAULT_SCALE_DOWN_THRESHOLD",
    "DEFAULT_SCALE_UP_COOLDOWN",
    "DEFAULT_SCALE_UP_THRESHOLD",
    "DEFAULT_TARGET_UTILIZATION",
    "DEFAULT_WORKER_REASSESSMENT_INTERVAL",
    "DynamicResourceManager",
    "ScalingDecision",
]
