import random
from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.api.submissions import neighbours
from distributed_grid.coordinator.core.commands import CancelRequested, JobsSubmitted, MessageReceived
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.views import Visibility
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, State
from distributed_grid.protocol.messages import Exited, Stale
from distributed_grid.protocol.messages.roles import Reach
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, offer, resumed, step
from tests.depth import tries

ONE = Resources(cpu=1000)
FULL = Resources(cpu=4000)


def grid(*names: str) -> Ledger:
    ledger = Ledger()
    for name in names or ("n1", "n2", "n3"):
        join(ledger, facts(name))
    return ledger


def ask(ledger: Ledger, name: str, resources: Resources = ONE, called: str = "", on: str = "", **said: Any) -> None:
    """A job as the shell submits it."""
    constraints = Constraints(**said) if said else None
    request = Request(resources, nodes=(on,) if on else (), constraints=constraints)
    request = neighbours(request, Visibility("ann", Reach.ALL), called, ledger.state.index.affinity, {})
    step(ledger, JobsSubmitted(1, (named(job(name, request), called),)), 1.0)


def named(one: Job, called: str) -> Job:
    one.spec = msgspec.structs.replace(one.spec, name=called)
    return one


def end(ledger: Ledger, name: str, returned: bool = True) -> None:
    allocation = ledger.state.jobs[name].allocation
    over = Exited(allocation=allocation, outcome=Outcome(cause=Cause.EXITED), returned=returned)
    step(ledger, MessageReceived(ledger.state.jobs[name].node, over), 2.0)


def where(ledger: Ledger, *names: str) -> list[str]:
    return [ledger.state.jobs[name].node for name in names]


def test_a_job_goes_where_another_is_although_another_node_fits_better() -> None:
    ledger = grid()
    ask(ledger, "j1", called="train", on="n3")
    ask(ledger, "j2", near=("train",))
    ask(ledger, "j3", near=("j1",))
    assert where(ledger, "j2", "j3") == ["n3", "n3"]


def test_who_is_to_be_near_to_a_job_that_waits_waits_for_it_and_starts_with_it() -> None:
    ledger = grid("n1")
    ask(ledger, "j0", FULL)
    ask(ledger, "j1", Resources(cpu=3000))
    ask(ledger, "j2", near=("j1",))
    why = explain.why(ledger.state, "j2", None, 1.0)
    assert why.reason.code == "Affinity" and "waits for j1 to have a place" in why.reason.text
    end(ledger, "j0")
    assert where(ledger, "j1", "j2") == ["n1", "n1"]


def test_who_was_to_be_near_to_a_job_that_is_over_may_go_anywhere() -> None:
    ledger = grid("n1", "n2")
    ask(ledger, "j0", FULL, on="n1")
    ask(ledger, "j1", FULL, on="n1", only=("n1",))
    ask(ledger, "j2", near=("j1",))
    assert where(ledger, "j2") == [""]
    step(ledger, CancelRequested(2, ("j1",)), 2.0)
    assert where(ledger, "j2") == ["n2"]


def test_there_is_no_room_beside_it_so_it_waits_and_says_so() -> None:
    ledger = grid("n1", "n2")
    ask(ledger, "j1", FULL, on="n1")
    ask(ledger, "j2", near=("j1",))
    why = explain.why(ledger.state, "j2", None, 1.0)
    assert [(one.what, one.left) for one in why.funnel][-2:] == [("where j1 is", 1), ("with 1 cpu free", 0)]
    assert {one.node: one.why for one in why.verdicts}["n2"] == "is not where j1 is"
    assert where(ledger, "j2") == [""]


def test_jobs_that_are_to_be_apart_from_their_own_name_have_a_node_each() -> None:
    ledger = grid()
    for number in range(4):
        ask(ledger, f"j{number}", called="web", apart=("web",))
    assert sorted(where(ledger, "j0", "j1", "j2")) == ["n1", "n2", "n3"] and where(ledger, "j3") == [""]
    why = explain.why(ledger.state, "j3", None, 1.0)
    assert why.reason.code == "Affinity"
    assert [(one.what, one.left) for one in why.funnel][-2:] == [("apart from web", 0), ("with 1 cpu free", 0)]


@pytest.mark.parametrize("returned", [True, False])
def test_a_place_apart_is_taken_when_the_other_job_has_gone_whatever_room_it_leaves(returned: bool) -> None:
    ledger = grid("n1")
    ask(ledger, "j1", called="web")
    if not returned:  # its room is counted out of the newest offer, so it does not grow when it ends
        of = ledger.state.nodes["n1"].facts
        step(ledger, MessageReceived("n1", offer(of, 2, cores=of.cores[1:], counting=("j1.1",))), 1.0)
    ask(ledger, "j2", apart=("web",))
    assert where(ledger, "j2") == [""]
    end(ledger, "j1", returned)
    assert where(ledger, "j2") == ["n1"]


def test_names_are_those_of_ones_own_jobs() -> None:
    ledger = grid("n1")
    ask(ledger, "j1", called="web")
    for user, place in (("bob", "n1"), ("ann", "")):
        request = Request(ONE, constraints=Constraints(apart=("web",)))
        request = neighbours(request, Visibility(user, Reach.ALL), "web", ledger.state.index.affinity, {})
        step(ledger, JobsSubmitted(1, (named(job(f"j-{user}", request, user=user), "web"),)), 1.0)
        assert where(ledger, f"j-{user}") == [place]


