import random
from collections import Counter
from typing import Any

import pytest

from distributed_grid.coordinator.core.commands import (
    JobsSubmitted,
    LabelsRequested,
    MessageReceived,
    NodeDown,
    Rejected,
)
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Node, Placement
from distributed_grid.coordinator.core.placement import catalogue
from distributed_grid.coordinator.core.placement.constraints import conditions, meets, unmet
from distributed_grid.coordinator.core.placement.matching import Context, confidence, labels, place, scores
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.protocol.jobs import Cause, Outcome, Request
from distributed_grid.protocol.messages import Exited, Started
from distributed_grid.protocol.nodes import GpuFacts, NodeFacts
from distributed_grid.protocol.placement import (
    Constraints,
    Sign,
    Strategy,
    Walls,
    parse_label,
    parse_placing,
    same_model,
)
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from tests.coordinator.core.scene import facts, job, join, resumed, step
from tests.depth import tries

ONE = Resources(cpu=1000)
HALF_GPU = Resources(cpu=500, gpu=500)


def asked(resources: Resources = ONE, **said: Any) -> Request:
    return Request(resources, **parse_placing(gpu=resources.gpu, **said))


def with_gpus(name: str, *models: tuple[str, int], **more: Any) -> NodeFacts:
    """A node with these GPUs, by model and GiB."""
    of = facts(name, gpus=len(models), **more)
    gpus = tuple(GpuFacts(gpu.uuid, gpu.index, *spec) for gpu, spec in zip(of.gpus, _sized(models), strict=True))
    return NodeFacts(**{field: getattr(of, field) for field in of.__struct_fields__} | {"gpus": gpus})


def _sized(models: tuple[tuple[str, int], ...]) -> list[tuple[str, int]]:
    return [(model, gib * GIB) for model, gib in models]


def where(ledger: Ledger, request: Request) -> str:
    found = place(ledger.state.nodes, ledger.state.index, request, ledger.state.policy)
    return found.node if isinstance(found, Placement) else ""


def said(ledger: Ledger, request: Request) -> tuple[str, str, str]:
    (answer,) = ledger.handle(JobsSubmitted(1, (job("j", request),)), 1.0)
    assert isinstance(answer, Rejected)
    return answer.what, answer.why, answer.hint


def zones() -> Ledger:
    ledger = Ledger()
    for name, zone in (("n1", "a"), ("n2", "c"), ("n3", "c")):
        join(ledger, facts(name, labels={"zone": zone}))
    join(ledger, facts("n4", labels={"disk": "ssd"}))
    return ledger


# --- nodes and labels -------------------------------------------------------------------------------------------------


def test_a_job_goes_to_one_of_the_nodes_it_asks_for_and_to_none_it_excludes() -> None:
    ledger = zones()
    assert where(ledger, asked(only=["n3"])) == "n3"
    assert where(ledger, asked(exclude=["n1", "n2", "n3"])) == "n4"
    step(ledger, JobsSubmitted(1, (job("j1", asked(Resources(cpu=4000), only=["n3"])),)), 1.0)
    assert where(ledger, asked(only=["n3"])) == ""


@pytest.mark.parametrize(
    ("rules", "nodes"),
    [
        (["zone=a"], {"n1"}),
        (["zone!=c"], {"n1", "n4"}),
        (["zone"], {"n1", "n2", "n3"}),
        (["zone", "zone!=a"], {"n2", "n3"}),
        (["disk=ssd"], {"n4"}),
    ],
)
def test_labels_say_where_a_job_may_go(rules: list[str], nodes: set[str]) -> None:
    ledger = zones()
    found = set()
    for number in range(4):
        if name := where(ledger, asked(Resources(cpu=4000), labels=rules)):
            found.add(name)
            step(ledger, JobsSubmitted(1, (job(f"j{number}", asked(Resources(cpu=4000), labels=rules)),)), 1.0)
    assert found == nodes


def test_what_no_node_is_is_refused_with_what_they_are() -> None:
    ledger = zones()
    what, why, hint = said(ledger, asked(labels=["zone=b"]))
    assert (what, why) == ("asks for a node with label zone=b; there is none", "nodes have zone=a, zone=c")
    what, why, hint = said(ledger, asked(labels=["zome=a"]))
    assert why == "no node has a label zome; there are disk, zone" and hint == "did you mean zone?"
    what, why, _ = said(ledger, asked(labels=["zone=c", "disk=ssd"]))
    assert what == "asks for a node with label disk=ssd; there is none among the 2 nodes with label zone=c"
    what, _, _ = said(ledger, asked(Resources(cpu=9000), labels=["zone=c"]))
    assert what == "asks 9 cpu on one node; the largest of the 2 nodes in question lends 4 cpu (n2)"


