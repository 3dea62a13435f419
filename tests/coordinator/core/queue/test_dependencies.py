"""Jobs that wait for others, and for a time."""

import random

import pytest

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    JobsSubmitted,
    MessageReceived,
    RecordGroup,
    RecordJob,
    Tick,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Condition, End, Group, HeldBack, Job
from distributed_grid.protocol.groups import GroupKind, count, parse_array
from distributed_grid.protocol.jobs import After, Cause, Outcome, Request, RetryOn, State
from distributed_grid.protocol.messages import Exited, Started
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.queue.test_groups import CPU, ended, launched, ledger_with, submitted
from tests.coordinator.core.scene import facts, job, join, resumed, step
from tests.depth import tries


def waiting_job(name: str, *after: Condition, begin: float = 0.0, request: Request = CPU) -> Job:
    made = job(name, request)
    made.begin = begin
    if after:
        made.phase = HeldBack(after=after)
    return made


def submit(ledger: Ledger, *jobs: Job, now: float = 1.0) -> list[Command]:
    return step(ledger, JobsSubmitted(1, jobs), now)


def reason(ledger: Ledger, name: str) -> tuple[str, str]:
    view = views.job(ledger.state, name)
    assert view is not None and view.reason is not None
    return view.reason.code, view.reason.text


def outcomes(out: list[Command]) -> dict[str, tuple[Cause, str]]:
    found = [one.job for one in out if isinstance(one, RecordJob) and one.job.outcome is not None]
    return {one.id: (one.outcome.cause, one.outcome.text) for one in found if one.outcome is not None}


OK, ANY, STARTED = After.OK, After.ENDED, After.STARTED


def test_a_job_is_not_placed_before_what_it_waits_for_has_ended() -> None:
    ledger = ledger_with()
    assert launched(submit(ledger, job("j-a", CPU))) == ["j-a.1"]
    out = submit(ledger, waiting_job("j-b", Condition("j-a", OK, "prepare")))
    assert launched(out) == [] and len(ledger.state.queue) == 0
    assert reason(ledger, "j-b") == ("Dependency", "waits for j-a (prepare) to exit with 0")
    out = ended(ledger, "j-a.1")
    assert launched(out) == ["j-b.1"]
    order = [one.job.id for one in out if isinstance(one, RecordJob)]
    assert order.index("j-a") < order.index("j-b")


@pytest.mark.parametrize(("kind", "runs"), [(OK, False), (ANY, True), (STARTED, True)])
def test_what_a_failed_job_means_to_those_behind_it(kind: After, runs: bool) -> None:
    ledger = ledger_with()
    submit(ledger, job("j-a", CPU))
    submit(ledger, waiting_job("j-b", Condition("j-a", kind)))
    out = ended(ledger, "j-a.1", code=3) if kind is not STARTED else []
    if kind is STARTED:
        out = step(ledger, MessageReceived("n1", Started(allocation="j-a.1")), 2.0)
    assert launched(out) == (["j-b.1"] if runs else [])
    if not runs:
        assert outcomes(out)["j-b"] == (Cause.DEPENDENCY_FAILED, "j-a exited with 3")
        assert not ledger.state.jobs and not ledger.state.dependencies.unmet


def test_a_job_that_ends_without_having_started_fails_those_that_wait_for_its_start() -> None:
    ledger = Ledger()
    submit(ledger, job("j-a", CPU), waiting_job("j-b", Condition("j-a", STARTED)))
    out = step(ledger, CancelRequested(2, ("j-a",)), 2.0)
    assert outcomes(out)["j-b"] == (Cause.DEPENDENCY_FAILED, "j-a was cancelled")


def test_only_the_last_end_of_a_job_that_runs_again_counts() -> None:
    ledger = ledger_with()
    again = Request(resources=Resources(cpu=1000), retry_on=(RetryOn.FAILED,), retries=1)
    submit(ledger, job("j-a", again), waiting_job("j-b", Condition("j-a", OK)))
    assert launched(ended(ledger, "j-a.1", code=1)) == ["j-a.2"]
    assert launched(ended(ledger, "j-a.2")) == ["j-b.1"]


