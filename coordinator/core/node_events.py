"""What operators order for nodes, and what is held against one, as events. They are logged: fields are only ever
added at the end."""

import msgspec


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
