"""What is shown of jobs to whom."""

from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.core.views import ANOTHER, Visibility
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.groups import Array, GroupKind, GroupView
from distributed_grid.protocol.jobs import (
    Cause,
    JobSpec,
    JobView,
    Outcome,
    Priority,
    Reason,
    Request,
    State,
    Step,
    Suspension,
)
from distributed_grid.protocol.messages import BoostView, FunnelStep, NodeVerdict, RayNode, Why
from distributed_grid.protocol.messages.operator import Alternative, Preemption, Receipt, Victim
from distributed_grid.protocol.messages.roles import Reach
from distributed_grid.protocol.nodes import AllocationView
from distributed_grid.protocol.placement import Constraints, Local
from distributed_grid.protocol.resources import Grant, Resources, ResourceType

MINE, THEIRS = "j-annannannann", "j-bobbobbobbob"
OWNERS = {MINE: "ann", f"{MINE}_3": "ann", THEIRS: "bob", f"{THEIRS}_3": "bob"}
SECRET = "sesame"  # noqa: S105
SPEC = JobSpec((SECRET,), {"A": SECRET}, name=SECRET, workdir=f"/{SECRET}", bundle=SECRET, time_limit=60.0)
REQUEST = Request(
    Resources(1000), nodes=(SECRET,), local=Local(SECRET, SECRET), constraints=Constraints(apart=(f"ann/{SECRET}",))
)
VIEW = JobView(
    id=MINE,
    user="ann",
    state=State.RUNNING,
    spec=SPEC,
    request=REQUEST,
    submitted=1.0,
    reason=Reason("Affinity", SECRET),
    outcome=Outcome(Cause.EXITED, 3, text=SECRET, stdout_tail=SECRET.encode(), stderr_tail=SECRET.encode()),
    story=(Step(1.0, State.WAITING, SECRET),),
    suspended=Suspension(2.0, SECRET),
    unused=SECRET,
)
GROUP = GroupView(
    id=MINE,
    user="ann",
    kind=GroupKind.ARRAY,
    spec=SPEC,
    request=REQUEST,
    submitted=1.0,
    count=4,
    array=Array(((0, 3, 1),)),
    states={"running": 4},
    reason=Reason("Affinity", SECRET),
)


def visibility(user: str, reach: Reach) -> Visibility:
    return Visibility(user, reach, lambda name: OWNERS.get(name, ""))


@pytest.mark.parametrize("reach", Reach)
def test_whose_jobs_are_there_for_whom(reach: Reach) -> None:
    others = reach in (Reach.ALL, Reach.OUTLINES)
    one = visibility("ann", reach)
    assert one.sees("ann") and one.names(MINE) and one.names(f"{MINE}_3")
    assert one.sees("bob") == one.names(THEIRS) == one.names("j-nobody") == (one.only == "") == others


def test_an_operator_is_shown_all_as_it_is_and_a_client_what_is_its_own() -> None:
    for one in (visibility("op", Reach.ALL), visibility("ann", Reach.OWN)):
        assert one.job(VIEW) is VIEW and one.group(GROUP) is GROUP


def test_an_outline_says_where_a_job_stands_and_has_none_of_its_words() -> None:
    viewer = visibility("eve", Reach.OUTLINES)
    job, group = viewer.job(VIEW), viewer.group(GROUP)
    assert SECRET.encode() not in msgspec.msgpack.encode((job, group))
    assert (job.id, job.user, job.state, job.spec.time_limit) == (MINE, "ann", State.RUNNING, 60.0)
    assert (job.request.resources, job.reason, job.outcome and job.outcome.code) == (
        Resources(1000),
        Reason("Affinity"),
        3,
    )
    assert (group.states, group.count, group.array) == ({"running": 4}, 4, GROUP.array)


