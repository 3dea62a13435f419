"""Under `placement: ray` nothing is launched that Ray has not reserved, and nothing stays reserved that is over."""

import pytest

from distributed_grid.coordinator.core import checkpoint, views
from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    RayReported,
    RecordAllocation,
    RecordJob,
    Reserve,
    Reserved,
    ReserveRefused,
    Send,
    Tick,
    Unreserve,
)
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Job, OnRay, RayPlace
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Stale, Started
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.resources import GIB, Resources, ResourceType
from tests.coordinator.core.lifecycle.test_outcomes import submitted as gang
from tests.coordinator.core.scene import decoded, facts, job, join, offer, step

BY_RAY = Policy(by_ray=True)
LAB = facts("lab", gpus=2)
WHOLE = Resources(4000, 8 * GIB, 2000)
ONE = Request(Resources(cpu=1000))
TWO = Request(Resources(cpu=2000))


def shows(cpu: int = 0, gpu: int = 0, on: str = "lab", id: str = "f00d") -> RayReported:
    """Ray has all of the node, and others use so much of it."""
    return RayReported({on: OnRay(id, WHOLE, Resources(cpu=cpu, gpu=gpu))})


def scene(looked: RayReported | None = None) -> Ledger:
    ledger = Ledger(policy=BY_RAY)
    join(ledger, LAB)
    step(ledger, looked or shows(), 0.5)
    return ledger


def submit(ledger: Ledger, name: str, request: Request = ONE, at: float = 1.0) -> list[Command]:
    return step(ledger, JobsSubmitted(1, (job(name, request),)), at)


def asked(out: list[Command]) -> list[Command]:
    """What Ray is asked, and what the nodes are sent."""
    return [one for one in out if isinstance(one, Reserve | Unreserve | Send)]


def beat(ledger: Ledger, now: float) -> list[Command]:
    """Time passes, and the node is there."""
    return step(ledger, HeartbeatReceived("lab", Sample(at=now)), now)


def launches(out: list[Command]) -> list[str]:
    return [one.message.allocation for one in out if isinstance(one, Send) and isinstance(one.message, Launch)]


def reason(ledger: Ledger, name: str) -> str:
    view = views.job(ledger.state, name)
    assert view is not None and view.reason is not None
    return f"{view.reason.code}: {view.reason.text}"


def ended(out: list[Command], name: str) -> Outcome | None:
    found = [one.job for one in out if isinstance(one, RecordJob) and one.job.id == name]
    return found[-1].outcome if found else None


# --- the way of a job -------------------------------------------------------------------------------------------------


def test_what_is_granted_is_launched_once_ray_has_reserved_it_and_let_go_of_when_it_is_over() -> None:
    ledger = scene()
    assert asked(submit(ledger, "j", Request(Resources(cpu=1500, memory=GIB)))) == [
        Reserve("j.1", "f00d", Resources(cpu=1500, memory=GIB))
    ]
    assert ledger.state.jobs["j"].state is State.STARTING
    assert launches(step(ledger, Reserved("j.1"), 2.0)) == ["j.1"]
    step(ledger, MessageReceived("lab", Started(allocation="j.1", pid=7)), 3.0)
    assert [one.text for one in ledger.state.jobs["j"].story] == [
        "submitted",
        "granted on lab, confidence 0.38; Ray is to reserve it",
        "Ray reserved it on its node f00d",
        "started on lab",
    ]
    out = step(ledger, MessageReceived("lab", Exited(allocation="j.1", outcome=Outcome(Cause.EXITED, code=0))), 9.0)
    assert Unreserve("j.1") in out and "j" not in ledger.state.jobs


def test_what_was_granted_is_on_disk_before_ray_is_asked() -> None:
    out = submit(scene(), "j")
    at, record = next((at, one) for at, one in enumerate(out) if isinstance(one, RecordAllocation))
    assert record.allocation.ray == RayPlace("f00d", ONE.resources)


def test_without_placement_by_ray_nobody_asks_ray() -> None:
    ledger = Ledger()
    join(ledger, LAB)
    assert launches(submit(ledger, "j")) == ["j.1"]
    out = step(ledger, MessageReceived("lab", Exited(allocation="j.1", outcome=Outcome(Cause.EXITED, code=0))), 9.0)
    assert not any(isinstance(one, Unreserve) for one in out)


def test_a_boost_is_lent_to_ray_and_not_reserved_by_it() -> None:
    ledger = Ledger(policy=BY_RAY)
    join(ledger, LAB)
    boost = job("b", ONE, boost=Boost("gpu-master", "192.0.2.1:6379", ResourceType.CPU, 1000), time_limit=60.0)
    assert launches(step(ledger, JobsSubmitted(1, (boost,)), 1.0)) == ["b.1"]


