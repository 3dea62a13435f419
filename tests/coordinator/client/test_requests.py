"""Requests as steps: the messages that they yield, and what they make of the answers, without a connection."""

from typing import Any

import pytest

from distributed_grid.coordinator.client import requests
from distributed_grid.coordinator.client.requests import Steps, Together, advance
from distributed_grid.coordinator.client.submission import describe_job
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.messages import Cancel, Done, Predict, RecordUse, Submit, Submitted


def first(steps: Steps[Any]) -> Any:
    """The first message that a request yields."""
    return advance(steps, None, None)


def result(steps: Steps[Any], answer: Any) -> Any:
    """What a request returns after this answer."""
    return advance(steps, answer, None).value


def test_a_job_is_submitted_and_named_by_the_id_of_the_answer() -> None:
    steps = requests.submit("sleep 1", cpus=2, key="k1")
    message = first(steps)
    assert isinstance(message, Submit)
    (job,) = message.jobs
    assert (job.key, job.spec.argv, job.request.resources.cpu) == ("k1", ("sleep", "1"), 2000)
    assert result(steps, Submitted(id=1, jobs=("j-a",))) == "j-a"


def test_many_jobs_travel_in_groups_two_at_a_time_unless_one_names_another() -> None:
    plain = [describe_job("true", key=f"k{number}") for number in range(5000)]
    message = first(requests.submit_many(plain))
    assert isinstance(message, Together) and message.most == 2
    assert [len(one.jobs) for one in message.messages] == [4000, 1000]
    named = [*plain[:2], describe_job("true", key="last", after=["k0"])]
    assert first(requests.submit_many(named)).most == 1


def test_a_job_that_is_too_large_for_any_message_is_refused_before_it_is_sent() -> None:
    huge = describe_job(["true"], env={f"A{number}": "x" * 100_000 for number in range(200)})
    with pytest.raises(BadValue, match="too large to submit"):
        list(first(requests.submit_many([huge])).messages)


def test_rights_of_whom_nobody_knows_are_refused() -> None:
    for asked in (requests.set_rights("ann", whose="users", gpus=1), requests.unset_rights("ann", whose="users")):
        with pytest.raises(BadValue, match="to a 'users'"):
            first(asked)
    assert first(requests.unset_rights("lab", whose="group")).whose == "group"


def test_a_cancel_of_many_jobs_names_a_thousand_at_a_time() -> None:
    names = [f"j-{number}" for number in range(2500)]
    steps, cancelled = requests.cancel(*names), list[str]()
    step = first(steps)
    while isinstance(step, Cancel):
        assert len(step.jobs) <= 1000
        cancelled += step.jobs
        step = advance(steps, Done(1), None)
    assert cancelled == names


def test_a_cancel_without_a_grace_leaves_each_job_its_own() -> None:
    message = first(requests.cancel("j-a", "j-b", reason="done"))
    assert isinstance(message, Cancel) and (message.jobs, message.reason) == (("j-a", "j-b"), "done")
    assert message.grace < 0


def test_needs_are_asked_for_and_told_by_the_words_of_a_command() -> None:
    asked = first(requests.predict("train --batch 4", {"rate": 0.5}, within=60.0))
    assert asked == Predict(0, ("train", "--batch", "4"), features={"rate": 0.5}, within=60.0)
    told = first(requests.record_use(["train", "a b"], seconds=5.0, memory=4096, ended="cut"))
    assert told == RecordUse(0, ("train", "a b"), seconds=5.0, memory=4096, ended="cut")
    long = first(requests.predict(["train", "x" * 10_000_000, *["y"] * 100_000]))
    assert len(long.argv) == 48 and max(map(len, long.argv)) == 20_000, "more of it is not looked at"
    with pytest.raises(BadValue, match="the command is empty"):
        first(requests.predict(""))