def test_on_whose_cores_a_revocable_job_runs_is_shown_where_that_job_is_visible() -> None:
    grant = Grant(slack=(3,), slack_milli=500, holder=f"{THEIRS}.1")
    said = f"{THEIRS} wants 2.0 cores, and 1 are left to it"
    job = msgspec.structs.replace(VIEW, grant=grant, suspended=Suspension(2.0, said, by_holder=True))
    allocation = AllocationView(
        id=f"{MINE}.1", job=MINE, user="ann", node="lab1", state=State.RUNNING, grant=grant,
        priority=Priority.NORMAL.word, since=1.0, suspended=said, by_holder=True,
    )  # fmt: skip
    why = Why(id=1, reason=Reason("Placed"), grant=grant, job=job)
    for own in (OWNERS, {**OWNERS, THEIRS: "ann"}):
        viewer = Visibility("ann", Reach.OWN, lambda name, own=own: own.get(name, ""))  # type: ignore[misc]
        shown = (viewer.job(job), viewer.allocation(allocation), viewer.why(why))
        hidden = THEIRS.encode() not in msgspec.msgpack.encode(shown)
        assert hidden == (own is OWNERS)
        assert shown[0].grant is not None and shown[0].grant.slack == (3,)
    bob = visibility("bob", Reach.OWN).allocation(allocation)
    assert (bob.job, bob.grant) == ("", grant), "whose cores they are is known to the one whose cores they are"


def boost(of: str, user: str) -> BoostView:
    spec = msgspec.structs.replace(SPEC, boost=Boost("gpu-master", SECRET, ResourceType.CPU, 2000, ray=SECRET))
    view = msgspec.structs.replace(VIEW, id=of, user=user, allocation=f"{of}.1", node="lab1", spec=spec)
    return BoostView(view, RayNode("f00d", name=of, boost=of, source="lab1", target="gpu-master"))


def test_who_sees_outlines_sees_of_a_boost_what_is_lent_to_whom() -> None:
    shown = visibility("eve", Reach.OUTLINES).boost(boost(MINE, "ann"))
    assert SECRET.encode() not in msgspec.msgpack.encode(shown)
    assert shown.job.spec.boost == Boost("gpu-master", "", ResourceType.CPU, 2000)
    assert (shown.job.id, shown.node and shown.node.boost) == (MINE, MINE)


def test_a_client_sees_its_own_boosts_and_of_others_that_they_are_and_nothing_to_name_them_by() -> None:
    ann, mine, theirs = visibility("ann", Reach.OWN), boost(MINE, "ann"), boost(THEIRS, "bob")
    assert ann.boost(mine) == mine and visibility("op", Reach.ALL).boost(theirs) == theirs
    shown = ann.boost(theirs)
    packed = msgspec.msgpack.encode(shown)
    assert SECRET.encode() not in packed and THEIRS.encode() not in packed
    assert (shown.job.user, shown.job.node, shown.job.spec.boost and shown.job.spec.boost.amount) == (
        "bob",
        "lab1",
        2000,
    )
    assert shown.node == RayNode("f00d", source="lab1", target="gpu-master")


def test_the_words_of_ones_own_job_do_not_name_those_of_others() -> None:
    text = f"{THEIRS}_3 (high, bob) and {THEIRS}.2 have its place, {MINE}.1 had it; j-short"
    view = msgspec.structs.replace(
        VIEW,
        reason=Reason("Resources", text),
        outcome=Outcome(Cause.PREEMPTED, text=text),
        story=(Step(1.0, State.WAITING, "submitted"), Step(2.0, State.WAITING, text)),
    )
    said = f"{ANOTHER} (high, bob) and {ANOTHER} have its place, {MINE}.1 had it; j-short"
    shown = visibility("ann", Reach.OWN).job(view)
    assert shown.reason == Reason("Resources", said) and shown.outcome is not None and shown.outcome.text == said
    assert [step.text for step in shown.story] == ["submitted", said]
    group = msgspec.structs.replace(GROUP, reason=Reason("Resources", text))
    assert visibility("ann", Reach.OWN).group(group).reason == Reason("Resources", said)
    assert visibility("op", Reach.ALL).job(view) is view


