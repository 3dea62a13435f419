"""The order of service by waiting time (docs/shares.md): within a class the job with the highest precedence is next.

    precedence = (head start + waited) / limit * size^(1/4) / (share + 0.05)^(1/2)

A job gains precedence by waiting in units of its own length, as in WFP (Tang et al., CLUSTER 2009), against the share
of its user. A user's jobs with about the same time limit form a lane, which is served by age; so only the first jobs of
lanes are compared. Once in `overdue_after` times its limit the first job of a lane becomes overdue: it comes before all
that are not, so that neither shares nor a stream of shorter jobs keep it waiting for ever.
"""

import math
from bisect import insort
from collections import deque

from distributed_grid.coordinator.core.policy import Sharing
from distributed_grid.protocol.jobs import LimitBy, ServiceOrder

SHARE_LEAST = 0.05
"""Added to shares, so that users who hold nothing are compared by waiting time and size, too."""
SIZE_LEAST = 1e-4
"""Minimum size, as a part of the grid."""
OVERDUE = 1e12
"""Subtracted from the rank of an overdue job: larger than any time or precedence."""
NO_LIMIT = 1 << 16
"""The lane of jobs without a time limit."""
HALF_OCTAVE = math.sqrt(0.5)
SAMPLES = 31
"""Number of ends of a user's jobs that are remembered."""
EVERYONE = ""
USERS = 4096
"""Number of users whose run times are remembered."""


def lane_of(lasts: float, sharing: Sharing) -> int:
    """The lane of jobs with this maximum duration (s; 0: unlimited): two lanes an octave."""
    if sharing.order is ServiceOrder.SHARE:
        return 0
    if not lasts:
        return NO_LIMIT
    part, octave = math.frexp(max(lasts, sharing.shortest))
    return 2 * octave + (part >= HALF_OCTAVE)


def precedence(waited: float, limit: float, size: float, share: float, sharing: Sharing) -> float:
    """The precedence of a job that has `waited` (s), with its time limit (s), its part of the grid (`size`) and its
    user's share. Only roots are taken, which give the same result on every machine, as a replay needs."""
    return scaled(waited, limit, scale_of(size), divisor_of(share), sharing)


def scaled(waited: float, limit: float, scale: float, divisor: float, sharing: Sharing) -> float:
    """The precedence by what stays the same of a line (`scale_of` its size) and of a user (`divisor_of` the share)."""
    return (sharing.head_start + max(0.0, waited)) / limit * scale / divisor


def scale_of(size: float) -> float:
    """The factor of a size."""
    return math.sqrt(math.sqrt(max(size, SIZE_LEAST)))


def divisor_of(share: float) -> float:
    """Return the divisor of a share. A share below 0, by a credit, gains as much as one above 0 loses."""
    return math.sqrt(share + SHARE_LEAST if share >= 0.0 else SHARE_LEAST * SHARE_LEAST / (SHARE_LEAST - share))


class RunTimes:
    """The last run times of each user's jobs, and of everyone's, which stand for the limit of jobs without one."""

    def __init__(self) -> None:
        self.last: dict[str, deque[float]] = {}
        """By user (s), everyone under `EVERYONE`; who ended a job last comes last."""
        self._sorted: dict[str, list[float]] = {}

    def learn(self, user: str, seconds: float) -> None:
        """Add the run time of a job of this user (s)."""
        self.add(EVERYONE, seconds)
        self.add(user, seconds)

    def add(self, user: str, seconds: float) -> None:
        """Add one run time, and remove the oldest beyond `SAMPLES`."""
        last = self.last.pop(user, None)
        if last is None:
            last, self._sorted[user] = deque(), []
            if len(self.last) >= USERS:
                oldest = next(iter(self.last))
                del self._sorted[oldest], self.last[oldest]
        in_order = self._sorted[user]
        if len(last) == SAMPLES:
            in_order.remove(last.popleft())
        last.append(seconds)
        insort(in_order, seconds)
        self.last[user] = last

    def median(self, user: str) -> float | None:
        """The median of the last run times of a user, or else of everyone (s); None: none is known."""
        in_order = self._sorted.get(user) or self._sorted.get(EVERYONE)
        return in_order[len(in_order) // 2] if in_order else None


def limit_of(lasts: float, user: str, known: RunTimes, sharing: Sharing) -> float:
    """The time limit of a job that precedence uses (s)."""
    return max(sharing.shortest, lasts or known.median(user) or sharing.usual)


def limit_by(lasts: float, user: str, known: RunTimes) -> LimitBy:
    """The origin of the limit that `limit_of` returns."""
    if lasts:
        return LimitBy.LIMIT
    if user in known.last:
        return LimitBy.USER
    return LimitBy.EVERYONE if known.last else LimitBy.DEFAULT
