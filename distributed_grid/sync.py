"""The blocking client for programs: `from distributed_grid.sync import GridClient` (docs/python.md)."""

from distributed_grid.coordinator.client.blocking import GridClient
from distributed_grid.coordinator.client.downloads import BadAnswer
from distributed_grid.coordinator.client.results import JobResult
from distributed_grid.coordinator.client.session import ConnectionLost, GridUnavailable, RequestRefused
from distributed_grid.coordinator.client.submission import describe_job
from distributed_grid.coordinator.client.walk import ShippingError
from distributed_grid.protocol.errors import BadValue, GridError

__all__ = [
    "BadAnswer",
    "BadValue",
    "ConnectionLost",
    "GridClient",
    "GridError",
    "GridUnavailable",
    "JobResult",
    "RequestRefused",
    "ShippingError",
    "describe_job",
]
