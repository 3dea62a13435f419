"""What is said of a request is what the ledger does with it, in a thousand grids drawn by lot; the test double is
nothing but the lot: the ledger, the matching and the explanation are the product's."""

import functools
import random
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from distributed_grid.coordinator.core.commands import (
    Accepted,
    Command,
    Event,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
)
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.explain.why import changes
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Refusal
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.coordinator.core.queue.admission import refusal
from distributed_grid.coordinator.core.queue.scheduler import would
from distributed_grid.protocol.jobs import Priority, Request, State
from distributed_grid.protocol.messages import Stale, Started
from distributed_grid.protocol.placement import NO_CONSTRAINTS, Constraints, LabelRule, Sign
from distributed_grid.protocol.resources import GIB, MIB, Resources, parse_cpu, parse_gpu, parse_memory
from tests.coordinator.core.scene import facts, job, join
from tests.depth import DEEP, tries

STATES = tries(1000, 100)
PARTS = 5 if DEEP else 1


def amount(lot: random.Random) -> Resources:
    drawn = Resources(
        cpu=lot.choice([0, 250, 500, 1000, 1500, 2000, 3000, 5000]),
        memory=lot.choice([0, 0, GIB // 3, GIB, 3 * GIB, 6 * GIB]),
        gpu=lot.choice([0, 0, 0, 250, 500, 1000, 2000]),
    )
    return drawn or Resources(cpu=1000)


def request(lot: random.Random) -> Request:
    wanted, nodes = amount(lot), [f"n{number}" for number in range(5)]
    asked = Constraints(
        only=tuple(lot.sample(nodes, 2)) if lot.random() < 0.1 else (),
        exclude=(lot.choice(nodes),) if lot.random() < 0.1 else (),
        labels=(LabelRule("zone", lot.choice([Sign.IS, Sign.IS_NOT]), lot.choice("ab")),) if lot.random() < 0.1 else (),
        gpu_model=lot.choice(["T4", "A100"]) if wanted.gpu and lot.random() < 0.2 else "",
        gpu_memory=lot.randint(1, 20) * GIB if wanted.gpu and lot.random() < 0.4 else 0,
        apart=(lot.choice(["r0", "r1"]),) if lot.random() < 0.1 else (),
    )
    constraints = asked if asked != NO_CONSTRAINTS else None
    return Request(wanted, priority=lot.choice(list(Priority)), constraints=constraints)


def step(ledger: Ledger, event: Event, now: float) -> list[Command]:
    """As in scene.py, without looking through the whole ledger each time: other tests do."""
    return ledger.handle(event, now) + ledger.settle(now)


def grid(lot: random.Random, policy: Policy = DEFAULT) -> Ledger:
    """Up to five nodes, some away, some that refused something just now; jobs that run there and jobs that wait."""
    ledger = Ledger(policy=policy)
    for number in range(lot.randint(0, 5)):
        memory = lot.randint(1, 8) * GIB + lot.randint(0, 2) * (MIB // 3)
        labels = {"zone": lot.choice("ab")}
        join(ledger, facts(f"n{number}", lot.randint(1, 4), memory, lot.choice([0, 0, 1, 2]), labels=labels))
    for number in range(lot.randint(0, 6)):
        limit = lot.choice([0.0, 0.0, 60.0, 600.0])
        one = job(f"r{number}", request(lot), user=lot.choice(["ann", "bob"]), time_limit=limit)
        step(ledger, JobsSubmitted(1, (one,)), 0.0)
        if (name := one.allocation) and lot.random() < 0.8:
            stale = Stale(allocation=name, reason="busy", device=lot.choice(["", "0", "memory", f"{one.node}-gpu0"]))
            step(ledger, MessageReceived(one.node, stale if lot.random() < 0.2 else Started(allocation=name)), 0.5)
    for name in list(ledger.state.nodes):
        if lot.random() < 0.1:
            step(ledger, NodeDown(name, f"session-{name}"), 0.6)
    return ledger


def starts(ledger: Ledger, wanted: Request) -> tuple[str, object] | None:
    """Where the ledger starts this in the pass after its submit; None: it does not, or refuses it."""
    step(ledger, JobsSubmitted(1, (job("asked", wanted),)), 1.0)
    one = ledger.state.jobs.get("asked")
    return (one.node, one.grant) if one is not None and one.state is State.STARTING else None


@pytest.mark.parametrize("part", range(PARTS))
def test_what_would_start_starts_and_else_a_change_that_is_named_makes_it_and_no_smaller_one(part: int) -> None:
    seen = Counter[str]()
    for seed in range(part, STATES, PARTS):
        lot = random.Random(seed)
        ledger, wanted = grid(lot), request(lot)
        if (refused := refusal(ledger.state, 1, wanted)) is not None and refused.code == "bad-value":
            continue  # it names a node that there is not; asking about it is refused as well
        why = explain.why(ledger.state, None, wanted, 1.0, "ann")
        seen[why.reason.code] += 1
        place = functools.partial(would, ledger.state, user="ann", lasts=0.0, now=1.0)
        found = changes(ledger.state, wanted, place) if not why.chosen else []
        for change in found:
            seen[change.what] += 1
            less = smaller(change.what, wanted, change.request)
            assert less is None or isinstance(place(less), Refusal), f"seed {seed}"
        if found and lot.random() < 0.7:
            change = lot.choice(found)
            assert why.hint == found[0].text
            if change.what in AMOUNTS:
                assert said(change.text) == AMOUNTS[change.what](change.request), change.text
            started = starts(ledger, change.request)
            assert started is not None and started[0] == change.node, f"seed {seed}: {change.text}"
        else:
            assert (starts(ledger, wanted) or ("", None)) == (why.chosen, why.grant), f"seed {seed}"
    assert min(seen[code] for code in ("Fits", "Resources", "NoOffers", "NeverFits")) > STATES // PARTS // 100
    assert min(seen[what] for what in ("cpu", "memory", "gpu")) > STATES // PARTS // 200, seen
    assert sum(seen[what] for what in ("gpu-memory", "only", "label zone=a", "gpu-model")) > STATES // PARTS // 200, (
        seen
    )


AMOUNTS: dict[str, Callable[[Request], int]] = {
    "cpu": lambda request: request.resources.cpu,
    "memory": lambda request: request.resources.memory,
    "gpu": lambda request: request.resources.gpu,
    "gpu-memory": lambda request: request.constraints.gpu_memory if request.constraints else 0,
}


def said(text: str) -> int:
    """The amount that the words name, as the command line would read it."""
    _, option, value = text.split()[:3]
    if option == "--gpu-memory" and text.startswith("without"):
        return 0
    read = {"--cpus": parse_cpu, "--mem": parse_memory, "--gpus": parse_gpu, "--gpu-memory": parse_memory}
    return read[option](value)


def smaller(what: str, wanted: Request, changed: Request) -> Request | None:
    """Asking for a step less of a change; None: that is what was asked for, or there is no less of it."""
    if what not in AMOUNTS:
        return None
    steps = {"cpu": 1, "memory": MIB, "gpu": 10 if changed.resources.gpu < 1000 else 1000, "gpu-memory": MIB}
    more = AMOUNTS[what](changed) + steps[what]
    if more >= AMOUNTS[what](wanted):
        return None
    if what == "gpu-memory":
        assert wanted.constraints is not None
        return msgspec.structs.replace(wanted, constraints=msgspec.structs.replace(wanted.constraints, gpu_memory=more))
    return msgspec.structs.replace(wanted, resources=msgspec.structs.replace(wanted.resources, **{what: more}))


def test_nothing_is_changed_by_asking() -> None:
    lot = random.Random(7)
    ledger = grid(lot)
    before = [(name, node.capacity.left if node.capacity else None) for name, node in ledger.state.nodes.items()]
    explain.why(ledger.state, None, Request(Resources(cpu=9000)), 1.0)
    assert [
        (name, node.capacity.left if node.capacity else None) for name, node in ledger.state.nodes.items()
    ] == before
    out = step(ledger, JobsSubmitted(1, (job("a", Request(Resources(cpu=1))),)), 1.0)
    assert any(isinstance(one, Accepted) for one in out)


def test_gpu_memory_is_named_as_small_as_a_reservation_leaves_it() -> None:
    ledger = Ledger()
    join(ledger, facts("n0", cores=4, gpus=1))  # a GPU of 16 GiB

    def ask(name: str, milli: int, gib: int) -> None:
        more = Constraints(gpu_memory=gib * GIB)
        one = Request(Resources(cpu=500, gpu=milli), priority=Priority.HIGH, constraints=more)
        step(ledger, JobsSubmitted(1, (job(name, one, time_limit=60.0),)), 0.0)

    ask("runs", 250, 8)
    ask("waits", 500, 11)
    wanted = Request(Resources(cpu=500, gpu=250), constraints=Constraints(gpu_memory=12 * GIB))
    place = functools.partial(would, ledger.state, user="bob", lasts=0.0, now=1.0)
    assert [change.text for change in changes(ledger.state, wanted, place)] == [
        "with --gpu-memory 5120M it would start now on n0"
    ]
