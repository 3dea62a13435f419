"""The budget of machines: how many there may be and what they may cost, by pool and in total. It is a hard limit: a
machine counts from before its provider is asked until it is known to be gone. A day's limit is charged with all that a
machine can still cost that day, since even one that cannot be reached ends itself at its maximum lifetime."""

import copy
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from distributed_grid.protocol.scaling.machines import Machine
from distributed_grid.protocol.scaling.pools import Billing, Limits, Pool, Scaling, Shape
from distributed_grid.protocol.text import format_duration

DAY = 86_400.0
HOUR = 3600.0
LEAST_LIFE = 1800.0
"""Minimum life of a machine under the day's limit (s); one that could afford less is not created."""
OVERRUN = 60.0
"""Time that a machine may take to be gone after its life is over (s)."""
ROUNDING = 1e-9
TRIED_MOST = 100
"""Maximum number of machines that `Budget.left` counts where costs are limited."""


class Refused(NamedTuple):
    """Why no such machine may be created."""

    why: str


def day_of(at: float) -> int:
    """The day of UTC, as a number."""
    return int(at // DAY)


def cost_on(machine: Machine, day: int, now: float, billing: Billing = Billing.SECOND) -> float:
    """The maximum cost of a machine on this day of UTC: what it has cost, and what it still can."""
    born = machine.born or (now if machine.live else 0.0)
    if machine.price is None or machine.refused or not born:
        return 0.0
    begin, end = max(born, day * DAY), _paid_until(machine, now, billing)
    return machine.price * max(0.0, min(end, (day + 1) * DAY) - begin) / HOUR


def _paid_until(machine: Machine, now: float, billing: Billing) -> float:
    """The latest end of what a machine costs: by the hour, that of the last one that it begins."""
    return _billed(machine.born or now, machine.over or max(machine.ends_by + OVERRUN, now), billing)


def _billed(born: float, end: float, billing: Billing) -> float:
    """Return the end of the billed time of a machine that exists until `end`."""
    return born + math.ceil((end - born) / HOUR) * HOUR if billing is Billing.HOUR else end


class Budget:
    """The machines that may still be created at `now`. `machines`: all that exist or may exist, and those that ended
    lately."""

    def __init__(
        self, scaling: Scaling, machines: Iterable[Machine], unrecorded: Mapping[str, int], now: float
    ) -> None:
        self._pools, self._limits, self._now = {one.name: one for one in scaling.pools}, scaling.limits, now
        self._count: dict[str, int] = dict(unrecorded)
        self._total = sum(unrecorded.values())
        self._rate: dict[str, float] = {}
        self._days: dict[tuple[str, int], float] = {}
        by_day = (self._limits.max_cost_per_day, *(one.max_cost_per_day for one in scaling.pools))
        self._by_day = any(most is not None for most in by_day)
        for name, count in unrecorded.items():
            if (pool := self._pools.get(name)) is not None:
                self._rate[name] = count * max((one.price or 0.0 for one in pool.shapes), default=0.0)
        for one in machines:
            self._add(one)

    def copy(self) -> "Budget":
        """A budget for trials."""
        other = copy.copy(self)
        other._count, other._rate, other._days = dict(self._count), dict(self._rate), dict(self._days)
        return other

    def _add(self, one: Machine) -> None:
        if one.live:
            self._count_one(one.pool, one.price)
        if self._by_day and one.price is not None:
            self._charge(one)

    def _count_one(self, pool: str, price: float | None) -> None:
        self._count[pool] = self._count.get(pool, 0) + 1
        self._total += 1
        self._rate[pool] = self._rate.get(pool, 0.0) + (price or 0.0)

    def _charge(self, one: Machine) -> None:
        """Add what it may cost on each day from now on."""
        billing = self._billing(one)
        first, last = day_of(one.born or self._now), day_of(_paid_until(one, self._now, billing))
        for day in range(max(first, day_of(self._now)), last + 1):
            key = (one.pool, day)
            self._days[key] = self._days.get(key, 0.0) + cost_on(one, day, self._now, billing)

    def _billing(self, one: Machine) -> Billing:
        pool = self._pools.get(one.pool)
        return pool.billing if pool is not None else Billing.SECOND

    @property
    def workers(self) -> int:
        """Return the number of machines that exist, or may exist."""
        return self._total

    @property
    def rate(self) -> float:
        """Return what these machines cost per hour."""
        return math.fsum(self._rate.values())

    def count(self, pool: str) -> int:
        """Return the number of machines of a pool."""
        return self._count.get(pool, 0)

    def _day(self, day: int, pool: str = "") -> float:
        return math.fsum(cost for (name, at), cost in self._days.items() if at == day and pool in ("", name))

    def full(self) -> str:
        """Why no machine of any pool may be created; empty: some may."""
        if self.workers >= self._limits.max_workers:
            return f"there are {self.workers} of {self._limits.max_workers} machines (scaling.max_workers)"
        return ""

    def room(self, pool: Pool, shape: Shape) -> int:
        """Return how many more such machines are allowed by their number alone; 0 if costs are limited, so that each
        has to be checked by itself."""
        limits = (self._limits.max_cost_per_hour, pool.max_cost_per_hour)
        if shape.price is not None and (self._by_day or any(most is not None for most in limits)):
            return 0
        return min(pool.max - self.count(pool.name), self._limits.max_workers - self.workers)

    def left(self, pool: Pool, shape: Shape) -> int:
        """Return how many more such machines may be created now by all limits, up to TRIED_MOST where costs are
        limited."""
        if (found := self.room(pool, shape)) > 0:
            return found
        trial = self.copy()
        for count in range(TRIED_MOST):
            if isinstance(life := trial.allows(pool, shape, 0.0), Refused):
                return count
            trial.charge(pool, shape, life)
        return TRIED_MOST

    def allows(self, pool: Pool, shape: Shape, lasts: float) -> float | Refused:
        """The life of one more such machine for a job of at most `lasts` seconds (0: unknown); or why there may be
        none."""
        limits = self._limits
        if self.count(pool.name) >= pool.max:
            return Refused(f"pool {pool.name} has {self.count(pool.name)} of {pool.max} machines (max)")
        if full := self.full():
            return Refused(full)
        if shape.price is None:
            return pool.life
        for name, most in ((pool.name, pool.max_cost_per_hour), ("", limits.max_cost_per_hour)):
            if most is None:
                continue
            rate = (self._rate.get(name, 0.0) if name else self.rate) + shape.price
            if rate > most + ROUNDING:
                whose = f"pool {name}: max_cost_per_hour" if name else "scaling.max_cost_per_hour"
                return Refused(f"{rate:g} an hour would be more than {most:g} ({whose})")
        life = pool.life
        for name, most in ((pool.name, pool.max_cost_per_day), ("", limits.max_cost_per_day)):
            if most is None or not shape.price:
                continue
            life = min(life, self._affordable(pool, shape.price, name, most, life))
            need = min(pool.life, max(LEAST_LIFE, lasts))
            if life < need:
                day = self._day(day_of(self._now), name)
                whose = f"pool {name}: max_cost_per_day" if name else "scaling.max_cost_per_day"
                spent = f"{day:.2f} of {most:g} are spent or promised today ({whose})"
                return Refused(f"{spent}, which leaves less than {format_duration(round(need))} of it")
        return life

    def _affordable(self, pool: Pool, price: float, name: str, most: float, life: float) -> float:
        """Return how long a machine of this price may live from now on (s)."""
        # A begun hour is paid in full, on the next day, too, where it does not end before midnight.
        beyond = OVERRUN + (HOUR if pool.billing is Billing.HOUR else 0.0)
        at, left = self._now, life + beyond
        while left > 0:
            day = day_of(at)
            room = (most - self._day(day, name)) / price * HOUR
            part = min(left, (day + 1) * DAY - at)
            if room < part:
                return max(0.0, life - left + max(0.0, room))
            at, left = at + part, left - part
        return life

    def charge(self, pool: Pool, shape: Shape, life: float) -> None:
        """Charge the creation of one such machine."""
        self._count_one(pool.name, shape.price)
        if self._by_day and shape.price is not None:
            ends_by = self._now + life
            new = Machine(
                name="new", pool=pool.name, provider=pool.provider, born=self._now, ends_by=ends_by, price=shape.price
            )
            self._charge(new)

    def spent(self, machines: Iterable[Machine]) -> float:
        """Return the cost of these machines today until now; hours that have begun count in full where they are billed
        so."""
        day, total = day_of(self._now), 0.0
        for one in machines:
            if one.price is not None and not one.refused and one.born:
                until = _billed(one.born, min(one.over or self._now, self._now), self._billing(one))
                total += one.price * max(0.0, min(until, (day + 1) * DAY) - max(one.born, day * DAY)) / HOUR
        return total


def limits_words(limits: Limits) -> str:
    """Format the limits of all pools."""
    parts = [f"{limits.max_workers} machines"]
    parts += [f"{limits.max_cost_per_hour:g} an hour"] if limits.max_cost_per_hour is not None else []
    parts += [f"{limits.max_cost_per_day:g} a day"] if limits.max_cost_per_day is not None else []
    return ", ".join(parts)
