"""The same key is the same job, and what asks for something else under it is told what differs."""

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.api.idempotency import check_keys
from distributed_grid.coordinator.core.model import Group, Job
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.jobs import JobSpec, Priority, Request, RetryOn
from distributed_grid.protocol.messages import Submission
from distributed_grid.protocol.placement import Constraints, Local
from distributed_grid.protocol.resources import GIB, Resources

ASKED = Request(Resources(cpu=1000, memory=GIB))
ONE = Submission("nightly", JobSpec(("true",), env={"A": "1"}), ASKED)


def there(one: Submission = ONE) -> Job:
    """The job that this submission made."""
    return Job(id="j-old", key=one.key, user="ann", spec=one.spec, request=one.request, submitted=1.0)


def conflict(now: Submission, before: Job | Group | None = None) -> BadValue:
    with pytest.raises(BadValue) as refused:
        check_keys([now], lambda key: "j-old", lambda name: before or there())
    return refused.value


def test_the_same_again_is_the_same_job() -> None:
    check_keys([ONE, ONE], lambda key: None, lambda name: None)
    check_keys([ONE, ONE], lambda key: "j-old", lambda name: there())


def test_other_resources_are_told_with_both_amounts() -> None:
    told = conflict(replace(ONE, request=Request(Resources(cpu=4000, memory=GIB))))
    assert told.what == "the key 'nightly' was used for another request"
    assert told.why == "j-old has it, and one key is one job: it asks 1 cpu, 1G memory, now 4 cpu, 1G memory"
    assert told.hint == "give each job a key of its own"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"priority": Priority.HIGH}, "priority medium, now high"),
        ({"nodes": ("n1", "n2")}, "nodes none, now n1 n2"),
        ({"gang": 2}, "gang 0, now 2"),
        ({"immediate": True}, "immediate False, now True"),
        ({"constraints": Constraints(gpu_model="A100")}, "gpu_model none, now A100"),
    ],
)
def test_anything_else_that_is_asked_is_told(change: dict[str, object], words: str) -> None:
    assert conflict(replace(ONE, request=replace(ASKED, **change))).why.endswith(words)


def test_another_command_is_told_without_the_values_of_its_environment() -> None:
    told = conflict(replace(ONE, spec=JobSpec(("false",), env={"A": "secret"})))
    assert told.what == "the key 'nightly' was used for another command"
    assert "argv true, now false; env differs in A" in told.why and "secret" not in told.why


def test_an_array_of_other_members_is_another_request() -> None:
    group = Group(
        id="j-old", key="nightly", user="ann", kind=GroupKind.ARRAY, spec=ONE.spec, request=ASKED, submitted=1.0,
        count=10, array=Array(((0, 9, 1),)),
    )  # fmt: skip
    check_keys([replace(ONE, array=group.array)], lambda key: "j-old", lambda name: group)
    told = conflict(replace(ONE, array=Array(((0, 19, 1),))), group)
    assert told.why.endswith("an array of 0-9:1, now 0-19:1")
    assert conflict(ONE, group).why.endswith("an array of 0-9:1, now none")


def test_a_gang_again_is_the_same_gang() -> None:
    asked = replace(ASKED, gang=2)
    group = Group(
        id="j-old", key="nightly", user="ann", kind=GroupKind.GANG, spec=ONE.spec, request=asked, submitted=1.0,
        count=2, array=Array(((0, 1, 1),)),
    )  # fmt: skip
    check_keys([replace(ONE, request=asked)], lambda key: "j-old", lambda name: group)


@pytest.mark.parametrize("factor", [2000, 0], ids=["times as much", "what was enough for others"])
def test_what_the_coordinator_added_or_took_away_is_no_difference(factor: int) -> None:
    asked = replace(
        ASKED,
        retry_on=(RetryOn.OOM,),
        retries=2,
        retry_memory=factor,
        constraints=Constraints(near=("train",), walls=Constraints().walls),
    )
    stored = replace(
        asked,
        resources=Resources(cpu=1000, memory=2 * GIB),  # it ran out of memory once
        constraints=Constraints(near=("j-train",)),
        local=Local("here", ""),
        user="ann",
    )
    for one in (stored, replace(stored, retry_on=(), retries=0)):
        before = there(replace(ONE, request=one))
        check_keys([replace(ONE, request=asked)], lambda key: "j-old", lambda name: before)  # noqa: B023


def test_one_call_may_not_use_a_key_for_two_jobs() -> None:
    other = replace(ONE, request=Request(Resources(cpu=2000)))
    with pytest.raises(BadValue, match="'nightly' was used for another request") as refused:
        check_keys([ONE, other], lambda key: None, lambda name: None)
    assert refused.value.why.startswith("another job of this call has it")
