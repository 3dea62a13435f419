"""The client of a grid, for programs and for the command line. The names here are those that programs import."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

__all__ = [
    "BadAnswer",
    "ConnectionLost",
    "GridClient",
    "GridUnavailable",
    "JobResult",
    "RequestRefused",
    "ShippingError",
    "describe_job",
]


def __getattr__(name: str) -> object:
    """Load a module of this package when it is first used, so that users of the others do not wait for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from distributed_grid.coordinator.client import aio

    return getattr(aio, name)
