"""A pass that visits only the lines that may fit decides as one that visits all of them, in the order of service."""

import random
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import CancelRequested, Command, JobsSubmitted, MessageReceived, Tick
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.policy import Policy, Sharing
from distributed_grid.coordinator.core.queue import order, queue, scheduler
from distributed_grid.coordinator.core.queue.queue import Line, Standing, need_of
from distributed_grid.coordinator.core.queue.reservations import released
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.eventlog.decisions import decisions
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, ServiceOrder
from distributed_grid.protocol.messages import Exited, Started
from distributed_grid.protocol.messages.rights import Rights, Rules
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.core.scene import facts, job, join, offer, step
from tests.depth import tries


def visit_all(
    state: GridState, grown: list[Node], hopeless: list[scheduler.Hopeless], refused: dict[Line, None]
) -> list[str]:
    """The pass in plain terms: every line is visited, and taken off until the end where it cannot start."""
    lines_of, more = state.queue, list[str]()
    passed: list[tuple[int, Line]] = []
    done: list[tuple[float, int, Standing]] = []
    waiting: dict[Standing, None] = {}

    def waits(line: Line) -> list[str]:
        if line.standing in waiting:
            return []
        waiting[line.standing] = None
        return scheduler._reserve(state, line)

    full = False
    for priority, heap in lines_of.order.items():
        while not (full or more) and (standing := lines_of.first(priority)) is not None:
            line = lines_of.first_line(standing)
            if line is None:
                done.append(heappop(heap))
            elif line.blocked and not scheduler._has_grown(state, grown, line.request):
                passed.append(heappop(standing.lines))
                more = waits(line)
            elif not scheduler._serve(state, line, hopeless):
                refused[line] = None
                if not line.excluded:  # else it is out of the order already
                    passed.append(heappop(standing.lines))
                    more = waits(line)
            else:
                full = len(lines_of.lines) > 1 and not state.index.candidates(lines_of.least, 1)
                more = released(state, line.standing.user)
    for turn, line in passed:
        if line.entered == turn:
            heappush(line.standing.lines, (turn, line))
    for rank, turn, standing in done:
        if standing.place == (rank, turn):
            heappush(lines_of.order[standing.priority], (rank, turn, standing))
    for standing in waiting:
        if standing.included and (first := lines_of.first_line(standing)) is not None:
            standing.place = queue.NOWHERE
            lines_of.enter(standing, lines_of.head(first)[0])
    return more


RULES = Rules(users={"bob": Rights(cores=3000)})
DONE = Outcome(cause=Cause.EXITED)


