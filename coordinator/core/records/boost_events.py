"""What happens to boosts beside what happens to jobs. Logged as the others: see model.py."""

import msgspec


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
