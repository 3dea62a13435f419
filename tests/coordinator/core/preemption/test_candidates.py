"""Who would give way is said before, and found wherever it is: against what then happens, and against a look at every
allocation of the grid."""

import random
from collections import Counter
from itertools import count

import msgspec
import pytest

from distributed_grid.coordinator.core.commands import CancelRequested, JobsSubmitted, MessageReceived, NodeDown, NodeUp
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.placement.matching import able
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.preemption import candidates
from distributed_grid.coordinator.core.preemption.plan import may
from distributed_grid.coordinator.core.queue.admission import refusal
from distributed_grid.protocol.jobs import Priority, Request, State
from distributed_grid.protocol.messages import Inventory, Started, Suspended
from distributed_grid.protocol.nodes import Known, Withheld
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from tests.coordinator.core.explain.test_why_changes import grid, request
from tests.coordinator.core.lifecycle.test_outcomes import DONE, submitted
from tests.coordinator.core.preemption.test_execute import (
    RULES,
    ask,
    ends,
    full,
    launches,
    policy,
    receipts,
    stops,
    urgent,
)
from tests.coordinator.core.scene import facts, job, join, kept_for, offer, step
from tests.depth import DEEP, tries

PARTS = 2 if DEEP else 1
PATIENT = Policy(suspect_after=1e6, disconnected_after=2e6, preempting=RULES)


@pytest.mark.parametrize("part", range(PARTS))
def test_whom_a_dry_run_names_gives_way_in_the_next_pass_and_nobody_else(part: int) -> None:
    seen = Counter[str]()
    for seed in range(part, tries(600, 200), PARTS):
        lot = random.Random(seed)
        ledger = grid(lot, PATIENT)
        wanted = msgspec.structs.replace(request(lot), priority=Priority.URGENT)
        if refusal(ledger.state, 1, wanted) is not None:
            continue
        ledger.settle(50.0)
        why = explain.why(ledger.state, None, wanted, 50.0, "ann")
        (opened,) = receipts(step(ledger, JobsSubmitted(1, (job("asked", wanted, 50.0),)), 50.0)) or (None,)
        seen["preempts" if why.preempts else why.reason.code] += 1
        if why.preempts is None or opened is None:
            assert (why.preempts, opened) == (None, None), f"seed {seed}"
            continue
        said = why.preempts
        assert (said.node, said.grant, said.victims, said.lost, said.alternatives) == (
            opened.node, opened.grant, opened.victims, opened.lost, opened.alternatives
        ), f"seed {seed}"  # fmt: skip
        kept = kept_for(ledger.state.jobs["asked"])
        assert kept is not None and kept.ends == 50.0 + said.within
    assert seen["preempts"] > 5 and seen["Fits"] > 12 and seen["Resources"] > 5, seen


def test_a_dry_run_says_who_would_lose_what_and_by_when_and_changes_nothing() -> None:
    ledger = full()
    wanted = Request(Resources(2 * MILLI), Priority.URGENT)
    why = explain.why(ledger.state, None, wanted, 50.0, "ann")
    assert (why.reason.code, why.chosen) == ("Preempts", "")
    said = "it would start on n1 once 2 jobs have given way, within 5 s; 93 core-seconds would be lost"
    assert why.reason.text == said
    assert why.preempts is not None and {one.job for one in why.preempts.victims} == {"a2", "a3"}
    assert all(one.state is State.RUNNING for one in ledger.state.allocations.values())
    high = msgspec.structs.replace(wanted, priority=Priority.HIGH)
    assert explain.why(ledger.state, None, high, 50.0, "ann").preempts is None
    at_once = msgspec.structs.replace(wanted, immediate=True)
    assert explain.why(ledger.state, None, at_once, 50.0, "ann").preempts is None
    early = explain.why(ledger.state, None, wanted, 9.0, "ann")
    assert early.preempts is None and "min-hold protects who began lately" in early.reason.text


# --- all nodes are looked at ------------------------------------------------------------------------------------------