class Both:
    """Two ledgers with the same events: one visits what may fit, one visits all."""

    def __init__(self, patch: pytest.MonkeyPatch, rng: random.Random) -> None:
        self.rng, self.patch, self.now, self.number = rng, patch, 1.0, 0
        policy = Policy(rights=RULES, sharing=Sharing(order=rng.choice(tuple(ServiceOrder))))
        self.ledgers = [Ledger(policy=policy) for _ in range(2)]
        self.sparing = scheduler._serve_in_order
        self.nodes = [
            facts(f"n{number}", cores=rng.choice((2, 4, 8)), memory=rng.choice((4, 16)) * GIB, gpus=rng.choice((0, 2)))
            for number in range(rng.randint(1, 3))
        ]
        for of in self.nodes:
            self.each(partial(join, of=of, now=1.0, cores=()))

    def each(self, play: Callable[[Ledger], list[Command]]) -> None:
        said = []
        for ledger, serve in zip(self.ledgers, (self.sparing, visit_all), strict=True):
            self.patch.setattr(scheduler, "_serve_in_order", serve)
            said.append(decisions(play(ledger)))
        assert said[0] == said[1]
        assert checkpoint.differs(*map(checkpoint.take, self.ledgers)) == ""

    def request(self) -> Request:
        rng = self.rng
        cpu, memory = rng.choice((300, 500, 1000, 1000, 2000, 3000, 8000)), rng.choice((0, 1, 2, 3, 9)) * GIB
        gpu = rng.choice((0, 0, 0, 500, 1000, 2000))
        others = Constraints(apart=(f"j{rng.randint(0, self.number)}",)) if self.number and rng.random() < 0.1 else None
        return Request(
            Resources(cpu, memory + rng.randint(0, 3), gpu),
            rng.choice((Priority.NORMAL, Priority.NORMAL, Priority.HIGH)),
            constraints=others,
        )

    def play(self) -> None:
        rng, state = self.rng, self.ledgers[0].state
        self.now += rng.choice((0.0, 0.3, 2.0, 400.0))
        kind = rng.randrange(6)
        if kind <= 1:
            new = []
            for _ in range(rng.choice((1, 4, 12))):
                limit = rng.choice((0.0, 5.0, 100.0))
                new.append((f"j{self.number}", self.request(), rng.choice(("ann", "bob", "eve")), limit))
                self.number += 1

            def submitted() -> JobsSubmitted:
                jobs = (job(name, of, self.now, user, time_limit=limit) for name, of, user, limit in new)
                return JobsSubmitted(self.number, tuple(jobs))

            self.each(lambda ledger: step(ledger, submitted(), self.now))
        elif kind == 2:
            of = rng.choice(self.nodes)
            cores = of.cores[: rng.randint(0, len(of.cores))]
            told = offer(of, self.number, 1e9, cores=cores, memory=rng.randint(0, 16) * GIB)
            self.each(lambda ledger: step(ledger, MessageReceived(of.name, told), self.now))
        elif kind == 3 and state.allocations:
            one = rng.choice(list(state.allocations.values()))
            over = Exited(allocation=one.id, outcome=DONE, returned=True)
            message = over if one.started else Started(allocation=one.id)
            self.each(lambda ledger: step(ledger, MessageReceived(one.node, message), self.now))
        elif kind == 4 and state.queue.turns:
            name = rng.choice(list(state.queue.turns))
            self.each(lambda ledger: step(ledger, CancelRequested(self.number, (name,)), self.now))
        else:
            self.each(lambda ledger: step(ledger, Tick(), self.now))


@settings(max_examples=tries(10, 3), deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from((0, 2, 32)))
def test_a_pass_decides_as_one_that_visits_all_lines(seed: int, few: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "FEW", few)
        patch.setattr(queue, "STALE_MOST", few)
        both = Both(patch, random.Random(seed))
        for _ in range(60):
            both.play()


@settings(max_examples=tries(200, 25), deadline=None)
@given(st.integers(0, 1 << 32))
def test_new_lines_come_as_their_users_are_ranked_while_they_are_served(seed: int) -> None:
    rng, lines_of = random.Random(seed), queue.Queue()
    for number in range(rng.randint(2, 20)):
        request = Request(Resources(rng.randint(1, 6) * 1000), rng.choice((Priority.NORMAL, Priority.HIGH)))
        lines_of.add(f"j{number}", (rng.choice(("ann", "bob")), request, rng.choice((10.0, 100.0)), False), number)
    those = order.OrderOfNew(lines_of, lines_of.lines.values())
    left = [*lines_of.lines.values()]
    while left:
        first = min(left, key=lambda line: order.place_in_order(lines_of, line))
        assert those.first() is first
        turn, name = lines_of.head(first)
        if served := rng.random() < 0.5:
            lines_of.remove(name)
        if not (served and first.count):
            left.remove(first)
        for standing in lines_of.of_user.get(first.standing.user, ()):  # for the better, too, where others are overdue
            turns = [lines_of.head(line)[0] for line in left if line.standing is standing]
            overdue = min(turns, default=-1) if rng.random() < 0.3 else -1
            lines_of.rank(standing, queue.Rank(rng.random(), "", overdue, rng.random()))
        if served:
            those.served(first)
        else:
            those.skip(first)
    assert those.first() is None


@given(st.integers(0, 1 << 20), st.integers(0, 1 << 40), st.sampled_from((0, 500, 1000, 4000)))
def test_what_a_request_needs_at_least_is_no_more_than_it_asks_for(cpu: int, memory: int, gpu: int) -> None:
    wanted = Resources(cpu, memory, gpu)
    least = need_of(Request(wanted))
    assert least is not None and least.fits(wanted) and wanted.fits(Resources(cpu, memory, gpu))
    assert least.memory * 8 >= memory * 7 and least.gpu == gpu


