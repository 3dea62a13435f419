"""What is said between the ledger and Ray, where Ray has the last word on what is reserved (`placement: ray`). Events
are logged: fields are only ever added at the end."""

import msgspec

from distributed_grid.protocol.resources import Resources


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
