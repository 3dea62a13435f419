"""The settings in effect on a node: those of the grid, and those of its own configuration where they lend less. The
owner of a machine has the last word on what it lends, and cannot take more from the grid than the grid allows."""

import math
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.protocol.nodes import LENDING, ORIGIN_CHARS, Layer, Lending, OwnerPolicy
from distributed_grid.protocol.resources import GIB, MIB, MILLI

STRICTNESS = (OwnerPolicy.CONTINUE, OwnerPolicy.SUSPEND, OwnerPolicy.RECALL)
DEFAULT = "default"


def _both(grid: bool, own: bool) -> bool:
    return grid and own


def _either(grid: bool, own: bool) -> bool:
    return grid or own


def _stricter(grid: OwnerPolicy, own: OwnerPolicy) -> OwnerPolicy:
    return max(grid, own, key=STRICTNESS.index)


def _sooner(grid: float, own: float) -> float:
    """0 is never."""
    return min(grid, own, key=lambda seconds: seconds or math.inf)


def _own(grid: Any, own: Any) -> Any:
    """Neither direction lends more."""
    return own


RULES: dict[str, Callable[[Any, Any], Any]] = {
    "enabled": _both,
    "can_share": _both,
    "max_share_cpu": min,
    "max_share_memory_gb": min,
    "max_share_gpu": min,
    "priority": min,
    "gpu_utilization_max": min,
    "gpu_memory_min_mb": max,
    "memory_percent_max": min,
    "memory_min_gb": max,
    "cpu_percent_max": min,
    "cpu_min_cores": max,
    "monitoring_interval_seconds": min,  # the owner is noticed sooner
    "check_interval": _own,
    "offer_expiry": min,
    "max_offers_per_node": min,
    "owner_policy": _stricter,
    "owner_after": min,
    "owner_quiet": max,
    "owner_most": _sooner,
    "owner_hold": min,
    "owner_pressure": min,
    "owner_input": _either,
}
"""Which of two values of a setting lends less: the grid's, or that of the node's own configuration."""


def combine(grid: Layer, own: Layer, defaults: Lending) -> Layer:
    """The settings in effect: the value that lends less where both are set, the one that is set, or the default."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name in LENDING:
        theirs, ours = getattr(grid.values, name), getattr(own.values, name)
        if theirs is None and ours is None:
            value, origin = getattr(defaults, name), DEFAULT
        elif ours is None or (theirs is not None and RULES[name](theirs, ours) == theirs):
            value, origin = theirs, grid.origins.get(name, "")
        else:
            value, origin = ours, own.origins.get(name, "")
        if value is not None:
            values[name], origins[name] = value, origin[:ORIGIN_CHARS]
    return Layer(Lending(**values), origins)


UNITS: dict[str, tuple[str, int]] = {
    "max_share_cpu": ("max_share_cpu", MILLI),
    "max_share_memory_gb": ("max_share_memory", GIB),
    "gpu_memory_min_mb": ("gpu_memory_min", MIB),
    "memory_min_gb": ("memory_min", GIB),
    "cpu_min_cores": ("cpu_min_cores", MILLI),
}
"""Settings that limits have under another name or in another unit."""
_ELSEWHERE = ("enabled", "can_share", "priority", "monitoring_interval_seconds")


def limits_of(settings: Layer, base: Limits) -> Limits:
    """`base`, which has the limits that only the node sets, with those of these settings."""
    changed: dict[str, Any] = {}
    for name, value in settings.values.given().items():
        if name in UNITS:
            named, unit = UNITS[name]
            changed[named] = int(value * unit)
        elif name not in _ELSEWHERE:
            changed[name] = value
    closed = [name for name in ("enabled", "can_share") if getattr(settings.values, name) is False]
    if closed:
        changed |= {"can_share": False, "closed_by": _closed_by(settings, closed[0])}
    return replace(base, **changed)


def _closed_by(settings: Layer, name: str) -> str:
    origin = settings.origins.get(name, "")
    called = "resource_sharing.enabled" if name == "enabled" else name
    return f"{called} is false" + (f": {origin}" if origin else "")
