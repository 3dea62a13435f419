"""The seeds' `distributed_grid.core`."""

from distributed_grid.config.settings import SharingDisabled
from distributed_grid.coordinator.client.aio import (
    BadAnswer,
    ConnectionLost,
    GridClient,
    GridUnavailable,
    JobResult,
    RequestRefused,
    ShippingError,
    describe_job,
)
from distributed_grid.coordinator.client.compat.orchestrator import GridOrchestrator
from distributed_grid.protocol.errors import BadValue, GridError

__all__ = [
    "BadAnswer",
    "BadValue",
    "ConnectionLost",
    "GridClient",
    "GridError",
    "GridOrchestrator",
    "GridUnavailable",
    "JobResult",
    "RequestRefused",
    "SharingDisabled",
    "ShippingError",
    "describe_job",
]