def test_an_answer_that_is_said_twice_or_for_nobody_launches_nothing_and_lets_go() -> None:
    ledger = scene()
    submit(ledger, "j")
    step(ledger, Reserved("j.1"), 2.0)
    assert asked(step(ledger, Reserved("j.1"), 2.1)) == []
    assert asked(step(ledger, ReserveRefused("j.1", "too late"), 2.2)) == []
    assert asked(step(ledger, Reserved("gone.1"), 2.3)) == [Unreserve("gone.1")]
    assert asked(step(ledger, ReserveRefused("gone.1", "no"), 2.4)) == [Unreserve("gone.1")]
    assert ledger.state.jobs["j"].state is State.STARTING


# --- refused ----------------------------------------------------------------------------------------------------------


def test_what_ray_refuses_waits_with_the_reason_and_is_asked_again_a_little_later_each_time_later() -> None:
    ledger = scene()
    submit(ledger, "j")
    now, pauses = 2.0, []
    for attempt in range(1, 4):
        out = step(ledger, ReserveRefused(f"j.{attempt}", "it was not free within 2 s"), now)
        assert asked(out) == [Unreserve(f"j.{attempt}")]
        beat(ledger, now + 0.01)
        assert reason(ledger, "j") == "Ray: lab was refused by Ray a moment ago: it was not free within 2 s"
        until = ledger.state.nodes["lab"].declined["ray"][0]
        assert asked(beat(ledger, until - 0.1)) == []
        assert asked(beat(ledger, until)) == [Reserve(f"j.{attempt + 1}", "f00d", ONE.resources)]
        pauses.append(round(until - now, 3))
        now = until + 0.5
    assert pauses == [1.0, 2.0, 4.0]
    assert launches(step(ledger, Reserved("j.4"), now)) == ["j.4"]
    assert not ledger.state.nodes["lab"].declined, "the next one is asked for at once"


def test_what_one_node_is_refused_goes_to_another_at_once() -> None:
    ledger = scene()
    join(ledger, facts("lib"))
    both = RayReported({"lab": OnRay("f00d", WHOLE), "lib": OnRay("beef", WHOLE)})
    step(ledger, both, 0.6)
    first = next(one for one in submit(ledger, "j") if isinstance(one, Reserve))
    out = step(ledger, ReserveRefused("j.1", "no"), 2.0)
    second = next(one for one in out if isinstance(one, Reserve))
    assert {first.node, second.node} == {"f00d", "beef"}


def test_without_an_answer_in_time_the_job_waits_again() -> None:
    ledger = scene()
    submit(ledger, "j")
    for at in range(2, 31):
        assert asked(beat(ledger, float(at))) == []
    assert asked(beat(ledger, 31.0)) == [Unreserve("j.1")]
    assert "it did not answer within 30 s" in ledger.state.jobs["j"].story[-1].text


def test_what_must_start_at_once_ends_with_rays_reason() -> None:
    ledger = scene()
    submit(ledger, "j", Request(Resources(cpu=1000), immediate=True))
    outcome = ended(step(ledger, ReserveRefused("j.1", "it was not free within 2 s"), 2.0), "j")
    assert outcome is not None and outcome.cause is Cause.NOT_PLACED and not outcome.started
    assert outcome.text == "lab was refused by Ray a moment ago: it was not free within 2 s"


# --- what Ray shows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("looked", "request_", "why"),
    [
        (shows(cpu=3500), ONE, "Ray: lab has 4 cpu in Ray, 3.5 cpu of it used by Ray's programs; 1 cpu needed"),
        (RayReported({}), ONE, "Ray: lab has no node of Ray on it that takes work"),
        (RayReported({}, "nobody listens"), ONE, "Ray: Ray is to reserve it, and cannot be asked: nobody listens"),
        (
            shows(gpu=500),
            Request(Resources(gpu=1000)),
            "Ray: lab has 2 gpu in Ray, 0.5 gpu of it used by Ray's programs; 2 gpu needed",
        ),
    ],
)
def test_who_finds_no_room_in_ray_is_told_so_and_starts_when_there_is(
    looked: RayReported, request_: Request, why: str
) -> None:
    ledger = scene(looked)
    assert asked(submit(ledger, "j", request_)) == []
    assert reason(ledger, "j") == why
    assert f"Ray: {explain.why(ledger.state, 'j', None, 1.5).reason.text}" == why
    assert [type(one) for one in asked(step(ledger, shows(), 2.0))] == [Reserve]


