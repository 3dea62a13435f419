"""What waits in the Ray of a simulated grid, drawn beforehand, and the policy by which the grid lends to it."""

import random

import msgspec
from msgspec.structs import replace

from distributed_grid.protocol.sharing.policies import POLICIES, Balancing, OffloadingMode, PolicyName

AFTERWARDS = 90.0
"""Seconds without faults in which it waits on."""


class DemandPlan(msgspec.Struct, frozen=True, kw_only=True):
    """So many tasks that wait in Ray from `at` to `until` for so many `cores` each. `odd`: no boost makes them run."""

    at: float
    until: float
    count: int
    cores: int
    odd: bool = False


def demanded(chance: random.Random, balancing: Balancing, seconds: float) -> tuple[Balancing, tuple[DemandPlan, ...]]:
    """In some worlds tasks wait in Ray, and the grid lends by itself under one of the policies, with times for short
    worlds; `seconds`: of adversity. Mostly what waits stays the same for long after it."""
    if chance.random() >= 0.2:
        return balancing, ()
    name, wait, hold = chance.choice(list(PolicyName)), chance.choice((0.4, 1.0, 3.0)), chance.choice((7.0, 12.0))
    if balancing.numbers is not None:
        numbers = replace(balancing.numbers, min_hold=hold)
    else:
        numbers = replace(POLICIES[name], sustained=wait, min_hold=hold, cooldown=0.5, horizon=0.0)
        balancing = Balancing(mode=OffloadingMode.DYNAMIC_BALANCING, policy=name, interval=0.5)
    return replace(balancing, numbers=numbers), tuple(
        DemandPlan(
            at=chance.uniform(0.0, seconds / 2),
            until=seconds + AFTERWARDS if chance.random() < 0.7 else chance.uniform(0.6, 1.0) * seconds,
            count=chance.randint(1, 4),
            cores=chance.choice((1, 1, 1, 2)),
            odd=chance.random() < 0.15,
        )
        for _ in range(chance.choice((1, 1, 2, 3)))
    )
