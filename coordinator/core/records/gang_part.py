"""What came of one member's part in a gang, kept with its job until the whole gang is decided about."""

from enum import StrEnum

import msgspec

from distributed_grid.protocol.jobs import Outcome


class Fate(StrEnum):
    """What the end of a part means to the gang."""

    DONE = "done"
    """It exited with 0: the others go on."""
    NEVER_BEGAN = "never-began"
    """Its node would not have it: all wait again."""
    TAKEN_BACK = "taken-back"
    """The grid took its place: all wait again."""
    TO_RETRY = "to-retry"
    """It failed or was lost, and its owner wants another attempt after such an end, of all."""
    FAILED = "failed"
    """It failed or was cancelled: all are over."""
    ENDED = "ended"
    """It was ended since another part was over."""
    UNSURE = "unsure"
    """It may run on, on a node that was lost: all are over, since nothing may run beside it."""


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of one member, over since `at`. `outcome`: how it ended; None: it never began. `away`: the node of
    another member could not be reached then, so that its end may have come of that."""

    at: float
    fate: Fate
    outcome: Outcome | None = None
    away: bool = False