def test_near_a_name_is_near_the_newest_job_of_that_name_also_one_submitted_with_it() -> None:
    ledger = grid()
    ask(ledger, "j1", called="web", on="n1")
    ask(ledger, "j2", called="web", on="n2")
    request = Request(ONE, constraints=Constraints(near=("web", "db")))
    found = neighbours(request, Visibility("ann", Reach.ALL), "", ledger.state.index.affinity, {"db": "j9"})
    assert found.constraints == Constraints(near=("j2", "j9"))


@pytest.mark.parametrize("kind", ["near", "apart"])
def test_a_job_that_is_not_there_is_refused_with_the_one_that_may_be_meant(kind: str) -> None:
    ledger = grid()
    ask(ledger, "j1", called="train")
    said: dict[str, Any] = {kind: ("trian",)}
    with pytest.raises(BadValue) as refused:
        ask(ledger, "j2", **said)
    assert "no job of yours called 'trian'" in str(refused.value) and refused.value.hint == "did you mean train?"


def test_a_job_that_comes_back_to_the_queue_holds_its_neighbours_again() -> None:
    ledger = grid("n1", "n2")
    ask(ledger, "j1", on="n1")
    step(ledger, MessageReceived("n1", Stale(allocation="j1.1", reason="busy")), 1.5)
    assert where(ledger, "j1") == ["n2"]
    ask(ledger, "j2", near=("j1",))
    assert where(ledger, "j2") == ["n2"]


def test_a_ledger_made_again_knows_who_is_where_and_who_waits_for_whom() -> None:
    ledger = grid("n1", "n2")
    ask(ledger, "j0", FULL, on="n1", called="web")
    ask(ledger, "j1", Resources(cpu=3000), on="n1", only=("n1",))
    ask(ledger, "j2", near=("j1",))
    ask(ledger, "j3", only=("n1",), apart=("web",))
    again = resumed(ledger)
    for one in (ledger, again):
        end(one, "j0")
    assert where(again, "j1", "j2", "j3") == where(ledger, "j1", "j2", "j3") == ["n1", "n1", ""]


def test_nothing_is_left_in_mind_of_jobs_that_are_over_and_nobody_is_forgotten() -> None:
    """By chance: in the end all have run, none was beside who it was to be apart from, and all books are empty."""
    for seed in range(tries(20, 4)):
        rng, ledger = random.Random(seed), grid()
        for number in range(25):
            name, live = f"j{number}", list(ledger.state.jobs)
            said: dict[str, Any] = {}
            if rng.random() < 0.5 and live:
                said["near"] = (rng.choice(live),)
            if rng.random() < 0.5:
                said["apart"] = ("a",) if rng.random() < 0.5 else ("b",)
            called = rng.choice(("a", "b", ""))
            try:
                ask(ledger, name, Resources(cpu=rng.choice((500, 1000, 3000))), called, **said)
            except BadValue:
                continue
            _nobody_beside(ledger)
            if rng.random() < 0.4:
                _end_one(ledger, rng)
        for _ in range(200):
            if not ledger.state.allocations:
                break
            _end_one(ledger, rng)
            _nobody_beside(ledger)
        stuck = [one.id for one in ledger.state.jobs.values()]
        assert not stuck, f"seed {seed}: {stuck} wait for ever"
        affinity = ledger.state.index.affinity
        assert not (affinity._live or affinity._nodes or affinity.wanted or affinity._waiting), f"seed {seed}"


def _end_one(ledger: Ledger, rng: random.Random) -> None:
    if ledger.state.allocations:
        end(ledger, ledger.state.allocations[rng.choice(list(ledger.state.allocations))].job, rng.random() < 0.7)
    for name, node in list(ledger.state.nodes.items()):  # and an honest offer follows
        if rng.random() < 0.7 or not ledger.state.allocations:
            busy = {core for one in node.allocations.values() for core in one.grant.cores}
            shares: dict[int, int] = {}
            for one in node.allocations.values():
                if (core := one.grant.shared_core) >= 0:
                    shares[core] = shares.get(core, 1000) - one.grant.shared_milli
            free = tuple(core for core in node.facts.cores if core not in busy and core not in shares)
            told = offer(node.facts, 3, cores=free, shares=shares, counting=tuple(node.allocations))
            step(ledger, MessageReceived(name, told), 3.0)


def _nobody_beside(ledger: Ledger) -> None:
    """Who is to be apart from others was granted its place where none of them was."""
    for one in ledger.state.jobs.values():
        asked = one.request.constraints
        if one.state is State.WAITING or asked is None:
            continue
        for other in ledger.state.jobs.values():
            if other.state is State.WAITING:
                continue
            before = other.id != one.id and other.node == one.node and _granted(ledger, other) < _granted(ledger, one)
            if before and other.spec.name:
                assert f"ann/{other.spec.name}" not in asked.apart, f"{one.id} is beside {other.id}"


def _granted(ledger: Ledger, one: Job) -> int:
    return list(ledger.state.allocations).index(one.allocation)


def test_who_comes_first_and_is_to_be_near_to_who_comes_in_the_same_pass_starts_with_it() -> None:
    ledger = grid("n1", "n2")
    first = job("j1", Request(ONE, Priority.LOW))
    second = job("j2", Request(ONE, Priority.HIGH, constraints=Constraints(near=("j1",))))
    step(ledger, JobsSubmitted(1, (first, second)), 1.0)
    assert where(ledger, "j2") == where(ledger, "j1") != [""]
