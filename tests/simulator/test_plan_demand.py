"""What waits in a simulated Ray, and by which policy the grid lends to it."""

import random

from distributed_grid.protocol.sharing.policies import Balancing, OffloadingMode, PolicyName
from distributed_grid.simulator.plan import AFTERWARDS, demanded


def test_some_worlds_lend_under_each_policy_and_mostly_what_waits_outlasts_the_faults() -> None:
    drawn = [demanded(random.Random(seed), Balancing(), 30.0) for seed in range(400)]
    lending = [(balancing, demands) for balancing, demands in drawn if demands]
    assert 40 < len(lending) < 120
    assert {balancing.policy for balancing, _ in lending} == set(PolicyName)
    assert all(balancing.mode is OffloadingMode.DYNAMIC_BALANCING for balancing, _ in lending)
    assert all(balancing == Balancing() for balancing, demands in drawn if not demands)
    waits = [one for _, demands in lending for one in demands]
    assert sum(one.until == 30.0 + AFTERWARDS for one in waits) > len(waits) / 2
    assert all(one.at < one.until and one.count * one.cores > 0 for one in waits)


def test_a_world_that_moves_jobs_keeps_its_policy() -> None:
    numbers = Balancing(policy=PolicyName.PREDICTIVE).values
    moving = Balancing(mode=OffloadingMode.DYNAMIC_BALANCING, policy=PolicyName.PREDICTIVE, numbers=numbers)
    found = next(one for seed in range(50) if (one := demanded(random.Random(seed), moving, 30.0))[1])[0]
    assert found.policy is PolicyName.PREDICTIVE and found.values.horizon == numbers.horizon
