"""Pools of machines that a provider creates, and the limits of their cost, as configured. Times are seconds; prices are
per hour in the currency of the configuration."""

import re
from enum import StrEnum
from typing import Annotated

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.resources import Count, Part, Resources, Span, Word

NAME_CHARS = 24
"""Maximum length of a pool's name: a machine is named after it, and that name has to fit in 63 characters wherever a
provider puts the grid's id before it."""
_NAME = re.compile(r"^[a-z](?:[a-z0-9-]*[a-z0-9])?$")

_MACHINE = re.compile(r"([a-z](?:[a-z0-9-]*[a-z0-9])?)-[0-9a-f]+-[0-9a-f]+")

Price = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class ScalingMode(StrEnum):
    """What the grid does about machines by itself: nothing, only say what it would do, or do it."""

    OFF = "off"
    PLAN = "plan"
    ACT = "act"


class Orphans(StrEnum):
    """What happens to a machine that is the grid's by its tag and that no record knows."""

    END = "end"
    REPORT = "report"


class Billing(StrEnum):
    """How a machine is billed: every second, or each hour that has begun."""

    SECOND = "second"
    HOUR = "hour"


class Shape(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A type of machine, and what a node on it lends at most. `gpu_memory`: bytes of each GPU. `price` None: not known,
    so that it counts against the number of machines alone."""

    type: Word = ""
    resources: Resources = Resources()
    gpu_model: Word = ""
    gpu_memory: Count = 0
    price: Price | None = None

    def __str__(self) -> str:
        return f"{self.type} ({self.resources})" if self.type else str(self.resources)


class Pool(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Similar machines of one provider. `zones` are tried in this order; `boot` is the time from a machine's creation
    until it can run jobs, until it is learned. A machine that has not joined after `join_within` has failed; one
    without jobs for `idle` ends; each ends after `life`. `queue_within`: how long one may wait in its provider's queue,
    before all of this begins (0: its provider has none). `backlog`: maximum number that are being created at once (0:
    no limit of its own)."""

    name: Word
    provider: Word
    shapes: Annotated[tuple[Shape, ...], msgspec.Meta(min_length=1, max_length=64)]
    zones: Annotated[tuple[Word, ...], msgspec.Meta(min_length=1, max_length=64)] = ("",)
    spot: bool = False
    min: Count = 0
    max: Count = 10
    idle: Span = 600.0
    boot: Span = 60.0
    join_within: Span = 600.0
    abandoned_after: Span = 900.0
    life: Span = 43_200.0
    queue_within: Span = 0.0
    labels: dict[Word, Word] = {}
    billing: Billing = Billing.SECOND
    backlog: Count = 0
    max_cost_per_hour: Price | None = None
    max_cost_per_day: Price | None = None

    def shape(self, type: str) -> Shape | None:
        """The shape of this type; None: the pool has none."""
        return next((one for one in self.shapes if one.type == type), None)


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The maximum number and cost of all pools together; None: no limit. Machines that are being created count."""

    max_workers: Count = 20
    max_cost_per_hour: Price | None = None
    max_cost_per_day: Price | None = None


class Scaling(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the grid grows and shrinks (docs/scaling.md). `target`, `up` and `down` are utilisations, from 0 to 1, that
    count over a whole `window`; after a machine was added or removed because of them, the next one waits for the
    cooldown. A new plan is made after `reassessment` even if nothing has happened. Providers are asked for their
    machines every `look`; an orphan older than `orphan_after` is ended. Machines that are gone are remembered for
    `retention`."""

    mode: ScalingMode = ScalingMode.PLAN
    pools: tuple[Pool, ...] = ()
    limits: Limits = Limits()
    target: Part = 0.7
    up: Part = 0.8
    down: Part = 0.3
    window: Span = 300.0
    up_cooldown: Span = 300.0
    down_cooldown: Span = 600.0
    reassessment: Span = 3600.0
    retention: Span = 86_400.0
    look: Span = 30.0
    orphans: Orphans = Orphans.END
    orphan_after: Span = 300.0

    def pool(self, name: str) -> Pool | None:
        """The pool of this name; None: it is not configured, or not any more."""
        return next((one for one in self.pools if one.name == name), None)


NO_SCALING = Scaling()


def check_pool_name(name: str) -> str:
    """The name, if a pool can have it. Raises BadValue."""
    if not is_pool_name(name):
        hint = f"lower-case letters, digits and - between them, up to {NAME_CHARS} characters, a letter first"
        raise BadValue(f"a pool cannot be called {name[:80]!r}", hint=hint)
    return name


def is_pool_name(name: str) -> bool:
    """Whether it fits wherever a machine is named."""
    return _NAME.match(name) is not None and len(name) <= NAME_CHARS


def machine_name(pool: str, epoch: int, number: int) -> str:
    """Return the name of the machine of this number that a coordinator creates in this epoch."""
    return f"{pool}-{epoch:x}-{number:x}"


def is_machine_name(name: str, pool: str = "") -> bool:
    """Whether a grid calls a machine so, of this pool or of any."""
    found = _MACHINE.fullmatch(name)
    return found is not None and pool in ("", found[1])
