"""A store that is behind what is known of it outside has gone back; one that is level or ahead has not."""

import pytest

from distributed_grid.coordinator.core.rollback import (
    Loss,
    Marked,
    Point,
    Traces,
    gone_back,
    joined,
    loss_words,
    lost_commits,
    missing,
)

STORE = Point("g", 7, 480, 1000.0)
NONE = Marked()
BARE = Traces()


def mark(commits: int = 480, epoch: int = 7, same_boot: bool = True, grid: str = "g") -> Marked:
    return Marked(Point(grid, epoch, commits, 1000.0), "", same_boot)


@pytest.mark.parametrize("known", [mark(), mark(479), mark(480, same_boot=False), mark(12, 3), NONE])
def test_a_store_that_is_as_far_as_its_mark_has_lost_nothing(known: Marked) -> None:
    assert gone_back(STORE, known, 0, -1, BARE) == [] and lost_commits(STORE, known) == 0


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_store_behind_its_mark_has_lost_what_is_between(same_boot: bool) -> None:
    known = mark(492, same_boot=same_boot)
    (found,) = gone_back(STORE, known, 0, -1, BARE)
    assert found.startswith("12 commits are missing") and lost_commits(STORE, known) == 12


def test_an_epoch_that_was_begun_and_is_not_there_shows_it() -> None:
    assert "epoch 9" in gone_back(STORE, mark(480, 9), 0, -1, BARE)[0]
    assert "epoch 9" in gone_back(STORE, NONE, 0, -1, Traces(("the event log",), "g", 9))[0]
    assert gone_back(STORE, NONE, 0, -1, Traces(("the event log",), "g", 7)) == []


def test_the_store_of_another_grid_is_seen() -> None:
    assert "of grid other" in gone_back(STORE, mark(grid="other"), 0, -1, BARE)[0]
    assert "of grid other" in gone_back(STORE, NONE, 0, -1, Traces(("the event log",), "other", 1))[0]


@pytest.mark.parametrize(
    ("known", "behind", "lost"),
    [
        (mark(), 5, False),  # exact: what is behind the damage was none of the coordinator's commits
        (mark(same_boot=False), 1, False),  # the transaction that a power cut interrupted
        (mark(same_boot=False), 2, True),
        (NONE, 1, True),
        (Marked(why="damaged"), 1, True),
    ],
)
def test_commits_behind_a_damaged_frame_count_where_the_mark_does_not_say_better(
    known: Marked, behind: int, lost: bool
) -> None:
    assert bool(gone_back(STORE, known, behind, 4152, BARE)) is lost


def test_of_a_store_that_is_not_there_everything_else_is_a_trace() -> None:
    assert missing(NONE, BARE) == []
    (found,) = missing(mark(), Traces(("the audit log",)))
    assert "480 commits" in found and "the audit log" in found


def test_a_loss_stands_and_grows_by_what_is_new() -> None:
    assert joined(None, "x", 1.0, []) is None
    first = joined(None, "x", 1.0, ["a"], 3)
    assert first == Loss("x", 1.0, ("a",), 3)
    assert joined(first, "y", 2.0, ["a"]) == first
    both = joined(first, "y", 2.0, ["b", "a"], 1)
    assert both == Loss("x", 1.0, ("a", "b"), 3)
    assert "a (and 1 more)" in loss_words(both.found if both else ())
