"""A forecast of how long a node stays idle, for placement and rebalancing: the known probabilities, and those between
and beyond them."""

import msgspec

from distributed_grid.protocol.history.trends import IdleChance
from distributed_grid.protocol.text import format_duration

AHEAD = 14_400.0
"""How far ahead it is looked at most: the longest horizon of forecasts (s)."""
BEYOND = 42
"""How often the longest horizon is gone beyond: a week by hours of four."""


class IdleForecast(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """At the grid time `made` a node was idle for `idle` seconds (0: it was in use, and this holds if its owner has
    left since); `lasting`: how likely it stays so, by horizon, the shortest first. `peak`: the most that its owner used
    of it of late while it counted as idle (0 to 1)."""

    made: float
    idle: float
    lasting: tuple[IdleChance, ...]
    peak: float = 0.0

    @property
    def used(self) -> list[tuple[float, float]]:
        """Horizons (s) and probabilities that decide: those of which there is a past, and that are believed. The
        probability of a longer horizon is no higher than that of a shorter one."""
        found: list[tuple[float, float]] = []
        least = 1.0
        for one in self.lasting:
            if (one.cases or one.past) and one.believed and one.seconds > 0 and one.probability == one.probability:
                least = min(least, max(0.0, one.probability))
                found.append((one.seconds, least))
        return found

    def at(self, seconds: float) -> float | None:
        """The probability for exactly this horizon, if it is believed."""
        return next((likely for horizon, likely in self.used if horizon == seconds), None)

    def stays(self, seconds: float) -> float | None:
        """Return the probability that it stays idle for this many seconds more; None: unknown. It is interpolated
        linearly between horizons; beyond the longest one it decreases by the same factor again for each such length."""
        if not (known := self.used):
            return None
        longest, least = known[-1]
        likely, left = 1.0, max(0.0, seconds)
        for _ in range(BEYOND):
            if left < longest or not likely:
                break
            likely, left = likely * least, left - longest
        return likely * _between(known, min(left, longest))

    def words(self, node: str, seconds: float) -> str:
        """Describe how often a node stayed idle for this many seconds in its own past: by the shortest horizon that is
        not below."""
        one = next((one for one in self.lasting if one.seconds >= seconds), self.lasting[-1] if self.lasting else None)
        if one is None or not self.idle:
            return ""
        longer = format_duration(one.seconds)
        idle = f"{node} is idle for {format_duration(round(self.idle))}"
        if not one.cases:
            never = "it never was idle for about so long before"
            if not one.past or not one.believed:
                return f"{idle}; how long that lasts is not known: {never}"
            return f"{idle}; {never}, and by its past in all it stays so {longer} more with {one.probability:.0%}"
        past = f"of {one.cases} times that it was so, {one.lasted} lasted {longer} more"
        if one.believed:
            return f"{idle}; {past}"
        off = f"forecasts of about {one.probability:.0%} came true {one.true} of {one.told} times"
        return f"{idle}; {past}, but that is not used: {off}"


def _between(known: list[tuple[float, float]], seconds: float) -> float:
    t0, p0 = 0.0, 1.0
    for t1, p1 in known:
        if seconds <= t1:
            return p0 + (p1 - p0) * (seconds - t0) / (t1 - t0)
        t0, p0 = t1, p1
    return p0
