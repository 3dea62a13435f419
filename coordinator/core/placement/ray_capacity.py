"""What Ray would still let the grid's jobs have on a node: what it has there, less what others use or have reserved,
and less what it has reserved for the jobs already. Ray decides in the end; this keeps jobs from asking it in vain.

Ray does not say which GPUs a group has got. So the first job with GPUs on a node reserves all that Ray has there: none
of its tasks can then come to the GPU that the job runs on, and until the job ends no other one with GPUs goes there.
"""

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import OnRay
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.resources import Resources, format_bytes, format_milli

REFUSED = "ray"
"""What is left alone on a node after Ray has refused something there: see `Node.declined`."""
KINDS = ("gpu", "cpu", "memory")


def marked(policy: Policy, request: Request, boost: bool = False) -> Request:
    """The request, with whether it is placed by Ray; a boost is lent to Ray, and not reserved by it."""
    by_ray = policy.by_ray and not boost
    return request if request.ray == by_ray else replace(request, ray=by_ray)


def bundle(on: OnRay | None, wanted: Resources) -> Resources:
    """What is to be reserved for this."""
    return Resources(wanted.cpu, wanted.memory, on.total.gpu if wanted.gpu and on is not None else 0)


def fits(node: Node, request: Request, alone: bool = False) -> bool:
    """Whether Ray would let this start there; `alone`: if no job of ours held anything."""
    on = node.ray
    return on is not None and REFUSED not in node.closed and not _lacks(node, on, request, alone)


def _left(node: Node, on: OnRay, kind: str, alone: bool) -> int:
    """How much of one kind; below zero: Ray's programs or our jobs have more than there is."""
    left: int = getattr(on.total, kind) - getattr(on.others, kind)
    if not alone:
        for one in node.allocations.values():
            if one.ray is not None:
                left -= getattr(one.ray.resources, kind)
    return left


def _lacks(node: Node, on: OnRay, request: Request, alone: bool) -> str:
    """The first kind of which Ray has too little; empty: none."""
    wanted = bundle(on, request.resources)
    return next((kind for kind in KINDS if (need := getattr(wanted, kind)) and need > _left(node, on, kind, alone)), "")


def blocker(node: Node, request: Request) -> str:
    """Why Ray does not let this start there, in words that follow the node's name; empty: it does."""
    on = node.ray
    if on is None:
        return "has no node of Ray on it that takes work"
    if REFUSED in node.closed:
        return f"was refused by Ray a moment ago: {node.ray_said}"
    kind = _lacks(node, on, request, False)
    if not kind:
        return ""
    wanted = bundle(on, request.resources)
    if kind == "gpu" and on.others.gpu == 0:
        return "has a job of ours with GPUs, and Ray does not say which ones it keeps free beside it"
    has = f"{_amount(kind, on.total)} in Ray, {_amount(kind, on.others)} of it used by Ray's programs"
    return f"has {has}; {_amount(kind, wanted)} needed"


def _amount(kind: str, resources: Resources) -> str:
    if kind == "memory":
        return f"{format_bytes(resources.memory)} memory"
    return f"{format_milli(getattr(resources, kind))} {kind}"