def many(lot: random.Random) -> Ledger:
    """Up to twelve small nodes, nearly full of jobs of all classes."""
    ledger = Ledger(policy=PATIENT)
    names = (f"j{number}" for number in count())
    for number in range(lot.randint(1, 12)):
        join(ledger, facts(f"n{number}", lot.randint(1, 4), lot.randint(2, 6) * GIB, lot.choice((0, 0, 2))))
    for _ in range(lot.randint(4, 40)):
        parts = (lot.choice((300, 500, 1000, 2000)), lot.choice((0, GIB)), lot.choice((0, 0, 400, 600, 1000)))
        ask_of(ledger, next(names), Request(Resources(*parts), lot.choice(list(Priority)[:3])), lot.uniform(0, 20))
    for allocation in list(ledger.state.allocations.values()):
        step(ledger, MessageReceived(allocation.node, Started(allocation=allocation.id)), 21.0)
    for name in [name for name in ledger.state.jobs if lot.random() < 0.3]:
        step(ledger, CancelRequested(1, (name,)), 40.0)
    return ledger


def ask_of(ledger: Ledger, name: str, wanted: Request, now: float) -> None:
    step(ledger, JobsSubmitted(1, (job(name, wanted, now),)), now)


def test_whoever_could_make_room_is_found_however_few_nodes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "NODES", 1)
    found = Counter[bool]()
    for seed in range(tries(60, 25)):
        lot = random.Random(seed)
        ledger = many(lot)
        parts = (lot.choice((500, 1000, 2000, 4000)), lot.choice((0, 2 * GIB)), lot.choice((0, 0, 1000)))
        wanted = Request(Resources(*parts), Priority.URGENT)
        there = any(could(ledger, name, wanted) for name in ledger.state.nodes)
        found[there] += 1
        assert any(one.makes_room(wanted) for one in candidates.views(ledger.state, wanted, 60.0)) == there, (
            f"seed {seed}"
        )
    assert min(found[True], found[False]) > 7, found


def could(ledger: Ledger, name: str, wanted: Request) -> bool:
    """Whether there is room on this node, where somebody may give way or ends, when all those have."""
    node = ledger.state.nodes[name]
    if node.capacity is None or not node.usable or not able(node, wanted):
        return False
    capacity, some = node.capacity.copy(), False
    for one in node.allocations.values():
        if one.state is State.STOPPING:
            some = True
            if candidates.end_of(ledger.state, one, 60.0):
                capacity.give(one.grant)
        elif may(Priority.URGENT, ledger.state.jobs[one.job].request.priority):
            capacity.give(one.grant)
            some = True
    return some and capacity.fits(wanted.resources)


def test_among_many_nodes_the_cheapest_victims_are_those_granted_last() -> None:
    ledger = Ledger(policy=PATIENT)
    for number in range(90):
        join(ledger, facts(f"n{number:02}", 1))
        ask(ledger, f"low{number:02}", float(number) / 10)
        step(ledger, MessageReceived(f"n{number:02}", Started(allocation=f"low{number:02}.1")), number / 10 + 0.05)
    looked = candidates.views(ledger.state, Request(Resources(MILLI), Priority.URGENT), 50.0)
    assert (len(looked), looked[0].node, looked[-1].node) == (candidates.NODES, "n89", "n26")
    assert stops(urgent(ledger, "u", 50.0)) == ["low89.1"]


# --- gangs ------------------------------------------------------------------------------------------------------------


def of_a_gang(alone: int = 1) -> Ledger:
    """Three nodes of one core: a gang of two `low` members runs since 1, a job by itself on the third too."""
    ledger = Ledger(policy=policy())
    for number in range(2 + alone):
        join(ledger, facts(f"n{number}", 1))
    submitted(ledger, request=Request(Resources(MILLI), Priority.LOW, gang=2), now=0.0)
    if alone:
        ask(ledger, "a", 0.0, 1)
    for allocation in list(ledger.state.allocations.values()):
        step(ledger, MessageReceived(allocation.node, Started(allocation=allocation.id)), 1.0)
    return ledger


def test_a_gang_costs_what_all_of_it_has_done_so_one_by_itself_gives_way_before_it() -> None:
    ledger = of_a_gang()
    assert stops(urgent(ledger, "u", 51.0)) == ["a.1"]


def test_a_gang_gives_way_as_a_whole_and_waits_again_as_a_whole_with_its_age() -> None:
    ledger = of_a_gang(alone=0)
    ask(ledger, "young", 50.0)
    out = urgent(ledger, "u", 51.0)
    (opened,) = receipts(out)
    assert [(one.lost, one.gang) for one in opened.victims] == [(100.0, 2)]
    assert sorted(stops(out)) == ["g_0.1", "g_1.1"]
    first = opened.victims[0].allocation
    other = ({"g_0.1", "g_1.1"} - {first}).pop()
    assert launches(ends(ledger, first, 52.0)) == ["u.1"]
    assert ledger.state.jobs["g_0"].state is not State.STARTING, "not before all of it has ended"
    assert launches(ends(ledger, other, 53.0)) == [], "it is older than `young`, and both nodes are kept for it"
    assert sorted(launches(ends(ledger, "u.1", 54.0, DONE))) == ["g_0.2", "g_1.2"]


