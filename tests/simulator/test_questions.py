"""A question changes nothing: thousands of them, about jobs that wait and requests that nobody made, in grids of all
kinds, and the state of the grid is what it was, bit for bit."""

import random
from typing import Any

import pytest

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import Command
from distributed_grid.coordinator.core.explain import why
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.placement import Constraints, Local, Strategy
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from distributed_grid.simulator import run
from tests.depth import DEEP, tries

QUESTIONS = tries(5000, 2000)
EACH = 40 if DEEP else 16
"""Questions to one state."""
MEMOS = {"_kinds", "_everything", "_entries"}
"""What the index remembers of what follows from the rest, so that it need not be worked out again: as
`GridState.feasible_nodes` and `Preemptions.preemptible` do."""


def fingerprint(ledger: Ledger) -> Any:
    """All that decides. What is put off until somebody looks (nodes that are noted to be laid elsewhere, entries of
    heaps that are not true any more) is done first."""
    state = ledger.state
    index, queue = state.index, state.queue
    where = dict(index.flush())
    first = [(priority, queue.first(priority)) for priority in Priority]
    order = [list(queue.order[priority]) for priority in Priority]
    standings = [
        (key, one.rank, one.count, queue.place(one), one.place, list(one.lines), repr(one.blocks))
        for key, one in queue.standings.items()
    ]
    lines = [(key, queue.head(one), list(one.heap), one.entered, one.blocked) for key, one in queue.lines.items()]
    size_classes = [
        (gpus, cores, list(row))
        for tier in index._tiers
        for gpus, one in tier.size_classes.items()
        for cores, row in one.by_cores.items()
    ]
    left_out = MEMOS | {"affinity", "_nodes", "_tiers"}
    known = {name: repr(value) for name, value in vars(index).items() if name not in left_out}
    placements = {name: id(one) for name, one in state.placements.items()}
    affinity = {name: repr(value) for name, value in vars(index.affinity).items() if name != "_jobs"}
    rest = repr(
        (
            state.keys,
            state.rendezvous,
            state.preempting.preemptors,
            state.facts,
            state.dependencies,
            state.deadlines.heap,
        )
    )
    return (
        checkpoint.encode(checkpoint.take(ledger)),
        where,
        first,
        order,
        standings,
        lines,
        size_classes,
        known,
        affinity,
        placements,
        rest,
    )


def some_request(rng: random.Random, state: GridState) -> Request:
    """What somebody might ask for, more often than not in vain."""
    names = [*state.nodes, "nobody"]
    jobs = [*state.jobs, "j-gone"]
    asked = Constraints(
        only=tuple(rng.sample(names, min(2, len(names)))) if rng.random() < 0.1 else (),
        exclude=(rng.choice(names),) if rng.random() < 0.1 else (),
        gpu_memory=rng.choice((2, 8, 32)) * GIB if rng.random() < 0.1 else 0,
        near=(rng.choice(jobs),) if rng.random() < 0.1 else (),
        apart=(rng.choice(jobs),) if rng.random() < 0.1 else (),
    )
    return Request(
        Resources(rng.choice((100, 500, 1, 2, 4, 9)) * 100, rng.choice((0, 1, 4)) * GIB, rng.choice((0, 0, 1)) * MILLI),
        rng.choice(tuple(Priority)),
        nodes=(rng.choice(names),) if rng.random() < 0.2 else (),
        immediate=rng.random() < 0.1,
        gang=rng.choice((0, 0, 0, 2, 3)),
        strategy=rng.choice((None, *Strategy)),
        local=Local(host=rng.choice(names)) if rng.random() < 0.1 else None,
        constraints=asked if asked != Constraints() else None,
    )


def ask(rng: random.Random, state: GridState) -> Any:
    """A question about a job that lives, or about a request."""
    user = rng.choice([job.user for job in state.jobs.values()] or ["ann"])
    name = rng.choice(list(state.jobs)) if state.jobs and rng.random() < 0.4 else None
    later = rng.choice((0.0, 0.0, 0.7, 5.0))
    return why.why(state, name, None if name else some_request(rng, state), state.now + later, user)


def test_questions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    settle, rng = Ledger.settle, random.Random(7)
    asked, kept, refused = 0, 0, 0

    def questioned(self: Ledger, now: float) -> list[Command]:
        nonlocal asked, kept, refused
        out = settle(self, now)
        if asked < QUESTIONS and rng.random() < 0.2 and self.state.jobs:
            before = fingerprint(self)
            for _ in range(EACH):
                refused += not ask(rng, self.state).chosen
            assert fingerprint(self) == before
            asked += EACH
            kept += bool(self.state.reservations.by_job) and len(self.state.queue.standings) > 1
        return out

    monkeypatch.setattr(Ledger, "settle", questioned)
    for seed in range(200):
        if asked >= QUESTIONS:
            break
        assert not run(seed).what
    assert asked >= QUESTIONS and EACH * kept > QUESTIONS / 100 and 0.2 < refused / asked < 0.99
