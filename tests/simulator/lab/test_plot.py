"""The picture of a run is well-formed SVG that shows what happened."""

from xml.etree import ElementTree

import pytest

from distributed_grid.simulator.lab.plot import columns, picture
from distributed_grid.simulator.lab.world import Point

POINTS = [Point(0.0, 4000, 0, 0, 0), Point(50.0, 2000, 0, 3, 1000), Point(100.0, 0, 0, 0, 0)]


def test_each_column_is_the_mean_of_its_span() -> None:
    assert columns(POINTS, lambda one: one.cpu, 100.0, 4) == [4000, 4000, 2000, 2000]
    assert columns(POINTS, lambda one: one.cpu, 100.0, 1) == [pytest.approx(3000)]
    assert columns([], lambda one: one.cpu, 100.0, 2) == [0, 0]


@pytest.mark.parametrize(("owned", "panels"), [(False, 4), (True, 6)])
def test_policies_stand_above_each_other_with_their_panels(owned: bool, panels: int) -> None:
    text = picture("a & <b>", [("grid", POINTS), ("easy", POINTS)], 4000, owned)
    root = ElementTree.fromstring(text)  # noqa: S314 - it is our own
    words = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) == panels
    assert words[0] == "a & <b>" and words.index("grid") < words.index("easy") and "minutes" not in words
    assert ("owners" in words) is owned and "seconds" in words


def test_an_empty_run_has_a_picture_too() -> None:
    ElementTree.fromstring(picture("x", [("grid", [])], 4000, owned=False))  # noqa: S314