def test_all_of_several_are_waited_for() -> None:
    ledger = ledger_with(cores=2)
    submit(ledger, job("j-a", CPU), job("j-b", CPU))
    submit(ledger, waiting_job("j-c", Condition("j-a", OK), Condition("j-b", ANY)))
    assert reason(ledger, "j-c")[1] == "waits for j-a to exit with 0, and 1 more"
    assert launched(ended(ledger, "j-a.1")) == []
    assert ledger.state.jobs["j-c"].after == (Condition("j-b", ANY),)
    assert launched(ended(ledger, "j-b.1", code=1)) == ["j-c.1"]


def test_an_array_is_waited_for_as_a_whole() -> None:
    ledger = ledger_with(cores=2)
    step(ledger, submitted("0-2"), 1.0)
    submit(
        ledger,
        *(waiting_job(f"j-{kind.value}", Condition("j-a", kind, "sweep")) for kind in After),
    )
    step(ledger, MessageReceived("n1", Started(allocation="j-a_0.1")), 2.0)
    assert launched(ended(ledger, "j-a_0.1")) == ["j-a_2.1"]
    step(ledger, MessageReceived("n1", Started(allocation="j-a_2.1")), 2.0)
    out = ended(ledger, "j-a_1.1", code=1)
    assert launched(out) == ["j-after.1"]
    failed = outcomes(out)["j-after-ok"]
    assert failed == (Cause.DEPENDENCY_FAILED, "j-a (sweep) has failed: j-a_1 exited with 1")
    ended(ledger, "j-after.1")
    assert launched(ended(ledger, "j-a_2.1")) == ["j-after-any.1"]


def test_a_whole_array_waits_and_fails_as_one() -> None:
    ledger = ledger_with()
    submit(ledger, job("j-b", CPU))
    event = submitted("0-99%2", max_fails=0)
    event.jobs[0].phase = HeldBack(after=(Condition("j-b", OK),))
    out = step(ledger, event, 1.0)
    assert launched(out) == [] and len(ledger.state.dependencies.unmet) == 1
    assert reason(ledger, "j-a_50") == ("Dependency", "waits for j-b to exit with 0")
    out = ended(ledger, "j-b.1", code=2)
    assert {words for words in outcomes(out).values()} == {
        (Cause.EXITED, ""),
        (Cause.DEPENDENCY_FAILED, "j-b exited with 2"),
    }
    (group,) = {one.group.id: one.group for one in out if isinstance(one, RecordGroup)}.values()
    assert (group.failed, group.never, group.ended) == (100, 100, 5.0)
    assert not ledger.state.jobs and not ledger.state.groups


def test_an_array_begins_with_as_many_as_may_when_its_dependency_has_ended() -> None:
    ledger = ledger_with()
    submit(ledger, job("j-b", CPU))
    event = submitted("0-9%2")
    event.jobs[0].phase = HeldBack(after=(Condition("j-b", OK),))
    step(ledger, event, 1.0)
    assert launched(ended(ledger, "j-b.1")) == ["j-a_0.1", "j-a_1.1"]


def test_a_job_begins_at_its_time_and_not_before() -> None:
    ledger = ledger_with()
    assert launched(submit(ledger, waiting_job("j-a", begin=5.0), now=2.0)) == []
    assert reason(ledger, "j-a") == ("Begin", "is to begin at 00:00:05 UTC, in 3.0s")
    assert ledger.next_deadline() is not None
    assert launched(step(ledger, Tick(), 4.9)) == []
    assert launched(step(ledger, Tick(), 5.0)) == ["j-a.1"]


def test_both_a_time_and_a_job_are_waited_for() -> None:
    ledger = ledger_with()
    submit(ledger, job("j-a", CPU), waiting_job("j-b", Condition("j-a", ANY), begin=5.5))
    assert launched(ended(ledger, "j-a.1")) == []
    assert reason(ledger, "j-b")[0] == "Begin"
    assert launched(step(ledger, Tick(), 5.5)) == ["j-b.1"]


