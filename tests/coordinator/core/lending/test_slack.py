"""Slack: what allocations hold and do not use, less a core, where the policy in effect says so."""

import pytest

from distributed_grid.coordinator.core.lending import slack
from tests.coordinator.core.lending.scene import Scene


def test_slack_is_what_is_usually_unused_without_a_core() -> None:
    scene = Scene()
    scene.uses("holder", 2.4)
    assert scene.slack("holder") == 8000 - 2400 - 1000


@pytest.mark.parametrize("measured", [0.0, 500.0])
def test_what_was_measured_for_less_than_the_window_says_nothing(measured: float) -> None:
    scene = Scene()
    scene.uses("holder", 0.0, measured)
    assert scene.slack("holder") == 0


def test_what_a_node_told_a_minute_ago_says_nothing_any_more() -> None:
    scene = Scene()
    scene.uses("holder", 0.0)
    assert slack.left(scene.state, scene.allocation("holder"), scene.now + slack.FRESH + 1) == (0, ())


def test_a_job_that_keeps_all_lends_nothing() -> None:
    scene = Scene(keep_all=True)
    scene.uses("holder", 0.0)
    assert scene.slack("holder") == 0


def test_what_is_lent_on_is_no_slack_any_more() -> None:
    scene = Scene()
    scene.uses("holder", 0.0)
    scene.ask("user", 3000)
    assert scene.slack("holder") == 4000
    assert scene.cores_lent("user") == (5, 6, 7)
    assert scene.left("holder") == (4000, (4, 3, 2, 1))


# The eight cores are the hardware threads of four physical ones, as most kernels number them.
THREADS = ((0, 4), (1, 5), (2, 6), (3, 7))


def test_where_cores_are_hardware_threads_only_whole_physical_cores_that_are_unused_are_lent() -> None:
    scene = Scene(smt=THREADS)
    scene.uses("holder", 2.0)
    assert scene.left("holder") == (2000, (7, 3)), "of four it uses two, and one more stays unused"
    scene.uses("holder", 2.1)
    assert scene.left("holder") == (0, ())


def test_the_other_thread_of_a_physical_core_that_is_lent_is_lent_before_another_one() -> None:
    scene = Scene(smt=THREADS)
    scene.uses("holder", 1.0)
    assert scene.left("holder") == (4000, (7, 3, 6, 2))
    scene.ask("user", 500)
    scene.ask("other", 1000)
    granted = [scene.cores_lent(name) for name in ("user", "other")]
    assert granted == [(7,), (3,)] and scene.left("holder") == (2000, (6, 2))
    scene.ask("third", 3000)
    assert scene.grant("third") is None


def test_a_job_that_is_frozen_or_ending_lends_nothing() -> None:
    scene = Scene()
    scene.uses("holder", 0.0)
    scene.suspend("holder")
    assert scene.slack("holder") == 0
    scene.suspend("holder", why="")
    assert scene.slack("holder") == 7000
    scene.cancel("holder")
    assert scene.slack("holder") == 0
