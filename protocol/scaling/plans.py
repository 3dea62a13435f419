"""A plan of scaling: machines to create and to drain, and demand that is not met; each with its reason."""

from enum import StrEnum

import msgspec

from distributed_grid.protocol.resources import Count, Finite, Resources, Text, Word

NAMED = 5
"""Maximum number of jobs named for one machine, or for what is not served."""


class DrainCause(StrEnum):
    """Why a machine gets no more jobs."""

    IDLE = "idle"
    UNUSED = "unused"
    """The pool's utilisation was below `down` for a whole window."""
    LIFE = "life"
    REMOVED = "removed"
    """Its pool is not configured any more."""
    LOST = "lost"
    """Its node was silent for so long that its jobs were given up, and did not come back."""
    TOO_MANY = "too-many"
    ORDERED = "ordered"


class ScaleOrder(StrEnum):
    """An operator's order about scaling."""

    APPLY = "apply"
    PAUSE = "pause"
    RESUME = "resume"
    CREATE = "create"
    """One machine of a pool."""
    END = "end"
    """One machine, when no job runs on it any more."""


RETURNING = frozenset({DrainCause.IDLE, DrainCause.UNUSED})
"""A machine that is drained because of these takes jobs again where some wait for it."""


class Create(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A machine to create. `serves`: how many of the jobs that wait could start there together, `jobs` the first of
    them. `life`: seconds after which it ends itself."""

    pool: Word
    provider: Word
    type: Word = ""
    zone: Word = ""
    resources: Resources = Resources()
    price: Finite | None = None
    life: Finite = 0.0
    serves: Count = 0
    jobs: tuple[Word, ...] = ()
    why: Text = ""


class DrainMachine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A machine that is to get no more jobs, and to end when it has none."""

    machine: Word
    pool: Word
    cause: DrainCause
    why: Text = ""


class ReturnMachine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A machine that is drained, and is to take jobs again."""

    machine: Word
    pool: Word
    why: Text = ""


class NotDone(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Demand that gets no machine, or an action that is not taken: `count` jobs, the first of them, and why. `code`:
    starts-anyway, on-its-way, quota, no-pool, too-long, limit, paused, failing, affinity, ray, crowded."""

    what: Text
    code: Word
    why: Text
    count: Count = 0
    jobs: tuple[Word, ...] = ()


class ScalePlan(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One plan. `workers`: machines that exist or are on their way; `rate` their cost per hour, without those of
    unknown price; `spent` their cost today (UTC). `utilisation`: None if it was not measured for a window."""

    at: Finite
    creates: tuple[Create, ...] = ()
    drains: tuple[DrainMachine, ...] = ()
    returns: tuple[ReturnMachine, ...] = ()
    not_done: tuple[NotDone, ...] = ()
    workers: Count = 0
    rate: Finite = 0.0
    spent: Finite = 0.0
    utilisation: Finite | None = None

    @property
    def quiet(self) -> bool:
        """Whether it changes nothing."""
        return not (self.creates or self.drains or self.returns)
