"""Arrays and gangs in words, and the exit code that stands for many jobs."""

from typing import Any

import msgspec

from distributed_grid.cli.jobs.groups import group_json, group_row, indexes_words, progress_words, status_of_all
from distributed_grid.protocol.groups import GroupKind, GroupView, parse_array
from distributed_grid.protocol.jobs import Cause, Outcome, State
from tests.coordinator.client.test_output import RUNNING, view

ARRAY = GroupView(
    id="j-a",
    kind=GroupKind.ARRAY,
    user="ann",
    spec=RUNNING.spec,
    request=RUNNING.request,
    array=parse_array("0-99%8", None),
    count=100,
    states={"waiting": 3, "running": 8, "ended": 89},
    failed=1,
    submitted=1.0,
)


def over(code: int = 0, cause: Cause = Cause.EXITED) -> Any:
    return view(state=State.ENDED, outcome=Outcome(cause, code=code))


def test_a_group_says_what_it_is_and_how_far() -> None:
    assert indexes_words(ARRAY) == "[0-99%8]" and progress_words(ARRAY) == "3 waiting, 8 running, 89 ended (1 failed)"
    assert group_row(ARRAY)[0] == "j-a [0-99%8]" and group_row(ARRAY)[-1] == "-", "it has not ended"
    gang = msgspec.structs.replace(ARRAY, kind=GroupKind.GANG, array=None, count=2)
    assert indexes_words(gang) == "[2 nodes]"


def test_a_program_reads_the_same() -> None:
    told = group_json(ARRAY)
    assert (told["indexes"], told["at_once"], told["states"]["ended"], told["exit_code"]) == ("0-99", 8, 89, None)


def test_the_code_of_many_is_the_highest_of_those_that_failed_by_themselves() -> None:
    assert status_of_all([over(), over(4), over(3)]) == 4
    assert status_of_all([over(0, Cause.GANG), over(4)]) == 4
    assert status_of_all([over(), over()]) == 0
    assert status_of_all([over(), over(0, Cause.NODE_LOST)], 99) == 99
    assert status_of_all([over(125)], 99) == 125, "it is the job's own"