@pytest.mark.parametrize("kind", ["only", "exclude"])
def test_a_node_that_nobody_knows_is_refused_with_the_one_that_may_be_meant(kind: str) -> None:
    names: dict[str, Any] = {kind: ["n33"]}
    what, _, hint = said(zones(), asked(**names))
    assert what == "unknown node 'n33'" and hint == "did you mean n3?"


def test_a_label_that_an_operator_gives_lets_a_job_start_that_waited_for_it() -> None:
    ledger = zones()
    step(ledger, JobsSubmitted(1, (job("j1", asked(Resources(cpu=4000), labels=["disk=ssd"])),)), 1.0)
    step(ledger, JobsSubmitted(1, (job("j2", asked(labels=["disk=ssd"])),)), 1.0)
    assert ledger.state.jobs["j2"].node == ""
    step(ledger, LabelsRequested(2, ("n2",), {"disk": "ssd"}, "op"), 2.0)
    assert ledger.state.jobs["j2"].node == "n2"
    step(ledger, LabelsRequested(3, ("n2", "n4"), {"disk": None}, "op"), 3.0)
    assert "disk" not in labels(ledger.state.nodes["n2"]) and where(ledger, asked(labels=["disk"])) == ""


def test_a_refusal_under_constraints_says_nothing_about_others() -> None:
    ledger = zones()
    step(ledger, JobsSubmitted(1, (job("j0", asked(Resources(cpu=4000), only=["n1"])),)), 1.0)
    jobs = (job("j1", asked(labels=["zone=a"])), job("j2", asked(labels=["zone=c"])), job("j3", Request(ONE)))
    step(ledger, JobsSubmitted(1, jobs), 1.0)
    assert [ledger.state.jobs[name].node != "" for name in ("j1", "j2", "j3")] == [False, True, True]
    over = Exited(allocation="j0.1", outcome=Outcome(cause=Cause.EXITED), returned=True)
    step(ledger, MessageReceived("n1", over), 2.0)
    assert ledger.state.jobs["j1"].node == "n1"


def test_an_explanation_has_a_step_for_each_constraint() -> None:
    ledger = zones()
    request = asked(Resources(cpu=4000), labels=["zone"], exclude=["n2"])
    step(ledger, JobsSubmitted(1, (job("j0", asked(only=["n1"])), job("j1", asked(only=["n3"])))), 1.0)
    why = explain.why(ledger.state, None, request, 1.0)
    assert [(one.what, one.left) for one in why.funnel] == [
        ("known", 4),
        ("not excluded (n2)", 3),
        ("with label zone", 2),
        ("large enough", 2),
        ("up", 2),
        ("offering", 2),
        ("with 4 cpu free", 0),
    ]
    by_node = {one.node: one.why for one in why.verdicts}
    assert by_node["n2"] == "is excluded" and by_node["n4"] == "has no label zone"
    assert why.hint == "with --cpus 3 it would start now on n1"


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_a_model_is_meant_by_a_part_of_its_name_or_by_a_glob() -> None:
    assert same_model("a100", "NVIDIA A100-SXM4-80GB") and not same_model("a10", "Tesla T4")
    assert same_model("*a100*80gb", "NVIDIA A100-SXM4-80GB") and not same_model("a100*", "NVIDIA A100-SXM4-80GB")


def test_gpus_are_of_the_model_that_is_asked_for_also_on_a_node_with_several() -> None:
    ledger = Ledger()
    join(ledger, with_gpus("n1", ("T4", 16), ("A100", 80), ("A100", 40)))
    found = place(ledger.state.nodes, ledger.state.index, asked(Resources(gpu=1000), gpu_model="a100"))
    assert isinstance(found, Placement) and [gpu.uuid for gpu in found.grant.gpus] == ["n1-gpu2"]
    large = place(
        ledger.state.nodes, ledger.state.index, asked(Resources(gpu=1000), gpu_model="a100", gpu_memory="60G")
    )
    assert isinstance(large, Placement) and [gpu.uuid for gpu in large.grant.gpus] == ["n1-gpu1"]
    what, why, _ = said(ledger, asked(Resources(gpu=3000), gpu_model="a100"))
    assert what == "asks for a node with 3 GPUs like a100; there is none"
    what, why, hint = said(ledger, asked(Resources(gpu=1000), gpu_model="A10G"))
    assert why == "there are T4, A100" and "A100" in hint
    _, why, _ = said(ledger, asked(Resources(gpu=1000), gpu_memory="100G"))
    assert why == "the largest has 80G (A100)"


