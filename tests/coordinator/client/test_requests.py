"""Requests as steps: the messages that they yield, and what they make of the answers, without a connection."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from distributed_grid import sync
from distributed_grid.coordinator.client import GridClient, requests
from distributed_grid.coordinator.client.requests import Steps, Together, advance
from distributed_grid.coordinator.client.submission import describe_job
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import Cancel, Done, Predict, RecordUse, Submit, Submitted
from distributed_grid.protocol.resources import Resources


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


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda: requests.predict("true", 3), "features cannot be 3"),  # type: ignore[arg-type]
        (lambda: requests.record_use("true", [1]), r"features cannot be \[1\]"),  # type: ignore[arg-type]
        (lambda: requests.label("node1", labels=["a"]), "labels cannot be"),  # type: ignore[arg-type]
        (lambda: requests.make_token(Role.AGENT, "n", 5.0, "a"), "labels cannot be 'a'"),  # type: ignore[arg-type]
        (lambda: requests.jobs(states=5), "states cannot be 5"),  # type: ignore[arg-type]
        (lambda: requests.members(None), "array cannot be None"),  # type: ignore[arg-type]
        (lambda: requests.submit_many(7), "jobs cannot be 7"),  # type: ignore[arg-type]
        (lambda: requests.trends(window=15), "15 is no window of trends"),  # type: ignore[arg-type]
        (lambda: requests.declare_node("n", Resources(), kept=3), "kept cannot be 3"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_another_kind_is_refused_before_anything_is_asked(
    wrong: Callable[[], Steps[Any]], what: str
) -> None:
    with pytest.raises(BadValue, match=what):
        first(wrong())


def test_jobs_to_submit_may_come_from_an_iterator() -> None:
    step = first(requests.submit_many(describe_job("true") for _ in range(3)))
    assert [len(one.jobs) for one in step.messages] == [3]


@pytest.mark.parametrize("client", [GridClient, sync.GridClient])
def test_a_method_of_a_client_is_documented_with_its_arguments_and_what_it_returns(client: type[Any]) -> None:
    assert str(inspect.signature(client.wait)).endswith("job: str) -> distributed_grid.protocol.jobs.JobView")
    assert [*inspect.signature(client().cancel).parameters] == ["jobs", "reason", "grace"]
    assert str(inspect.signature(client.why)).endswith("-> 'messages.Why'")
    assert inspect.getdoc(client.wait) == inspect.getdoc(requests.wait)
    assert inspect.iscoroutinefunction(client.wait) is (client is GridClient)