def test_lines_that_do_not_fit_a_grown_node_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, of = Ledger(), facts("n1", cores=8, memory=64 * GIB)
    join(ledger, of, 1.0, cores=())
    many = tuple(job(f"j{n}", Request(Resources(1000, 16 * GIB + n)), 1.0) for n in range(500))
    step(ledger, JobsSubmitted(1, many), 1.0)
    looked: list[Request] = []
    plain = scheduler._has_grown

    def count(state: GridState, grown: list[Node], request: Request) -> bool:
        looked.append(request)
        return plain(state, grown, request)

    monkeypatch.setattr(scheduler, "_has_grown", count)
    step(ledger, MessageReceived("n1", offer(of, 2, cores=(0, 1), memory=8 * GIB)), 2.0)
    assert not looked
    step(ledger, MessageReceived("n1", offer(of, 3, cores=(0, 1), memory=16 * GIB + 20)), 3.0)
    assert 0 < len(looked) < 50 and len(ledger.state.allocations) == 1


def test_a_pass_ends_where_nobody_may_start_and_nobody_may_get_a_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, done = Ledger(), Outcome(cause=Cause.EXITED)
    join(ledger, facts("n1", cores=8), 1.0)
    large, small = Request(Resources(6000)), Request(Resources(1000))
    step(ledger, JobsSubmitted(1, (job("large", large, 1.0, time_limit=100.0), job("small", small, 1.0))), 1.0)
    many = [job(f"j{n}", Request(Resources(4000 if n else 3000)), 1.0, user=f"u{n}") for n in range(60)]
    step(ledger, JobsSubmitted(1, tuple(many)), 1.0)
    seen: list[Line] = []
    plain = order.Order.skip

    def count(of_pass: order.Order, line: Line) -> bool:
        seen.append(line)
        return plain(of_pass, line)

    monkeypatch.setattr(order.Order, "skip", count)
    step(ledger, MessageReceived("n1", Exited("small.1", done, True)), 2.0)
    del seen[:]
    step(ledger, MessageReceived("n1", offer(facts("n1", cores=8), 2, cores=(6, 7), counting=("large.1",))), 3.0)
    assert len(ledger.state.reservations.by_job) == 1 and 0 < len(seen) < 10
    assert list(ledger.state.allocations) == ["large.1"]
    step(ledger, MessageReceived("n1", Exited("large.1", done, True)), 4.0)
    step(ledger, MessageReceived("n1", offer(facts("n1", cores=8), 3)), 4.0)
    assert len(ledger.state.allocations) == 2


def test_users_of_whose_jobs_none_fits_are_passed_by_where_none_gets_a_reservation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger, done = Ledger(), Outcome(cause=Cause.EXITED)
    join(ledger, facts("n1", cores=8), 1.0)
    large, small = Request(Resources(6000)), Request(Resources(1000))
    step(ledger, JobsSubmitted(1, (job("large", large, 1.0, time_limit=100.0), job("small", small, 1.0))), 1.0)
    many = [job(f"j{n}", Request(Resources(7000)), 1.0, user=f"u{n}", time_limit=100.0) for n in range(60)]
    last = job("last", Request(Resources(2000)), 1.0, user="last", time_limit=1e6)
    step(ledger, JobsSubmitted(1, (*many, last)), 1.0)
    assert len(ledger.state.reservations.by_job) == 1
    seen: list[Line] = []
    plain = order.Order.skip

    def count(of_pass: order.Order, line: Line) -> bool:
        seen.append(line)
        return plain(of_pass, line)

    monkeypatch.setattr(order.Order, "skip", count)
    step(ledger, MessageReceived("n1", Exited("small.1", done, True)), 2.0)
    assert ledger.state.queue.line("last") in seen and len(seen) < 10
    step(ledger, MessageReceived("n1", Exited("large.1", done, True)), 3.0)
    assert len(ledger.state.allocations) == 1, "who was passed by is in the order again"
    first = next(iter(ledger.state.allocations))
    step(ledger, MessageReceived("n1", Exited(first, done, True)), 4.0)
    assert len(ledger.state.allocations) == 1 and first not in ledger.state.allocations
