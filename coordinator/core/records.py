"""Parts of what the ledger keeps, as they are stored with jobs, groups and nodes: what a job waits for, a group, what
is kept on a node for a job that waits, and what came of one member's part in a gang.
"""

from enum import StrEnum

import msgspec

from distributed_grid.protocol.bounds import Count, Finite
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.jobs import After, Dependency, JobSpec, Outcome, Request
from distributed_grid.protocol.preemption import Place, Receipt
from distributed_grid.protocol.resources import Grant


class End(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a job or group ended, as far as it matters to those that wait for it: all of it with exit code 0, all of it
    `started` at some time, and in words. `root`: by whom it failed, if it never ran since another one had failed."""

    ok: bool
    started: bool
    text: str = ""
    root: str = ""


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job or group waits for: something to become of another one. `name` is what that is called, `end` how it
    had ended before."""

    on: str
    kind: After
    name: str = ""
    end: End | None = None


def dependencies(after: tuple[Condition, ...]) -> tuple[Dependency, ...]:
    """What a job or group waits for still, as clients see it."""
    return tuple(Dependency(one.on, one.kind) for one in after) if after else ()


class Group(msgspec.Struct, kw_only=True, gc=False):
    """Many jobs of one submission. Its members are jobs that have its id as their `group`; what is counted here are
    those that have ended otherwise than with exit code 0."""

    id: str
    key: str
    user: str
    kind: GroupKind
    spec: JobSpec
    request: Request
    submitted: Finite
    count: Count
    array: Array | None = None
    failed: Count = 0
    cancelled: Count = 0
    never: Count = 0
    """How many of them had never started."""
    ended: Finite = 0.0
    """When the last member had ended; 0: not yet."""
    after: tuple[Condition, ...] = ()
    begin: Finite = 0.0


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A set of one node that is kept for a job that waits, `until` it is given up. `receipt`: the preemption that frees
    it; without one, it is what the job itself gave to somebody who does not need it after all. The first member of a
    gang has this for all of them: `more` are the places of the others, by their rank."""

    node: str
    grant: Grant
    until: float
    receipt: Receipt | None = None
    ends: float = 0.0
    """By when all have ended that it waits for."""
    more: tuple[Place, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        """All that is kept; of a gang, by rank."""
        return (Place(self.node, self.grant), *self.more)


class RecordReceipt(msgspec.Struct, frozen=True, gc=False):
    """Make this receipt of a preemption durable, in the place of what was said of it before."""

    receipt: Receipt


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
