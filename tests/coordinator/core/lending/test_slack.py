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
    assert slack.left(scene.state, scene.allocation("holder"), scene.now + slack.FRESH + 1) == 0


def test_a_job_that_keeps_all_lends_nothing() -> None:
    scene = Scene(keep_all=True)
    scene.uses("holder", 0.0)
    assert scene.slack("holder") == 0


def test_what_is_lent_on_is_no_slack_any_more() -> None:
    scene = Scene()
    scene.uses("holder", 0.0)
    scene.ask("user", 3000)
    assert scene.slack("holder") == 4000
    assert slack.lent(scene.state, "holder.1") == {5, 6, 7}


def test_a_job_that_is_frozen_or_ending_lends_nothing() -> None:
    scene = Scene()
    scene.uses("holder", 0.0)
    scene.suspend("holder")
    assert scene.slack("holder") == 0
    scene.suspend("holder", why="")
    assert scene.slack("holder") == 7000
    scene.cancel("holder")
    assert scene.slack("holder") == 0