def test_what_had_ended_before_counts_as_it_ended() -> None:
    ledger = ledger_with()
    past = Condition("j-old", OK, "", End(True, True))
    bad = Condition("j-bad", OK, "", End(False, True, "exited with 9"))
    out = submit(ledger, waiting_job("j-a", past), waiting_job("j-b", bad), waiting_job("j-c", Condition("j-x", ANY)))
    assert launched(out) == ["j-a.1"]
    assert outcomes(out) == {
        "j-b": (Cause.DEPENDENCY_FAILED, "j-bad exited with 9"),
        "j-c": (Cause.DEPENDENCY_FAILED, "j-x is not known any more"),
    }


def test_what_has_just_ended_is_remembered() -> None:
    ledger = ledger_with()
    submit(ledger, job("j-a", CPU))
    ended(ledger, "j-a.1")
    assert launched(submit(ledger, waiting_job("j-b", Condition("j-a", OK)), now=6.0)) == ["j-b.1"]


def test_who_waits_can_be_cancelled_and_is_not_told_then() -> None:
    ledger = ledger_with()
    submit(ledger, job("j-a", CPU), waiting_job("j-b", Condition("j-a", ANY)), waiting_job("j-c", begin=9.0))
    step(ledger, CancelRequested(2, ("j-b", "j-c")), 2.0)
    assert not ledger.state.dependencies.unmet and not ledger.state.dependencies.on[ANY]
    assert launched(ended(ledger, "j-a.1")) == []
    assert launched(step(ledger, Tick(), 10.0)) == []


@pytest.mark.parametrize("kind", [OK, ANY])
def test_a_long_chain_is_followed_to_its_end_in_one_go(kind: After) -> None:
    ledger = Ledger()
    length = 10_000
    chain = [waiting_job(f"j-{at}", Condition(f"j-{at - 1}", kind)) for at in range(1, length)]
    ledger.handle(JobsSubmitted(1, (job("j-0", CPU), *chain)), 1.0)
    ledger.settle(1.0)
    assert len(ledger.state.queue) == 1
    out = ledger.handle(CancelRequested(2, ("j-0",)), 2.0)
    ledger.settle(2.0)
    if kind is ANY:
        assert list(ledger.state.queue.turns) == ["j-1"]
        return
    assert not ledger.state.jobs
    last = outcomes(out)[f"j-{length - 1}"]
    assert last == (Cause.DEPENDENCY_FAILED, f"j-{length - 2} was not run, since j-0 was cancelled")


def as_stored(ledger: Ledger) -> Ledger:
    """A ledger that was restarted from what is on disk."""
    from copy import deepcopy

    after = Ledger()
    after.restore(
        deepcopy(list(ledger.state.jobs.values())),
        deepcopy(list(ledger.state.allocations.values())),
        [node.facts for node in ledger.state.nodes.values()],
        ledger.state.now,
        many=deepcopy([members.group for members in ledger.state.groups.values()]),
    )
    after.check()
    return after


