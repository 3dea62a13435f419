"""The seeds' `distributed_grid.core`."""

from distributed_grid.coordinator.client import (
    ConnectionLost,
    GridClient,
    GridUnavailable,
    JobResult,
    RequestRefused,
    ShippingError,
    describe_job,
)
from distributed_grid.coordinator.client_orchestrator import GridOrchestrator
from distributed_grid.coordinator.config import SharingDisabled
from distributed_grid.protocol.errors import BadValue, GridError

__all__ = [
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
