"""What is said of many jobs while they are waited for."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from distributed_grid.cli.attach.waiting import Count, Progress, Waiting, count_words
from distributed_grid.cli.context import Invocation, client
from distributed_grid.coordinator.client.session import Lost, Opened
from distributed_grid.protocol.groups import GroupKind, GroupView
from distributed_grid.protocol.jobs import JobSpec, Reason, Request
from distributed_grid.protocol.resources import Resources
from tests.cli.attach.test_attached import grid_aside


def group(count: int, failed: int = 0, **states: int) -> GroupView:
    return GroupView(
        id="j-g", user="ann", kind=GroupKind.ARRAY, spec=JobSpec(("true",)), request=Request(Resources(1000)),
        submitted=1.0, count=count, states=states, failed=failed,
    )  # fmt: skip


def counted(*groups: GroupView) -> Count:
    count = Count()
    for one in groups:
        count.add(one)
    return count


def test_groups_add_up() -> None:
    count = counted(group(1000, 2, ended=431, running=7, starting=1, waiting=561), group(2, running=2))
    assert count_words(count, 400, 20.0) == "431 of 1002 done (2 failed) · 10 running · 561 waiting · 20.0/s · 29s left"


def test_who_was_cancelled_has_not_failed() -> None:
    ended = replace(group(9, 2, ended=9), cancelled=3)
    assert count_words(counted(ended), 0, 0.0) == "9 of 9 done (2 failed, 3 cancelled)"


def test_why_they_wait_is_told_where_none_is_at_work() -> None:
    reason = Reason("Resources", "needs 4 cpu; the most free on one node is 1 cpu")
    idle, busy = (
        replace(group(5, **states), reason=reason) for states in ({"waiting": 5}, {"waiting": 4, "running": 1})
    )
    assert count_words(counted(idle), 0, 9.0) == f"0 of 5 done · 5 waiting (Resources – {reason.text})"
    assert count_words(counted(busy), 0, 9.0) == "0 of 5 done · 1 running · 4 waiting"


@pytest.mark.parametrize(
    ("count", "ended", "seconds", "said"),
    [
        (group(5, waiting=5), 0, 10.0, "0 of 5 done · 5 waiting"),
        (group(5, ended=5), 5, 2.0, "5 of 5 done · 2.5/s"),
        (group(5, ended=1, running=4), 1, 60.0, "1 of 5 done · 4 running · 1.0/min · 4m00s left"),
        (group(5, ended=1, running=4), 0, 60.0, "1 of 5 done · 4 running"),
    ],
)
def test_a_rate_is_only_told_once_something_has_ended_meanwhile(
    count: GroupView, ended: int, seconds: float, said: str
) -> None:
    assert count_words(counted(count), ended, seconds) == said


def test_without_a_terminal_there_is_a_line_now_and_then_and_one_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress(Invocation())
    for number in range(5):
        progress.show(counted(group(5, ended=number, waiting=5 - number)))
    progress.show(counted(group(5, ended=5)), over=True)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "grid: 0 of 5 done · 5 waiting"
    assert len(lines) == 2 and lines[1].startswith("grid: 5 of 5 done")


def test_a_connection_that_is_lost_and_made_again_is_told_both_times(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with grid_aside(tmp_path) as url:
        with client(url) as grid:
            grid.submit("make", name="one")
        waiting = Waiting(Invocation(coordinator=url), ("one",), None, False)
        for event in (Opened(again=False), Lost("gone"), Opened(again=True)):
            waiting._handle(event)
        waiting.close()
        assert capfd.readouterr().err == "grid: connection lost (gone), trying again\ngrid: connected again\n"
