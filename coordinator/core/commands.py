"""Events and commands beside those of jobs (model.py): about nodes, about Ray where it has the last word on what is
reserved, and about boosts.
"""

import msgspec

from distributed_grid.protocol.nodes import NodeFacts, NodeOrders
from distributed_grid.protocol.resources import Resources


class DrainAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator `by` this name wants these nodes to get no new job; `deadline` seconds from now what still runs
    there is taken back (below zero: never)."""

    token: int
    nodes: tuple[str, ...]
    by: str = ""
    reason: str = ""
    deadline: float = -1.0


class UndrainAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator wants these nodes to get jobs again."""

    token: int
    nodes: tuple[str, ...]
    by: str = ""


class LabelAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator wants these nodes to have these labels; None: not to have them."""

    token: int
    nodes: tuple[str, ...]
    labels: dict[str, str | None]
    by: str = ""


class NodeDoubted(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A node says what cannot be, as `found` has it, and nothing proves it."""

    node: str
    found: str


class ForgetAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator wants these nodes to be no more."""

    token: int
    nodes: tuple[str, ...]
    by: str = ""


class RecordNode(msgspec.Struct, frozen=True, gc=False):
    """Make what is known of this node durable, so that never-fits can be said also after a restart."""

    facts: NodeFacts


class RecordOrders(msgspec.Struct, frozen=True, gc=False):
    """Make what is ordered for this node durable."""

    node: str
    orders: NodeOrders


class RecordForgotten(msgspec.Struct, frozen=True, gc=False):
    """This node is no more."""

    node: str


class OnRay(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What Ray has on one of our nodes: its own node of this id, what that has in all, and what of it others than the
    grid's jobs use or have reserved."""

    id: str
    total: Resources = Resources()
    others: Resources = Resources()


class RayPlace(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What Ray is to reserve for an allocation, or has (`granted`), and on which of its nodes; empty: it had
    none there any more."""

    node: str
    resources: Resources
    granted: bool = False


# --- events -----------------------------------------------------------------------------------------------------------


class RayLooked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """What Ray has on these nodes is this from now on (None: nothing any more); or it could not be asked, which is the
    `trouble`, and of no node it is known."""

    nodes: dict[str, OnRay | None]
    trouble: str = ""


class Reserved(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Ray has reserved this allocation."""

    allocation: str


class ReserveRefused(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Ray has not reserved this allocation, or could not be asked; `why` follows a colon."""

    allocation: str
    why: str


# --- commands ---------------------------------------------------------------------------------------------------------


class Reserve(msgspec.Struct, frozen=True, gc=False):
    """Have Ray reserve so much for this allocation on its node of this id, and say what came of it. Said again after a
    restart, where that is not known."""

    allocation: str
    node: str
    resources: Resources


class Unreserve(msgspec.Struct, frozen=True, gc=False):
    """Let go of what Ray reserved for this allocation, if it did."""

    allocation: str


class Joined(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Ray shows the raylet of this allocation, with what was borrowed, as its node of this id."""

    allocation: str
    node: str


class Left(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Ray does not show the raylet of this allocation any more, which it did; `why` is for its owner."""

    allocation: str
    why: str


class ExtendAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A user wants a boost to end so many seconds later."""

    token: int
    job: str
    seconds: float
