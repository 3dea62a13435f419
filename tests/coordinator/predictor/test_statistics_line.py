from random import Random

import pytest

from distributed_grid.coordinator.predictor.statistics import Line


def test_a_line_is_found_whatever_else_is_noise() -> None:
    chance, line = Random(1), Line(3)
    for _ in range(400):
        xs = (chance.uniform(0, 20), chance.uniform(0, 20), chance.uniform(0, 20))
        line.add(xs, 3 + 0.8 * xs[1] + chance.gauss(0, 0.1))
    height, which = line.at((0.0, 10.0, 0.0))
    assert which == 1 and height == pytest.approx(11, abs=0.1)
    assert line.slope(1) == pytest.approx(0.8, abs=0.01)


def test_what_grows_with_nothing_is_its_mean() -> None:
    line = Line(1)
    for x, y in ((1.0, 5.0), (2.0, 5.0), (3.0, 5.0)):
        line.add((x,), y)
    assert line.at((100.0,)) == (5.0, -1)


@pytest.mark.parametrize(("of", "expected"), [(-1.0, 0.0), (9.0, 1.5)])
def test_a_need_never_falls_with_its_input_nor_grows_without_bounds(of: float, expected: float) -> None:
    line = Line(1)
    for x in range(50):
        line.add((float(x),), of * x)
    assert line.slope(0) == expected