def test_what_others_hold_is_told_without_what_it_is() -> None:
    held = AllocationView(
        id=f"{THEIRS}.1",
        job=THEIRS,
        user="bob",
        node="n1",
        state=State.RUNNING,
        grant=Grant(),
        priority="high",
        since=1.0,
        name=SECRET,
        suspended=SECRET,
        awaits_reader=SECRET,
    )
    bare = msgspec.structs.replace(held, name="", suspended="", awaits_reader="")
    assert visibility("bob", Reach.OWN).allocation(held) == visibility("op", Reach.ALL).allocation(held) == held
    assert visibility("eve", Reach.OUTLINES).allocation(held) == bare
    assert visibility("bob", Reach.OUTLINES).allocation(held) == bare, "a viewer has nothing of its own"
    assert visibility("ann", Reach.OWN).allocation(held) == msgspec.structs.replace(bare, id="", job="")


def receipt(**more: Any) -> Receipt:
    victims = tuple(Victim(f"{job}.1", job, OWNERS[job], Priority.LOW, Grant()) for job in (MINE, THEIRS))
    parts: dict[str, Any] = {
        "id": f"{THEIRS}.p1",
        "job": THEIRS,
        "user": "bob",
        "why": f"{THEIRS} {MINE}",
        "text": f"{SECRET} {THEIRS}",
    }
    parts |= {"priority": Priority.URGENT, "wanted": Resources(1000), "node": "n1", "grant": Grant(), "at": 1.0}
    parts |= {"victims": victims, "alternatives": (Alternative("n2", why=THEIRS),)}
    return Receipt(**(parts | more))


def test_a_preemption_is_told_to_who_had_a_part_in_it_and_names_nobody_else() -> None:
    told = visibility("ann", Reach.OWN).receipt(receipt())
    assert told is not None and THEIRS not in str(told) and (told.user, told.priority) == ("bob", Priority.URGENT)
    assert [(one.job, one.user) for one in told.victims] == [(MINE, "ann"), ("", "bob")]
    assert visibility("cyd", Reach.OWN).receipt(receipt()) is None
    whole = receipt()
    assert visibility("op", Reach.ALL).receipt(whole) is whole
    seen = visibility("eve", Reach.OUTLINES).receipt(whole)
    assert seen is not None and SECRET not in str(seen) and seen.job == THEIRS and len(seen.victims) == 2


def test_an_explanation_names_no_job_of_others() -> None:
    held = AllocationView(
        id=f"{THEIRS}.1",
        job=THEIRS,
        user="bob",
        node="n1",
        state=State.RUNNING,
        grant=Grant(),
        priority="low",
        since=1.0,
    )
    why = Why(
        1,
        Reason("Reserved", f"kept for {THEIRS}"),
        funnel=(FunnelStep(f"apart from {THEIRS}", 1, THEIRS),),
        verdicts=(NodeVerdict("n1", False, f"{THEIRS} is there"),),
        hint=f"wait for {THEIRS}",
        job=msgspec.structs.replace(VIEW, reason=Reason("Reserved", f"kept for {THEIRS}")),
        holders=(held,),
        preempts=Preemption(
            node="n1",
            grant=Grant((1,)),
            victims=(Victim(f"{THEIRS}.1", THEIRS, "bob", Priority.LOW, Grant((1,))),),
            lost=7.0,
        ),
    )
    shown = visibility("ann", Reach.OWN).why(why)
    assert THEIRS not in str(shown) and ANOTHER in shown.hint and shown.holders[0].user == "bob"
    assert shown.preempts is not None and (shown.preempts.victims[0].user, shown.preempts.lost) == ("bob", 7.0)
    assert visibility("op", Reach.ALL).why(why) is why