def test_a_restart_at_any_moment_changes_nothing_of_what_waits_for_what() -> None:
    """Random graphs of jobs and arrays, random ends; at each step the restarted ledger waits for the same, and so does
    one made of a checkpoint."""
    for seed in range(tries(10, 2)):
        rng = random.Random(seed)
        ledger = ledger_with(cores=3)
        names: list[str] = []
        for number in range(14):
            name = f"j-{number:02}"
            picked = rng.sample(names, min(len(names), rng.randrange(3)))
            conditions = tuple(Condition(on, rng.choice(list(After))) for on in picked)
            begin = rng.choice((0.0, 0.0, 2.3))
            one = waiting_job(name, *conditions, begin=begin)
            if rng.random() < 0.3:
                array = parse_array(rng.choice(("0-3", "0-4%2")), rng.choice((None, 0)))
                group = Group(
                    id=name, key=one.key, user=one.user, kind=GroupKind.ARRAY, spec=one.spec, request=one.request,
                    submitted=0.0, count=count(array.parts), array=array, begin=begin,
                )  # fmt: skip
                step(ledger, JobsSubmitted(1, (one,), (group,)), 1.0)
            else:
                submit(ledger, one)
            names.append(name)
        for moment in range(200):
            now = 2.0 + moment / 100  # before the node is taken for silent
            again = as_stored(ledger)
            assert again.state.dependencies.unmet == ledger.state.dependencies.unmet, seed
            assert {kind: on for kind, on in again.state.dependencies.on.items()} == ledger.state.dependencies.on, seed
            assert set(again.state.queue.turns) == set(ledger.state.queue.turns), seed
            copy = resumed(ledger)
            copy.check()
            assert (copy.state.dependencies.unmet, copy.state.dependencies.on) == (
                ledger.state.dependencies.unmet,
                ledger.state.dependencies.on,
            ), seed
            assert copy.state.dependencies.unstarted == ledger.state.dependencies.unstarted, seed
            if not ledger.state.jobs:
                break
            if rng.random() < 0.1:
                step(ledger, CancelRequested(2, (rng.choice(list(ledger.state.jobs)),)), now)
            running = [one for one in ledger.state.allocations.values()]
            if running and rng.random() < 0.8:
                one_of = rng.choice(running)
                if one_of.state is State.STARTING and rng.random() < 0.7:
                    step(ledger, MessageReceived("n1", Started(allocation=one_of.id)), now)
                else:
                    outcome = Outcome(cause=Cause.EXITED, code=rng.choice((0, 0, 1)))
                    step(ledger, MessageReceived("n1", Exited(allocation=one_of.id, outcome=outcome)), now)
            else:
                step(ledger, Tick(), now)
        assert not ledger.state.jobs and not ledger.state.groups and not ledger.state.dependencies.unmet, (
            f"{seed}: somebody waits for ever"
        )


def test_ends_are_remembered_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed_grid.coordinator.core.queue import dependencies

    monkeypatch.setattr(dependencies, "ENDS_KEPT", 3)
    ledger = Ledger()
    join(ledger, facts("n1"))
    for number in range(5):
        submit(ledger, job(f"j-{number}", CPU))
        ended(ledger, f"j-{number}.1")
    assert list(ledger.state.dependencies.ends) == ["j-2", "j-3", "j-4"]


def test_the_members_of_an_array_are_gone_through_once_for_all_that_wait_for_their_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, plain = list[str](), vars(Job)["has_begun"]

    def counted(of: Job) -> bool:
        asked.append(of.id)
        return bool(plain.fget(of))

    ledger = ledger_with(cores=2)
    step(ledger, submitted("0-19"), 1.0)
    monkeypatch.setattr(Job, "has_begun", property(counted))
    submit(ledger, *(waiting_job(f"j-{n}", Condition("j-a", STARTED)) for n in range(30)))
    assert len(asked) <= 40
    again, asked[:] = resumed(ledger), []
    assert again.state.dependencies.unstarted == ledger.state.dependencies.unstarted and len(asked) <= 40


def test_who_failed_at_once_leaves_no_wrong_count_of_who_has_started() -> None:
    ledger = ledger_with(cores=2)
    step(ledger, submitted("0-1"), 1.0)
    over = Condition("j-gone", OK, end=End(ok=False, started=True, text="exited with 1"))
    submit(ledger, waiting_job("j-b", Condition("j-a", STARTED), over))
    assert "j-b" not in ledger.state.jobs
    for name in ("j-a_0.1", "j-a_1.1"):
        step(ledger, MessageReceived("n1", Started(allocation=name)), 2.0)
    submit(ledger, waiting_job("j-c", Condition("j-a", STARTED)))
    assert "j-c" in ledger.state.queue
