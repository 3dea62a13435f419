"""Owners who come at the same time each day: the policies of rebalancing learn it, and owners and jobs bear less by
that."""

import random

import pytest

from distributed_grid.protocol.resources import Resources
from distributed_grid.simulator.lab.metrics import Figures
from distributed_grid.simulator.lab.run import Setup, run
from distributed_grid.simulator.lab.trace import TraceJob, UseSeries, uniform
from tests.depth import DEEP, tries

DAY, HOUR, DAYS = 86_400.0, 3600.0, 8 if DEEP else 4
MACHINES = uniform(6, 8)


def owners(seed: int) -> list[UseSeries]:
    """Of every second machine the owner is there by day, about 9 to 17 h, of the others by night, 21 to 5 h."""
    chance, found = random.Random(seed), []
    for number in range(len(MACHINES)):
        samples = [(0.0, 0.0)]
        for day in range(DAYS):
            begins = (9 if number % 2 == 0 else 21) * HOUR + day * DAY + chance.gauss(0, 900)
            samples += [(begins, 0.75), (begins + 8 * HOUR + chance.gauss(0, 1800), 0.0)]
        found.append(UseSeries(f"m{number}", (*samples, (DAYS * DAY + 6 * HOUR, 0.0))))
    return found


def afternoons(seed: int) -> list[TraceJob]:
    """Jobs of four to six hours that begin where the owners come at night, an hour before the other machines are
    left."""
    chance, found = random.Random(seed), []
    for day in range(DAYS - 1):
        for _ in range(6):
            lasts = chance.uniform(4, 6) * HOUR
            begins = day * DAY + chance.uniform(15.5, 16.8) * HOUR
            found.append(TraceJob(begins, lasts, Resources(2000), lasts * 1.1, user=chance.choice("abc")))
    return sorted(found, key=lambda one: one.submit)


def figures(policy: str, seed: int) -> Figures:
    setup = Setup(machines=MACHINES, jobs=afternoons(seed), owners=owners(seed))
    return run(setup, policy, seed, lambda: 0.0).figures


@pytest.mark.parametrize("seed", range(1, 1 + tries(2, 1)))
def test_with_conservative_owners_never_bear_more_than_without_forecasts(seed: int) -> None:
    without, careful = figures("grid", seed), figures("grid:conservative", seed)
    assert careful.owners_pain <= without.owners_pain and careful.recalls <= without.recalls
    assert careful.unfinished == without.unfinished == 0


def test_with_predictive_jobs_leave_in_time_and_less_is_lost_than_with_balanced() -> None:
    balanced, predictive = figures("grid:balanced", 1), figures("grid:predictive", 1)
    assert predictive.moves > predictive.recalls, "some have left by themselves"
    assert predictive.recalls < balanced.recalls and predictive.wasted < balanced.wasted
    assert predictive.owners_pain <= balanced.owners_pain
