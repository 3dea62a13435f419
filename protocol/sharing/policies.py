"""Modes and policies: what the grid does by itself with idle capacity, and how eagerly. A policy is data, one struct
with a few values, so that a replay can decide by another policy."""

from enum import StrEnum

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.resources import Count, Finite, Part, Span, Word
from distributed_grid.protocol.text import suggestion

GAP = 0.2
"""The least distance between a high and a low mark: between them nothing is begun and nothing is undone."""


class OffloadingMode(StrEnum):
    """What the grid does with idle capacity by itself."""

    OFFLOAD_ONLY = "offload_only"
    SHARE_AND_OFFLOAD = "share_and_offload"
    DYNAMIC_BALANCING = "dynamic_balancing"


DOES: dict[OffloadingMode, str] = {
    OffloadingMode.OFFLOAD_ONLY: "jobs run on other nodes; boosts are refused",
    OffloadingMode.SHARE_AND_OFFLOAD: "and boosts are lent on request",
    OffloadingMode.DYNAMIC_BALANCING: "and the grid lends boosts by itself for what waits in Ray, and takes them back",
}
"""What each mode allows, in the order in which each allows more."""


class PolicyName(StrEnum):
    """How eagerly the grid rebalances."""

    CONSERVATIVE = "conservative"
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"
    PREDICTIVE = "predictive"


class SharingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one policy; TRADES says what each of them trades. Times are seconds, `headroom` is a part of a
    node, `moves` a count, `confidence` a probability. `horizon` 0: nothing is done ahead of an owner's return. `slack`:
    whether what allocations hold and do not use is lent to revocable jobs."""

    headroom: Part
    sustained: Span
    min_hold: Span
    cooldown: Span
    moves: Count
    confidence: Part
    horizon: Span = 0.0
    slack: bool = False

    @property
    def confidences(self) -> tuple[float, ...]:
        """The confidence, and those of less careful policies: the next one counts where no node has the one before."""
        return (self.confidence, *(one for one in CONFIDENCES if one < self.confidence))

    @property
    def window(self) -> float:
        """Seconds for which a lender is to stay idle."""
        return max(self.min_hold, self.horizon)


TRADES: dict[str, str] = {
    "headroom": "part of a lender that stays free: room for its owner and the grid's jobs, against less that is lent",
    "sustained": "time that tasks have to wait, a lender to be idle, and a boost to be unused before the grid acts:"
    " fewer moves for what passes by itself, against a later start",
    "min_hold": "time from a move until its reverse is allowed: no lending to and fro, against idle boosts",
    "cooldown": "time between two moves of one lender and borrower: calm, against a slower reaction",
    "moves": "moves in one pass: one at a time shows its effect before the next one, against a slower reaction",
    "confidence": "how likely a node has to stay idle for as long as a job or boost needs it: fewer interruptions,"
    " against fewer places for what is long",
    "horizon": "jobs that may run again are moved before an owner's likely return; of jobs whose end nobody knows, so"
    " far ahead: less work is lost with them, against moves in vain (0: none)",
    "slack": "unused cores of allocations are lent to revocable jobs: more is used, against a moment until they are"
    " back",
}
"""What each number of a policy trades."""

_BALANCED = SharingPolicy(headroom=0.2, sustained=60.0, min_hold=300.0, cooldown=120.0, moves=2, confidence=0.8)
POLICIES: dict[PolicyName, SharingPolicy] = {
    PolicyName.CONSERVATIVE: SharingPolicy(
        headroom=0.3, sustained=300.0, min_hold=900.0, cooldown=600.0, moves=1, confidence=0.95
    ),
    PolicyName.BALANCED: _BALANCED,
    PolicyName.AGGRESSIVE: SharingPolicy(
        headroom=0.05, sustained=15.0, min_hold=60.0, cooldown=30.0, moves=8, confidence=0.5, slack=True
    ),
    PolicyName.PREDICTIVE: msgspec.structs.replace(_BALANCED, horizon=1800.0, slack=True),
}
"""The four values."""
CONFIDENCES = tuple(sorted({one.confidence for one in POLICIES.values()}, reverse=True))
BY_EXCESS = (PolicyName.BALANCED, PolicyName.PREDICTIVE)
"""The policies whose headroom is the setting `excess_threshold`."""
MOST_MOVES = max(one.moves for one in POLICIES.values())
LONGEST_SUSTAINED = max(one.sustained for one in POLICIES.values())
LONGEST_BAR = max(max(one.min_hold, one.cooldown) for one in POLICIES.values())


class Marks(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The pressure marks, 0 to 1. A node lends by itself while its owner's pressure lies under every `low`; a Ray
    cluster is lent to while what is asked of it, of a kind, lies over `high` of what it has.
    The configuration holds both GAP apart."""

    cpu_high: Part = 0.8
    cpu_low: Part = 0.3
    memory_high: Part = 0.8
    memory_low: Part = 0.3
    gpu_high: Part = 0.8
    gpu_low: Part = 0.3


def too_close(high: float, low: float) -> bool:
    """Whether these marks are nearer to each other than GAP."""
    return round(high - low, 9) < GAP


class Balancing(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The settings of rebalancing: the mode, the policy by name, the setting `excess_threshold`, the marks, and the
    seconds between two passes. `numbers`: override those of the policy, for simulations that have less time."""

    mode: OffloadingMode = OffloadingMode.SHARE_AND_OFFLOAD
    policy: PolicyName = PolicyName.BALANCED
    excess: Part = 0.2
    marks: Marks = Marks()
    interval: Span = 30.0
    numbers: SharingPolicy | None = None

    @property
    def values(self) -> SharingPolicy:
        """The numbers of the policy."""
        if self.numbers is not None:
            return self.numbers
        return values_of(self.policy, self.excess)


def values_of(name: PolicyName, excess: float) -> SharingPolicy:
    """The numbers of a policy in a grid with this `excess_threshold`."""
    found = POLICIES[name]
    return msgspec.structs.replace(found, headroom=excess) if name in BY_EXCESS else found


class BalancingOrder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The settings that the operator `by` this name has set above the configuration, `since` then (grid time). None: as
    configured."""

    mode: OffloadingMode | None = None
    policy: PolicyName | None = None
    since: Finite = 0.0
    by: Word = ""

    def over(self, configured: Balancing) -> Balancing:
        """The configuration with what is set here."""
        return msgspec.structs.replace(
            configured, mode=self.mode or configured.mode, policy=self.policy or configured.policy
        )


NO_ORDER = BalancingOrder()


def parse_policy(text: str) -> PolicyName:
    """A policy as a person writes it. Raises BadValue."""
    try:
        return PolicyName(text.strip().lower())
    except ValueError:
        hint = f"{suggestion(text.lower(), list(PolicyName))}use one of {', '.join(PolicyName)}"
        raise BadValue(f"there is no policy {text[:80]!r}", hint=hint) from None


def parse_mode(text: str) -> OffloadingMode:
    """A mode as a person writes it. Raises BadValue."""
    try:
        return OffloadingMode(text.strip().lower().replace("-", "_"))
    except ValueError:
        hint = f"{suggestion(text.lower(), list(OffloadingMode))}use one of {', '.join(OffloadingMode)}"
        raise BadValue(f"there is no mode {text[:80]!r}", hint=hint) from None