def test_the_memory_that_sharers_of_a_gpu_ask_for_is_added_up() -> None:
    ledger = Ledger()
    join(ledger, with_gpus("n1", ("T4", 16)))
    tenth = Resources(cpu=100, gpu=100)
    for number in range(3):
        step(ledger, JobsSubmitted(1, (job(f"j{number}", asked(tenth, gpu_memory="6G")),)), 1.0)
    assert [ledger.state.jobs[f"j{number}"].node for number in range(3)] == ["n1", "n1", ""]
    why = explain.why(ledger.state, "j2", None, 1.0)
    assert "free are T4 with 4G" in {one.node: one.why for one in why.verdicts}["n1"]
    assert where(ledger, asked(tenth, gpu_memory="4G")) == "n1"
    assert where(ledger, Request(tenth)) == "n1"  # nothing in particular was asked for
    over = Exited(allocation="j0.1", outcome=Outcome(cause=Cause.EXITED), returned=True)
    step(ledger, MessageReceived("n1", over), 2.0)
    assert ledger.state.jobs["j2"].node == "n1"


def test_who_shares_a_gpu_without_asking_for_memory_counts_with_as_large_a_part_of_it() -> None:
    ledger = Ledger()
    join(ledger, with_gpus("n1", ("T4", 16)))
    step(ledger, JobsSubmitted(1, (job("j1", Request(HALF_GPU)),)), 1.0)
    assert where(ledger, asked(HALF_GPU, gpu_memory="8G")) == "n1"
    assert where(ledger, asked(HALF_GPU, gpu_memory="9G")) == ""


# --- against brute force ----------------------------------------------------------------------------------------------

STRATEGIES = [None, None, *Strategy]
USERS = ["ann", "bob", "eve"]
OWNERS = Policy(owner_rule=True)
STRONGER = {("landlock", "namespace"), ("landlock", "user"), ("namespace", "user")}
"""Walls that are asked for, and stronger ones that a node has."""


def some_facts(rng: random.Random, number: int) -> NodeFacts:
    models = [(rng.choice(("T4", "A100", "H100")), rng.choice((8, 16, 80))) for _ in range(rng.choice((0, 0, 1, 2)))]
    keys = {key: rng.choice("ab") for key in ("zone", "disk") if rng.random() < 0.6}
    guarded = {
        "walls": rng.choice(("user", "user", "namespace", "landlock", "none", "")),
        "owners": tuple(rng.sample(USERS, rng.randint(0, 2))),
        "trusts": rng.choice(("owner", "owner", "everyone")),
    }
    cores, priority = rng.randint(1, 4), rng.choice((1.0, 1.0, 2.0))
    return with_gpus(f"n{number}", *models, cores=cores, labels=keys, priority=priority, **guarded)


def some_request(rng: random.Random, names: list[str]) -> Request:
    wanted = Resources(rng.choice((300, 1000, 2000)), rng.choice((0, 0, 4)) * GIB, rng.choice((0, 0, 200, 500, 1000)))
    rules = [parse_label(rng.choice(("zone=a", "zone!=a", "zone", "disk=b", "disk!=b", "disk"))) for _ in range(2)]
    constraints = Constraints(
        only=tuple(rng.sample(names, rng.randint(1, len(names)))) if rng.random() < 0.2 else (),
        exclude=tuple(rng.sample(names, 1)) if rng.random() < 0.2 else (),
        labels=tuple(dict.fromkeys(rules[: rng.choice((0, 0, 1, 2))])),
        gpu_model=rng.choice(("", "t4", "*100")) if wanted.gpu else "",
        gpu_memory=rng.choice((0, 4, 9, 40)) * GIB if wanted.gpu else 0,
        walls=rng.choice((Walls.NONE, Walls.NONE, *Walls)),
    )
    user, bare = rng.choice(USERS), rng.random() < 0.1
    preferred = tuple(rng.sample(names, 1)) if rng.random() < 0.1 else ()
    strategy = rng.choice(STRATEGIES)
    return Request(wanted, nodes=preferred, strategy=strategy, constraints=None if bare else constraints, user=user)


