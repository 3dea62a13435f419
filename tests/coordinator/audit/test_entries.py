"""An entry says what a request concerned, bounded, and nothing that may be secret."""

from typing import Any

import pytest

from distributed_grid.coordinator.audit.entries import CHARS, NAMED, about
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.jobs import JobSpec, Request
from distributed_grid.protocol.messages import Cancel, MakeToken, PutBlob, ShowJobs, Submission, Submit, Withdraw
from distributed_grid.protocol.resources import Resources


def test_of_a_submit_there_is_a_count_and_neither_command_nor_environment() -> None:
    spec = JobSpec(("python", "hush.py"), env={"TOKEN": "hush"})
    assert about(Submit(1, (Submission("key", spec, Request(Resources(cpu=1000))),))) == {"jobs": 1}


def test_names_are_cut_and_counted_where_there_are_many() -> None:
    names = tuple(f"j-{number}" + "x" * 500 for number in range(NAMED + 1))
    said = about(ShowJobs(1, names))
    assert said is not None and said["count"] == NAMED + 1
    assert len(said["jobs"]) == NAMED and all(len(name) == CHARS for name in said["jobs"])


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Withdraw(1, token="grid1.pin.abcd1234.secret"), {"token": "abcd1234"}),
        (Withdraw(1, role=Role.CLIENT, name="ann"), {"from": Role.CLIENT, "name": "ann"}),
        (
            MakeToken(1, Role.CLIENT, "ann", ttl=60.0, uses=1),
            {"for": Role.CLIENT, "name": "ann", "uses": 1, "ttl": 60.0},
        ),
        (Cancel(1, ("j-a",), "why", 5.0), {"jobs": ["j-a"]}),
        (PutBlob(1, "ab" * 32, 0, b"part"), None),
    ],
    ids=["token", "certificates", "new token", "cancel", "part"],
)
def test_an_entry_names_what_a_request_concerned(message: Any, said: Any) -> None:
    assert about(message) == said
