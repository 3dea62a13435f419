import math
from random import Random

import pytest

from distributed_grid.coordinator.predictor.statistics import (
    LENGTH,
    Window,
    censored_quantiles,
    censored_share,
    quantile,
)


def test_a_window_keeps_its_last_values_sorted_and_in_order() -> None:
    chance, window = Random(3), Window()
    values = [float(chance.randrange(50)) for _ in range(3 * LENGTH)]
    for value in values:
        window.add(value)
    assert list(window.sorted) == sorted(values[-LENGTH:])
    assert window.last(3) == values[-3:]


def test_a_quantile_covers_the_next_value_as_often_as_its_level_says() -> None:
    chance, held = Random(5), 0
    for _ in range(4000):
        seen = sorted(chance.lognormvariate(0, 1) for _ in range(30))
        held += chance.lognormvariate(0, 1) <= quantile(seen, 0.9)
    assert held / 4000 == pytest.approx(0.9, abs=0.02)


def test_too_few_values_give_more_than_the_largest() -> None:
    assert quantile([1.0, 4.0], 0.95) == pytest.approx(4.0 + 3.0 + 0.05)


def by_hand(ordered: list[float], censored: list[float], level: float) -> float:
    """Kaplan-Meier, value by value, with one more value at infinity."""
    surviving = 1.0
    for value in ordered:
        left = sum(other >= value for other in ordered + censored) + 1
        surviving *= 1 - 1 / left
        if surviving <= 1 - level + 1e-9:
            return value
    return max(quantile(ordered, level), censored[-1])


def test_censored_values_are_reckoned_with_as_by_hand() -> None:
    chance = Random(7)
    for _ in range(500):
        ordered = sorted({round(chance.uniform(0, 10), 6) for _ in range(chance.randrange(1, 40))})
        censored = sorted(round(chance.uniform(0, 12), 6) + 1e-7 for _ in range(chance.randrange(1, 20)))
        levels = sorted(chance.sample((0.3, 0.5, 0.9, 0.95), 2))
        assert censored_quantiles(ordered, censored, levels) == [by_hand(ordered, censored, one) for one in levels]


def test_those_that_still_run_make_the_quantile_larger_than_those_that_ended_alone() -> None:
    ended = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    assert censored_quantiles(ended, [], [0.5]) == [6.0]
    assert censored_quantiles(ended, [6.5] * 11, [0.5]) == [8.0]
    assert censored_quantiles(ended, [0.5] * 11, [0.5]) == [6.0]  # they say nothing


def test_the_share_within_a_limit_is_the_inverse_of_the_quantile() -> None:
    ended, running = [float(one) for one in range(1, 20)], [4.5, 9.5, 9.6]
    for level in (0.2, 0.5, 0.8):
        (value,) = censored_quantiles(ended, running, [level])
        assert censored_share(ended, running, value) >= level - 1e-9
        assert censored_share(ended, running, value - 0.6) < level
    assert censored_share(ended, [], 0.0) == 0.0
    assert censored_share(ended, [], math.inf) == pytest.approx(0.95)
