"""Nodes as Ray shows them, in words and for programs."""

from typing import Any

from distributed_grid.protocol.messages import RayNode
from distributed_grid.protocol.resources import format_bytes


def held(node: RayNode) -> str:
    """What it has: `2 CPU, 1 GPU, 4G memory`."""
    return amounts(node.total) or "nothing"


def amounts(shape: dict[str, float]) -> str:
    """Amounts in Ray's words, as people read them: what says only where something is, is left out."""
    parts = [f"{amount:g} {name}" for name, amount in sorted(shape.items()) if amount and _counted(name)]
    return ", ".join(parts + ([f"{format_bytes(int(shape['memory']))} memory"] if shape.get("memory") else []))


def _counted(name: str) -> bool:
    of_groups = "_group_" in name
    return not of_groups and name not in ("memory", "object_store_memory") and not name.startswith(("node:", "boost_"))


def ray_json(node: RayNode) -> dict[str, Any]:
    """A node of Ray's with all that is known of it."""
    return {
        "id": node.id,
        "name": node.name,
        "host": node.host,
        "ip": node.ip,
        "status": node.status,
        "total": node.total,
        "available": node.available,
        "boost": node.boost or None,
        "source": node.source or None,
        "target": node.target or None,
        "stray": node.stray or None,
    }