def test_who_waits_for_jobs_of_ours_is_told_so_and_not_that_ray_has_no_room() -> None:
    ledger = scene()
    submit(ledger, "all", Request(Resources(cpu=4000)))
    submit(ledger, "j")
    assert reason(ledger, "j") == "Resources: needs 1 cpu; lab has 0 cpu free"


def test_what_ray_has_reserved_for_us_is_taken_off_once_and_is_room_again_when_it_is_over() -> None:
    ledger = scene(shows(cpu=1000))
    for name in ("a", "b", "c", "d"):
        submit(ledger, name)
    waiting = [name for name, one in ledger.state.jobs.items() if one.state is State.WAITING]
    assert waiting == ["d"], "of four cores others have one"
    assert asked(step(ledger, ReserveRefused("a.1", "no"), 2.0)) == [Unreserve("a.1")]
    step(ledger, Reserved("b.1"), 2.1)
    assert {name for name, one in ledger.state.jobs.items() if one.state is State.STARTING} == {"a", "b", "c"}


def test_a_job_with_gpus_reserves_all_that_ray_has_there_so_the_next_one_waits() -> None:
    ledger = scene()
    gpu = Request(Resources(cpu=1000, gpu=1000))
    assert asked(submit(ledger, "j", gpu)) == [Reserve("j.1", "f00d", Resources(cpu=1000, gpu=2000))]
    assert asked(submit(ledger, "k", gpu)) == []
    assert "has a job of ours with GPUs" in reason(ledger, "k")
    assert [type(one) for one in asked(submit(ledger, "l"))] == [Reserve], "who needs none goes there"


def test_why_is_asked_of_what_is_not_submitted_yet_it_counts_ray_as_well() -> None:
    said = explain.why(scene(shows(cpu=4000)).state, None, ONE, 1.0)
    assert (said.reason.code, said.chosen) == ("Ray", "")
    assert said.funnel[-1].what == "where Ray has room" and said.funnel[-1].left == 0


# --- what comes between -----------------------------------------------------------------------------------------------


def test_who_is_cancelled_while_ray_is_asked_never_runs_and_its_node_hears_nothing() -> None:
    for answer in (Reserved("j.1"), ReserveRefused("j.1", "no")):
        ledger = scene()
        submit(ledger, "j")
        assert asked(step(ledger, CancelRequested(2, ("j",)), 1.5)) == []
        assert ledger.state.jobs["j"].state is State.STOPPING
        out = step(ledger, answer, 2.0)
        assert asked(out) == [Unreserve("j.1")]
        outcome = ended(out, "j")
        assert outcome is not None and outcome.cause is Cause.CANCELLED and not outcome.started


def test_a_node_that_falls_silent_while_ray_is_asked_has_never_had_the_job() -> None:
    ledger = scene()
    submit(ledger, "j")
    assert Unreserve("j.1") in step(ledger, Tick(), 11.0)
    assert ledger.state.jobs["j"].state is State.WAITING


def test_a_node_that_is_back_meanwhile_is_sent_it_when_ray_has_answered_whoever_it_is_now() -> None:
    ledger = scene()
    submit(ledger, "j")
    step(ledger, NodeDown("lab", "session-lab"), 1.2)
    again = facts("lab", gpus=2, boot="b2")
    step(ledger, NodeUp(again, "s2"), 1.4)
    assert launches(step(ledger, MessageReceived("lab", Inventory(known=())), 1.5)) == []
    assert launches(step(ledger, Reserved("j.1"), 2.0)) == ["j.1"]


def test_a_node_that_is_away_when_ray_answers_is_sent_it_when_it_is_back() -> None:
    ledger = scene()
    submit(ledger, "j")
    step(ledger, NodeDown("lab", "session-lab"), 1.2)
    assert launches(step(ledger, Reserved("j.1"), 2.0)) == []
    step(ledger, NodeUp(LAB, "s2"), 2.5)
    assert launches(step(ledger, MessageReceived("lab", Inventory(known=())), 2.6)) == ["j.1"]


def test_what_the_node_would_not_start_is_let_go_of() -> None:
    ledger = scene()
    submit(ledger, "j")
    step(ledger, Reserved("j.1"), 2.0)
    assert Unreserve("j.1") in step(
        ledger, MessageReceived("lab", Stale(allocation="j.1", reason="busy", device="")), 2.5
    )


def test_what_runs_keeps_what_is_reserved_while_its_node_is_cut_off_until_that_is_taken_for_lost() -> None:
    ledger = scene()
    submit(ledger, "j")
    step(ledger, Reserved("j.1"), 2.0)
    step(ledger, MessageReceived("lab", Started(allocation="j.1", pid=7)), 3.0)
    assert asked(step(ledger, Tick(), 20.0)) == []
    assert Unreserve("j.1") in step(ledger, Tick(), 80.0)