def test_a_gang_that_gave_way_for_nothing_waits_with_its_age_since_one_node_is_no_place_for_it() -> None:
    ledger = of_a_gang(alone=0)
    (opened,) = receipts(urgent(ledger, "u", 51.0))
    first = opened.victims[0].allocation
    other = ({"g_0.1", "g_1.1"} - {first}).pop()
    step(ledger, CancelRequested(2, ("u",)), 51.5)
    ends(ledger, first, 52.0)
    assert sorted(launches(ends(ledger, other, 53.0))) == ["g_0.2", "g_1.2"]
    assert not ledger.state.preempting.preemptors and not any(node.earmarks for node in ledger.state.nodes.values())


def test_a_gang_of_which_a_part_cannot_be_reached_does_not_give_way() -> None:
    ledger = of_a_gang(alone=0)
    step(ledger, NodeDown("n0", "session-n0"), 50.0)
    assert stops(urgent(ledger, "u", 51.0)) == []


def _with_gpus(cores: int = 2, gpus: int = 2) -> Ledger:
    """n1 with one low job on each of its GPUs, j0 and so on."""
    ledger = Ledger(policy=PATIENT)
    join(ledger, facts("n1", cores, gpus=gpus), 0.0)
    for number in range(gpus):
        wanted = Request(Resources(MILLI, 0, MILLI), Priority.LOW)
        step(ledger, JobsSubmitted(1, (job(f"j{number}", wanted),)), 0.0)
        step(ledger, MessageReceived("n1", Started(allocation=f"j{number}.1")), 1.0)
    return ledger


def _told_to_stop(ledger: Ledger, gpu: int) -> list[str]:
    wanted = Request(Resources(0, 0, gpu), Priority.URGENT)
    return stops(step(ledger, JobsSubmitted(2, (job("u", wanted, 50.0),)), 50.0))


@pytest.mark.parametrize("part", [MILLI, MILLI // 2])
def test_nobody_gives_way_on_a_gpu_that_the_node_came_back_without(part: int) -> None:
    ledger = _with_gpus()
    lost = ledger.state.allocations["j1.1"].grant.gpus[0].uuid
    now = facts("n1", 2, gpus=2)
    now = msgspec.structs.replace(now, incarnation=2, gpus=tuple(gpu for gpu in now.gpus if gpu.uuid != lost))
    step(ledger, NodeUp(now, "later"), 40.0)
    known = tuple(Known(f"j{number}.1", State.RUNNING, started_for=39.0) for number in range(2))
    step(ledger, MessageReceived("n1", Inventory(known=known)), 40.0)
    step(ledger, MessageReceived("n1", offer(now, cores=(), gpus=(), counting=("j0.1", "j1.1"))), 40.0)
    assert _told_to_stop(ledger, part) == ["j0.1"]


def test_nobody_gives_way_on_a_gpu_that_cannot_be_read() -> None:
    ledger = _with_gpus()
    (lost,) = ledger.state.allocations["j0.1"].grant.gpus
    why = (Withheld(lost.uuid, "cannot be read: GPU is lost"),)
    told = offer(facts("n1", 2, gpus=2), 2, cores=(), gpus=(), counting=("j0.1", "j1.1"), withheld=why)
    step(ledger, MessageReceived("n1", told), 40.0)
    assert _told_to_stop(ledger, MILLI) == ["j1.1"]


def test_who_is_frozen_for_the_owner_does_not_give_way_as_that_would_make_no_room() -> None:
    ledger = full(count=2)
    step(ledger, MessageReceived("n1", Suspended(allocation="a1.1", why="foreign CPU 60 % on core 1")), 40.0)
    assert stops(urgent(ledger, "u", 50.0)) == ["a0.1"], "which has more to lose"
    step(ledger, MessageReceived("n1", Suspended(allocation="a1.1", in_all=20.0)), 60.0)
    assert stops(urgent(ledger, "v", 61.0)) == ["a1.1"]