def meets_by_hand(node: Node, request: Request) -> bool:
    """The same said once more, plainly."""
    asked_for, here, told = request.constraints or Constraints(), labels(node), node.facts
    assert node.capacity is not None
    if told.walls not in ("user", "namespace") and told.trusts == "owner" and request.user not in told.owners:
        return False
    if asked_for.walls not in (Walls.NONE, told.walls) and (asked_for.walls, told.walls) not in STRONGER:
        return False
    if asked_for.only and node.facts.name not in asked_for.only:
        return False
    if node.facts.name in asked_for.exclude:
        return False
    for rule in asked_for.labels:
        value = here.get(rule.key)
        if rule.sign is Sign.IS and value != rule.value:
            return False
        if rule.sign is Sign.IS_NOT and value == rule.value:
            return False
        if rule.sign is Sign.THERE and value is None:
            return False
    wanted, capacity = request.resources, node.capacity
    if not capacity.fits(Resources(wanted.cpu, wanted.memory)):
        return False
    count = 0
    for gpu in node.facts.gpus:
        model = asked_for.gpu_model.strip("*").lower() in gpu.model.lower()
        memory = gpu.memory - sum(_granted(node, gpu.uuid, gpu.memory))
        enough = not asked_for.gpu_memory or memory >= asked_for.gpu_memory
        if model and enough and capacity.gpus.get(gpu.uuid, 0) >= min(MILLI, wanted.gpu):
            count += 1
    return not wanted.gpu or count >= max(1, wanted.gpu // MILLI)


def _granted(node: Node, uuid: str, total: int) -> list[int]:
    shares = [share for one in node.allocations.values() for share in one.grant.gpus if share.uuid == uuid]
    return [total if share.milli == MILLI else share.memory or total * share.milli // MILLI for share in shares]


@pytest.mark.parametrize("part", range(4))
def test_a_place_is_found_exactly_where_one_is_in_many_random_states(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "CHANGES_KEPT", 3)  # so that views are made anew as well as brought up to date
    rng, seen, states = random.Random(part), Counter[str](), 0
    while states < tries(1000, 150):
        ledger = Ledger(policy=OWNERS)
        names = [f"n{number}" for number in range(rng.randint(1, 7))]
        for number in range(len(names)):
            join(ledger, some_facts(rng, number))
        for number in range(rng.randint(1, 30)):
            request = some_request(rng, names)
            found = place(ledger.state.nodes, ledger.state.index, request, ledger.state.policy)
            fitting = [
                name
                for name in names
                if name in ledger.state.index and meets_by_hand(ledger.state.nodes[name], request)
            ]
            assert isinstance(found, Placement) == bool(fitting), f"{request}: {found}, {fitting}"
            if isinstance(found, Placement):
                check_best(ledger, request, found, fitting)
            check_words(ledger, request)
            seen["placed" if fitting else "refused"] += 1
            states += 1
            happen(ledger, rng, number, request, names)
    assert min(seen.values()) > states / 6, seen


def test_gpu_memory_that_comes_back_is_found_also_where_more_of_another_device_is_free() -> None:
    ledger = Ledger()
    join(ledger, with_gpus("n1", ("T4", 16), ("T4", 16)))
    for number, (gpu, memory) in enumerate([(100, 16), (200, 3), (200, 12)]):
        wanted = asked(Resources(gpu=gpu), gpu_memory=memory)
        step(ledger, JobsSubmitted(number, (job(f"j{number}", wanted),)), 1.0)
    last = ledger.state.jobs["j2"].allocation
    step(ledger, MessageReceived("n1", Started(allocation=last)), 1.0)
    assert where(ledger, asked(Resources(gpu=100), gpu_memory=8)) == ""
    step(
        ledger, MessageReceived("n1", Exited(allocation=last, outcome=Outcome(cause=Cause.EXITED), returned=True)), 2.0
    )
    assert where(ledger, asked(Resources(gpu=100), gpu_memory=8)) == "n1"


@pytest.mark.parametrize("more", [{}, {"labels": ["zone!=a"]}, {"gpu_model": "T4"}, {"apart": ["j0"]}])
def test_who_asks_for_no_gpu_memory_shares_a_gpu_of_which_less_than_none_is_free(more: dict[str, Any]) -> None:
    ledger = Ledger()
    join(ledger, with_gpus("n1", ("T4", 16)))
    for number, wanted in enumerate((asked(Resources(gpu=250), gpu_memory=10), asked(Resources(gpu=500)))):
        step(ledger, JobsSubmitted(number, (job(f"j{number}", wanted),)), 1.0)
    node = ledger.state.nodes["n1"]
    assert node.capacity is not None and node.capacity.gpu_memory == {"n1-gpu0": -2 * GIB}
    assert where(ledger, asked(Resources(gpu=250), **more)) == ("" if "apart" in more else "n1")
    step(ledger, JobsSubmitted(2, (job("j2", asked(Resources(gpu=250), **more)),)), 1.0)
    assert bool(ledger.state.jobs["j2"].allocation) is ("apart" not in more)
    assert where(ledger, asked(Resources(gpu=250), gpu_memory=1)) == ""


def check_words(ledger: Ledger, request: Request) -> None:
    """A node meets the constraints exactly if it meets each of them, and is told what it misses else."""
    each = conditions(request, owners=True)
    for name, node in ledger.state.nodes.items():
        missed = unmet(node.facts, labels(node), request)
        assert meets(node, labels(node), request) == (missed is None), f"{name}: {missed}"
        first = next((one.step for one in each if not one.met(node.facts, labels(node))), None)
        assert first == (missed.step if missed is not None else None), name


def check_best(ledger: Ledger, request: Request, found: Placement, fitting: list[str]) -> None:
    """It is one of those that can take it, and the best of its step of priority where all of them are compared."""
    assert found.node in fitting
    weights = ledger.state.policy.weights_of(request)

    def sure(name: str) -> float:
        node = ledger.state.nodes[name]
        assert node.capacity is not None
        return confidence(scores(node, node.capacity, request, weights, Context(ledger.state.index.mix)), weights)

    rivals = [name for name in request.nodes if name in fitting] or fitting
    if request.strategy in (Strategy.PACK, Strategy.SPREAD) and rivals is fitting:
        first = [
            name for name in rivals if bool(ledger.state.nodes[name].allocations) is (request.strategy is Strategy.PACK)
        ]
        rivals = first if first and not (request.constraints and request.constraints.only) else rivals
    mine = ledger.state.nodes[found.node].facts.priority
    same = [name for name in rivals if ledger.state.nodes[name].facts.priority == mine]
    if len(same) <= ledger.state.policy.candidates:
        assert found.confidence == pytest.approx(max(map(sure, same)))


def happen(ledger: Ledger, rng: random.Random, number: int, request: Request, names: list[str]) -> None:
    """The request is made, or something else comes about."""
    dice, at = rng.random(), 1.0 + number
    if dice < 0.6:
        ledger.handle(JobsSubmitted(1, (job(f"j{number}", request, user=request.user),)), at)
    elif dice < 0.8 and ledger.state.allocations:
        one = rng.choice(list(ledger.state.allocations.values()))
        ledger.handle(MessageReceived(one.node, Exited(one.id, Outcome(cause=Cause.EXITED), returned=True)), at)
    elif dice < 0.9:
        ledger.handle(LabelsRequested(1, (rng.choice(names),), {"zone": rng.choice(("a", "b", None))}, "op"), at)
    elif dice < 0.95:
        name = rng.choice(names)
        ledger.handle(NodeDown(name, ledger.state.nodes[name].session), at)
    ledger.settle(at)
    ledger.check()


def test_views_that_are_not_asked_for_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "ENTRIES_KEPT", 5)
    ledger = zones()
    for _ in range(3):
        for rule, node in (("zone=a", "n1"), ("disk=ssd", "n4"), ("zone!=c", "n1"), ("zone", "n1")):
            assert where(ledger, asked(labels=[rule])) == node
    assert len(ledger.state.index._kinds) < 4


def test_a_ledger_made_again_finds_the_same_nodes() -> None:
    ledger = zones()
    step(ledger, LabelsRequested(1, ("n4",), {"zone": "d"}, "op"), 1.0)
    again = resumed(ledger)
    assert where(again, asked(labels=["zone=d"])) == "n4" == where(ledger, asked(labels=["zone=d"]))