def test_a_gang_of_which_one_is_refused_waits_again_as_a_whole() -> None:
    ledger = scene()
    join(ledger, facts("lib"))
    step(ledger, RayReported({"lab": OnRay("f00d", WHOLE), "lib": OnRay("beef", WHOLE)}), 0.6)
    out = gang(ledger)
    assert sorted(one.allocation for one in out if isinstance(one, Reserve)) == ["g_0.1", "g_1.1"]
    step(ledger, ReserveRefused("g_0.1", "no"), 2.0)
    out = step(ledger, Reserved("g_1.1"), 2.1)
    assert Unreserve("g_1.1") in out and launches(out) == []
    assert {one.tries for one in ledger.state.jobs.values()} == {1}
    assert all(one.state is State.WAITING for one in ledger.state.jobs.values())


# --- restarts ---------------------------------------------------------------------------------------------------------


def restarted(ledger: Ledger, policy: Policy = BY_RAY) -> tuple[Ledger, list[Command]]:
    """A ledger that takes up what this one has on disk, and what that asks for."""
    other = Ledger(policy=policy)
    live: list[Job] = list(ledger.state.jobs.values())
    out = other.restore(live, ledger.state.allocations.values(), [LAB], 10.0)
    return other, out + other.settle(10.0)


def test_after_a_restart_ray_is_asked_again_and_the_job_goes_on_from_there() -> None:
    ledger = scene()
    submit(ledger, "j", Request(Resources(cpu=1000, gpu=1000)))
    other, out = restarted(ledger)
    assert asked(out) == [Reserve("j.1", "f00d", Resources(cpu=1000, gpu=2000))]
    step(other, NodeUp(LAB, "s2"), 11.0)
    assert launches(step(other, MessageReceived("lab", Inventory(known=())), 11.1)) == []
    assert launches(step(other, Reserved("j.1"), 11.2)) == ["j.1"]


def test_what_ray_had_reserved_before_a_restart_is_not_asked_for_again_and_is_let_go_of_at_its_end() -> None:
    ledger = scene()
    submit(ledger, "j")
    step(ledger, Reserved("j.1"), 2.0)
    other, out = restarted(ledger)
    assert asked(out) == []
    step(other, NodeUp(LAB, "s2"), 11.0)
    assert launches(step(other, MessageReceived("lab", Inventory(known=())), 11.1)) == ["j.1"]
    out = step(other, MessageReceived("lab", Exited(allocation="j.1", outcome=Outcome(Cause.EXITED, code=0))), 12.0)
    assert Unreserve("j.1") in out


def test_who_waited_under_one_placement_is_placed_by_the_other_after_a_restart() -> None:
    ledger = Ledger()
    submit(ledger, "j", TWO)
    other, _ = restarted(ledger)
    join(other, LAB, 11.0)
    assert not launches(step(other, Tick(), 11.5)) and other.state.jobs["j"].state is State.WAITING
    assert [type(one) for one in asked(step(other, shows(), 12.0))] == [Reserve]
    back, _ = restarted(scene(RayReported({})), Policy())
    join(back, LAB, 11.0)
    assert launches(submit(back, "k", at=12.0)) == ["k.1"]


def test_a_checkpoint_has_all_that_ray_said() -> None:
    ledger = scene(shows(cpu=500))
    submit(ledger, "j")
    step(ledger, ReserveRefused("j.1", "no"), 2.0)
    step(ledger, RayReported({}, "nobody listens"), 2.5)
    at = checkpoint.take(ledger)
    assert not checkpoint.differs(at, checkpoint.take(checkpoint.resume(decoded(at))))


def test_an_urgent_job_takes_the_place_of_others_and_asks_ray_once_they_have_let_go() -> None:
    ledger = scene()
    submit(ledger, "low", Request(Resources(cpu=4000), Priority.LOW))
    step(ledger, Reserved("low.1"), 2.0)
    step(ledger, MessageReceived("lab", Started(allocation="low.1", pid=7)), 3.0)
    step(ledger, MessageReceived("lab", offer(LAB, cores=(), counting=("low.1",), expires_in=900.0)), 4.0)
    submit(ledger, "now", Request(Resources(cpu=1000), Priority.URGENT), at=30.0)
    out = step(ledger, MessageReceived("lab", Exited("low.1", Outcome(Cause.PREEMPTED), returned=True)), 31.0)
    assert [type(one) for one in asked(out)][:2] == [Unreserve, Reserve]
