"""Priorities by both vocabularies, and the exit code a person gets for every way a job can end."""

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, exit_status, parse_priority


def test_both_vocabularies_name_one_order() -> None:
    assert [parse_priority(word) for word in ("low", "medium", "high", "urgent")] == sorted(Priority)
    assert parse_priority("normal") is Priority.MEDIUM
    assert parse_priority("Critical") is Priority.URGENT


def test_an_unknown_priority_names_the_known_ones() -> None:
    with pytest.raises(BadValue) as refusal:
        parse_priority("asap")
    assert "urgent" in refusal.value.hint


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome(Cause.EXITED, code=0), 0),
        (Outcome(Cause.EXITED, code=7), 7),
        (Outcome(Cause.SIGNALLED, signal=9), 137),
        (Outcome(Cause.OUT_OF_MEMORY, signal=9), 137),
        (Outcome(Cause.TIME_LIMIT, signal=15), 124),
        (Outcome(Cause.NOT_FOUND, started=False), 127),
        (Outcome(Cause.NOT_EXECUTABLE, started=False), 126),
        (Outcome(Cause.NOT_PLACED, started=False), 75),
        (Outcome(Cause.CANCELLED, signal=15), 143),
        (Outcome(Cause.CANCELLED, code=3), 3),
        (Outcome(Cause.CANCELLED, started=False), 130),
        (Outcome(Cause.SPAWN_FAILED, started=False), 125),
        (Outcome(Cause.WORKDIR_FAILED, started=False), 125),
        (Outcome(Cause.NODE_LOST), 125),
        (Outcome(Cause.SUPERVISOR_LOST), 125),
        (Outcome(Cause.REBOOTED), 125),
    ],
)
def test_every_end_has_its_exit_code(outcome: Outcome, status: int) -> None:
    assert exit_status(outcome) == status


def test_no_cause_is_left_without_an_exit_code() -> None:
    assert all(0 <= exit_status(Outcome(cause)) <= 255 for cause in Cause)
