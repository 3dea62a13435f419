"""The first of a user that cannot start has a node kept for it, and what starts behind it never keeps it waiting."""

import math
import random
from heapq import heappop, heappush

import msgspec
import pytest

from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    RunTimesPredicted,
    Send,
    Tick,
)
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Group, Refusal
from distributed_grid.coordinator.core.policy import Policy, Sharing
from distributed_grid.coordinator.core.queue import reservations
from distributed_grid.coordinator.core.queue.queue import Reservations
from distributed_grid.coordinator.core.queue.reservations import STUCK, Ask
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, ServiceOrder, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Started, Suspended
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.text import clock
from tests.coordinator.core.scene import facts, job, join, offer, step
from tests.depth import tries

PATIENT = Policy(suspect_after=1e9, disconnected_after=1e9, lost_after=1e9)
"""Nobody sends heartbeats here."""
BY_SHARE = Sharing(order=ServiceOrder.SHARE)
BY_WAITING = Sharing(head_start=10.0, shortest=1.0, usual=20.0)
"""By waiting time, in a grid whose jobs last for seconds."""


def grid(*cores: int, sharing: Sharing = BY_SHARE) -> Ledger:
    """By share, unless said otherwise: jobs of one user come by their turn."""
    ledger = Ledger(policy=msgspec.structs.replace(PATIENT, sharing=sharing))
    for number, count in enumerate(cores, 1):
        join(ledger, facts(f"n{number}", count), expires_in=1e9)
    return ledger


def ask(
    ledger: Ledger, name: str, cores: float, now: float, limit: float = 0.0, user: str = "ann",
    priority: Priority = Priority.MEDIUM,
) -> list[Command]:  # fmt: skip
    request = Request(Resources(cpu=int(cores * 1000)), priority)
    one = job(name, request, now, user, time_limit=limit, grace=0.0)
    return ledger.handle(JobsSubmitted(1, (one,)), now) + ledger.settle(now)


def end(ledger: Ledger, name: str, now: float) -> list[Command]:
    allocation = ledger.state.jobs[name].allocation
    over = Exited(allocation, Outcome(cause=Cause.EXITED), True)
    return ledger.handle(MessageReceived(ledger.state.jobs[name].node, over), now) + ledger.settle(now)


def run(ledger: Ledger, *names: str, now: float) -> None:
    for name in names:
        step(
            ledger,
            MessageReceived(ledger.state.jobs[name].node, Started(allocation=ledger.state.jobs[name].allocation)),
            now,
        )


def states(ledger: Ledger, *names: str) -> list[str]:
    return [ledger.state.jobs[name].node or ledger.state.jobs[name].state.value for name in names]


def frozen(ledger: Ledger, name: str, now: float, why: str = "busy", lasted: float = 0.0) -> list[Command]:
    allocation = ledger.state.jobs[name].allocation
    message = Suspended(allocation=allocation, why=why, lasted=lasted, in_all=lasted)
    return step(ledger, MessageReceived(ledger.state.jobs[name].node, message), now)


# --- one scene after the other ----------------------------------------------------------------------------------------


def test_small_jobs_behind_a_big_one_leave_it_a_node_and_use_all_others() -> None:
    ledger = grid(2, 2)
    for name in ("a", "b"):
        ask(ledger, name, 1, 0.0)
    ask(ledger, "c", 1, 0.0)
    ask(ledger, "big", 2, 1.0)
    for number in range(3):
        ask(ledger, f"s{number}", 1, 2.0)
    kept = ledger.state.reservations.by_job["big"]
    assert (kept.node, kept.at) == ("n2", math.inf), "where one has to end, and not two"
    assert states(ledger, "big", "s0", "s1", "s2") == ["waiting"] * 4
    end(ledger, "a", 3.0)
    assert states(ledger, "big", "s0", "s1", "s2") == ["waiting", "n1", "waiting", "waiting"]
    assert ledger.state.jobs["big"].reason is not None and "is kept for it" in ledger.state.jobs["big"].reason.text


def kept_node() -> Ledger:
    """A node of four cores, half of it busy until 100; a job that needs it all is next."""
    ledger = grid(4)
    ask(ledger, "a", 2, 1.0, limit=99.0)
    run(ledger, "a", now=1.0)
    ask(ledger, "big", 4, 1.0)
    ask(ledger, "endless", 1, 2.0)
    return ledger


def test_who_is_over_before_may_go_first_and_nobody_else() -> None:
    ledger = kept_node()
    assert ledger.state.reservations.by_job["big"].at == 100.0
    ask(ledger, "short", 1, 3.0, limit=50.0)
    ask(ledger, "long", 1, 3.0, limit=98.0)
    assert states(ledger, "big", "endless", "short", "long") == ["waiting", "waiting", "n1", "waiting"]
    end(ledger, "short", 20.0)
    end(ledger, "a", 30.0)
    assert states(ledger, "big", "endless", "long") == ["n1", "waiting", "waiting"]
    assert not ledger.state.reservations.by_job or "big" not in ledger.state.reservations.by_job


def reserved_for_urgent(priority: Priority = Priority.URGENT) -> Ledger:
    """A node that is reserved for a job from about 100 s on; a core of it is free until then."""
    ledger = grid(4)
    ask(ledger, "long", 3, 0.0, limit=100.0, priority=Priority.HIGH)
    run(ledger, "long", now=0.5)
    ask(ledger, "big", 4, 1.0, priority=priority)
    ask(ledger, "tiny", 0.5, 1.0, user="cem")  # another request is smaller, so that something is reserved
    return ledger


def predict(ledger: Ledger, name: str, seconds: float, now: float = 3.0) -> None:
    step(ledger, RunTimesPredicted(((name, seconds),)), now)


def test_who_is_likely_over_before_an_urgent_job_may_go_first() -> None:
    ledger = reserved_for_urgent()
    ask(ledger, "short", 1, 2.0, user="bob")
    assert states(ledger, "big", "short") == ["waiting", "waiting"]
    predict(ledger, "short", 50.0)
    assert states(ledger, "big", "short") == ["waiting", "n1"]
    assert any("nine in ten runs like it end within 50" in one.text for one in ledger.state.jobs["short"].story)
    ledger.check()


def test_who_is_likely_over_and_is_not_gives_way_to_the_urgent_job() -> None:
    ledger = reserved_for_urgent()
    ask(ledger, "short", 1, 2.0, user="bob")
    predict(ledger, "short", 50.0)
    run(ledger, "short", now=4.0)
    end(ledger, "long", 100.0)
    for now in (101.0, 102.0, 103.0):
        step(ledger, Tick(), now)
    assert ledger.state.allocations[ledger.state.jobs["short"].allocation].stop is not None


@pytest.mark.parametrize(
    ("priority", "seconds", "of"),
    [
        (Priority.HIGH, 50.0, {}),  # which may not preempt it
        (Priority.URGENT, 150.0, {}),  # it is not over by then
        (Priority.URGENT, 50.0, {"requeue": False}),  # it could not be run again
    ],
)
def test_who_may_keep_it_waiting_does_not_go_first(priority: Priority, seconds: float, of: dict[str, bool]) -> None:
    ledger = reserved_for_urgent(priority)
    request = Request(Resources(cpu=1000), **of)  # type: ignore[arg-type]
    step(ledger, JobsSubmitted(1, (job("short", request, 2.0, "bob", grace=0.0),)), 2.0)
    predict(ledger, "short", seconds)
    assert states(ledger, "big", "short") == ["waiting", "waiting"]
    ledger.check()


def test_a_prediction_of_one_that_does_not_wait_starts_nobody() -> None:
    ledger = reserved_for_urgent()
    predict(ledger, "long", 5.0)
    predict(ledger, "gone", 5.0)
    assert ledger.state.jobs["long"].planned == 5.0 and states(ledger, "big") == ["waiting"]


def test_who_leaves_enough_may_stay_longer() -> None:
    ledger = grid(4)
    ask(ledger, "a", 3, 1.0, limit=99.0)
    run(ledger, "a", now=1.0)
    ask(ledger, "big", 3, 1.0)
    ask(ledger, "one", 1, 2.0)
    ask(ledger, "two", 1, 2.0)
    assert states(ledger, "big", "one", "two") == ["waiting", "n1", "waiting"]


def test_the_reason_says_for_whom_a_node_is_kept_and_until_when() -> None:
    ledger = kept_node()
    why = explain.why(ledger.state, "endless", None, 2.0)
    text = (
        "n1 is kept for big, which needs 4 cpu and starts there by 00:01:40 UTC; a time limit that ends before would do"
    )
    assert (why.reason.code, why.reason.text) == ("Reserved", text)
    big = explain.why(ledger.state, "big", None, 2.0).reason
    assert big.code == "Resources" and big.text.endswith("where it can start at 00:01:40 UTC at the latest")


def test_a_time_that_is_days_ahead_is_told_with_its_date() -> None:
    ledger = grid(4)
    ask(ledger, "long", 3, 1.0, limit=3 * 86_400.0)
    run(ledger, "long", now=1.0)
    ask(ledger, "big", 4, 1.0)
    ask(ledger, "endless", 1, 2.0)
    when = "1970-01-04 00:00:01 UTC"
    big, endless = (explain.why(ledger.state, name, None, 2.0).reason.text for name in ("big", "endless"))
    assert big.endswith(f"where it can start at {when} at the latest") and f"starts there by {when};" in endless


def test_when_the_big_job_is_cancelled_others_start_at_once() -> None:
    ledger = kept_node()
    step(ledger, CancelRequested(1, ("big",)), 5.0)
    assert states(ledger, "endless") == ["n1"]


def test_a_node_that_goes_away_is_not_kept_and_another_one_is() -> None:
    ledger = grid(2, 2)
    for name in ("a", "b"):
        ask(ledger, name, 2, 0.0)
    ask(ledger, "big", 2, 1.0)
    ask(ledger, "s", 1, 1.0)
    first = ledger.state.reservations.by_job["big"].node
    step(ledger, NodeDown(first, f"session-{first}"), 2.0)
    ask(ledger, "t", 1, 3.0)
    assert ledger.state.reservations.by_job["big"].node != first


def test_a_higher_class_is_not_held_back_by_a_lower_one() -> None:
    ledger = kept_node()
    ask(ledger, "vip", 1, 3.0, user="ben", priority=Priority.HIGH)
    assert states(ledger, "vip", "endless") == ["n1", "waiting"]


def test_who_is_owed_more_is_not_held_back_by_who_is_owed_less() -> None:
    ledger = kept_node()
    ask(ledger, "mine", 1, 3.0, user="ben")
    assert states(ledger, "mine", "endless") == ["n1", "waiting"]


def test_who_comes_to_be_first_starts_on_the_node_that_is_kept_for_another() -> None:
    ledger = grid(4, sharing=BY_WAITING)
    ask(ledger, "held", 2, 1.0, limit=33.0, user="eve")
    run(ledger, "held", now=1.0)
    ask(ledger, "big", 4, 2.0, limit=50.0, user="ben")
    ask(ledger, "small", 1, 8.0, limit=30.0)  # is not over when `held` ends
    ask(ledger, "other", 4, 9.0, limit=50.0, user="joe")
    assert states(ledger, "big", "small") == ["waiting", "waiting"]
    ask(ledger, "another", 4, 33.0, limit=50.0, user="joe")  # nothing became free meanwhile
    assert states(ledger, "big", "small", "other", "another") == ["waiting", "n1", "waiting", "waiting"]


@pytest.mark.parametrize("frees", [False, True], ids=["new jobs", "a freed node"])
def test_a_grant_to_its_user_lets_others_start_on_the_node_that_is_kept_for_a_job(frees: bool) -> None:
    ledger = grid(4)
    ask(ledger, "held", 1, 1.0, limit=99.0, user="eve")
    if frees:
        ask(ledger, "ends", 3, 1.0, limit=99.0, user="joe")
    run(ledger, "held", *(["ends"] if frees else []), now=1.0)
    ask(ledger, "big", 4, 2.0, priority=Priority.HIGH)
    ask(ledger, "small", 1, 3.0, user="eve", priority=Priority.HIGH)
    assert ledger.state.reservations.by_job["big"].at == 100.0
    wanted = ("short", 2, "ann"), ("last", 1, "joe")
    for number, (name, cores, user) in enumerate(wanted):
        one = job(name, Request(Resources(cpu=cores * 1000)), 4.0, user, time_limit=50.0, grace=0.0)
        ledger.handle(JobsSubmitted(number, (one,)), 4.0)
    ledger.settle(4.0)
    if frees:
        end(ledger, "ends", 5.0)
    assert states(ledger, "short", "small", "big", "last") == ["n1", "n1", "waiting", "waiting"]


def test_who_delays_the_next_to_have_a_node_kept_no_more_starts_there() -> None:
    ledger = grid(4)
    ask(ledger, "held", 2, 1.0, limit=99.0, user="eve")
    run(ledger, "held", now=1.0)
    ask(ledger, "all", 4, 2.0, user="ben")
    ask(ledger, "small", 1, 2.0, user="joe")
    assert states(ledger, "all", "small") == ["waiting", "waiting"]
    ask(ledger, "most", 3, 3.0, priority=Priority.HIGH)
    assert [*ledger.state.reservations.by_job] == ["most"]
    assert states(ledger, "most", "all", "small") == ["waiting", "waiting", "n1"]


def test_who_waited_for_one_that_has_to_make_way_comes_before_a_new_job_of_a_lower_class() -> None:
    ledger = grid(4, sharing=BY_WAITING)
    ask(ledger, "held", 2, 1.0, limit=99.0, user="eve")
    run(ledger, "held", now=1.0)
    ask(ledger, "all", 4, 2.0, limit=50.0, user="ben")
    ask(ledger, "most", 3, 3.0, limit=44.0)
    ask(ledger, "small", 1, 4.0, limit=200.0, user="joe")
    assert [*ledger.state.reservations.by_job] == ["all"]
    ask(ledger, "late", 1, 20.0, limit=200.0, user="kim", priority=Priority.LOW)
    assert [*ledger.state.reservations.by_job] == ["most"]  # it leaves room for one of the two
    assert states(ledger, "all", "most", "small", "late") == ["waiting", "waiting", "n1", "waiting"]


def test_when_a_job_starts_elsewhere_who_waited_for_its_node_comes_before_a_lower_class() -> None:
    ledger = grid(4)
    ask(ledger, "held", 2, 1.0, limit=99.0, user="eve")
    run(ledger, "held", now=1.0)
    ask(ledger, "big", 4, 2.0, priority=Priority.HIGH)
    ask(ledger, "two", 2, 3.0, user="ben")
    assert states(ledger, "big", "two") == ["waiting", "waiting"]
    other = facts("n2", 4)
    ledger.handle(NodeUp(other, "s2"), 4.0)
    for message in (Inventory(()), offer(other, expires_in=1e9)):
        ledger.handle(MessageReceived("n2", message), 4.0)
    ask(ledger, "late", 2, 4.0, user="joe", priority=Priority.LOW)
    assert states(ledger, "big", "two", "late") == ["n2", "n1", "waiting"]


def test_nothing_is_kept_where_all_ask_for_the_same() -> None:
    ledger = grid(4)
    for number in range(50):
        ask(ledger, f"j{number}", 2, 0.0)
    assert not ledger.state.reservations.by_job


def test_a_node_where_nothing_ends_is_given_up_for_one_where_things_do() -> None:
    ledger = grid(2, 2)
    for name in ("a", "b", "c", "d"):
        ask(ledger, name, 1, 0.0)
    ask(ledger, "big", 2, 1.0)
    ask(ledger, "s0", 1, 1.0)
    first, now = ledger.state.reservations.by_job["big"].node, 1.0
    other = "n1" if first == "n2" else "n2"
    number = 0
    while (
        ledger.state.jobs["big"].state is State.WAITING and now < 10 * STUCK
    ):  # small ones come and go on the other node
        now += 20.0
        number += 1
        there = next(iter(ledger.state.nodes[other].allocations.values()))
        ask(ledger, f"s{number}", 1, now)
        end(ledger, there.job, now)
    assert ledger.state.jobs["big"].node == other and now < 2 * STUCK


# --- what always holds ------------------------------------------------------------------------------------------------


class Day:
    """A grid with jobs that come and go, by a clock of its own. `limited`: each has a time limit and keeps it."""

    def __init__(self, lot: random.Random, limited: bool, sharing: Sharing = BY_SHARE) -> None:
        self.lot, self.limited, self.now = lot, limited, 1.0
        self.ledger = grid(*(lot.choice((2, 4, 8)) for _ in range(lot.randint(1, 3))), sharing=sharing)
        self.ends: list[tuple[float, str, str]] = []
        self.started: dict[str, float] = {}
        self.promised: dict[str, float] = {}
        self.number = 0

    def see(self, out: list[Command]) -> None:
        for command in out:
            if isinstance(command, Send) and isinstance(command.message, Launch):
                name, spec = command.message.job, command.message.spec
                self.started[name] = self.now
                most = spec.time_limit or 50.0
                seconds = most if self.lot.random() < 0.5 else self.lot.uniform(0.0, most)
                heappush(self.ends, (self.now + seconds, name, command.node))
                started = Started(allocation=command.message.allocation)
                self.see(step(self.ledger, MessageReceived(command.node, started), self.now))
        for name, kept in self.ledger.state.reservations.by_job.items():
            if kept.at < self.promised.get(name, math.inf):
                self.promised[name] = kept.at

    def until(self, then: float) -> None:
        while self.ends and self.ends[0][0] <= then:
            self.now, name, node = heappop(self.ends)
            self.see(end(self.ledger, name, self.now))
        self.now = then
        self.see(step(self.ledger, Tick(), then))

    def submit(self, name: str, cores: float, user: str = "ann") -> None:
        limit = self.lot.choice((5.0, 20.0, 60.0)) if self.limited else 0.0
        self.see(ask(self.ledger, name, cores, self.now, limit, user))

    def small(self) -> None:
        self.number += 1
        self.submit(f"s{self.number}", self.lot.choice((0.5, 1, 1, 2)))


@pytest.mark.parametrize("seed", range(tries(6, 2)))
def test_what_starts_behind_the_first_never_delays_it(seed: int) -> None:
    """When it was said at any time that a job starts at some moment at the latest, it does: of one user, whose jobs
    come by their turn."""
    day = Day(random.Random(seed), limited=True)
    cores = sum(len(node.facts.cores) for node in day.ledger.state.nodes.values())
    for number in range(60):
        for _ in range(day.lot.randint(0, 4)):
            day.small()
        if day.lot.random() < 0.2:
            day.submit(f"big{number}", 2 if day.lot.random() < 0.3 else 4)
        day.until(day.now + day.lot.uniform(0.0, 5.0))
    day.until(day.now + 5000.0)
    fitting = [name for name in day.promised if name in day.started]
    for name in fitting:
        assert day.started[name] <= day.promised[name] + 0.001, name
    assert fitting or cores == 24, "nothing ever waited, on less than the largest grid"


ALWAYS = 4
"""Days that are tried also where not many are."""


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("seed", range(tries(ALWAYS, 2)))
def test_where_the_only_room_is_reserved_a_search_comes_to_the_same_refusal(
    seed: int, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, searched = reservations.only_room_is_reserved, list[bool]()

    def both(state: GridState, kept: Reservations, ask: Ask, now: float) -> Refusal | None:
        found = quick(state, kept, ask, now)
        if found is not None:
            assert found == reservations.search_unreserved(state, kept, ask, now)
        searched.append(found is None)
        return found

    monkeypatch.setattr(reservations, "only_room_is_reserved", both)
    day = Day(random.Random(seed), limited, BY_WAITING)
    most = max(len(node.facts.cores) for node in day.ledger.state.nodes.values())
    for number in range(40):
        for user in day.lot.choices(("ann", "ben", "cem"), k=day.lot.randint(1, 4)):
            day.number += 1
            day.submit(f"s{day.number}", day.lot.choice((0.5, 1, 1.5, 2)), user)
        if day.lot.random() < 0.3:
            day.submit(f"big{number}", most, day.lot.choice(("ann", "ben")))
        day.until(day.now + day.lot.uniform(0.0, 5.0))
    nodes = len(day.ledger.state.nodes)
    assert any(searched), "no search"
    if seed < ALWAYS:  # of the 160 others six have one node, and a day without a refusal for a reservation
        assert nodes > 1 or not all(searched), "nothing to compare"


@pytest.mark.parametrize("sharing", [BY_SHARE, BY_WAITING], ids=["share", "waiting"])
@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("seed", range(tries(3, 1)))
def test_a_big_job_starts_within_a_bounded_time_under_an_endless_stream_of_small_ones(
    seed: int, limited: bool, sharing: Sharing
) -> None:
    day = Day(random.Random(seed), limited, sharing)
    most = max(len(node.facts.cores) for node in day.ledger.state.nodes.values())
    day.until(1.0)
    for _ in range(6):
        day.small()
    day.submit("big", most)
    began, bound = day.now, 420.0  # six before it, each of a minute at the most, and one more
    if limited and sharing is BY_WAITING:
        bound = _bound(day.ledger, "big", longest=60.0)
    while "big" not in day.started and day.now < began + bound:
        for _ in range(2):
            day.small()  # more than the grid can take
        day.until(day.now + 5.0)
    waited = day.started.get("big", math.inf) - began
    assert waited < bound
    if waited > 100.0:
        assert len(day.ledger.state.queue) > 10


def _bound(ledger: Ledger, name: str, longest: float) -> float:
    """How long a job may wait that has just come, beside jobs of three lanes with a limit each (docs/shares.md): the
    longest limit of its lane is its own."""
    jobs, spec = ledger.state.jobs, ledger.state.jobs[name].spec
    lane = [one for one in ledger.state.queue.turns if jobs[one].spec.time_limit == spec.time_limit]
    before = len(lane) - (name in lane)
    return (before + 1) * (10.0 * (spec.time_limit + spec.grace) + 3 * (longest + spec.grace + 3.0))


def test_it_is_the_same_after_heartbeats() -> None:
    ledger = kept_node()
    before = ledger.state.reservations
    step(ledger, HeartbeatReceived("n1", Sample(at=3.0)), 3.0)
    assert ledger.state.reservations is before


# --- gangs ------------------------------------------------------------------------------------------------------------


def ask_gang(ledger: Ledger, name: str, nodes: int, cores: float, now: float) -> list[Command]:
    request = Request(Resources(cpu=int(cores * 1000)), gang=nodes)
    one = job(name, request, now, "ann", grace=0.0)
    group = Group(
        id=name, key=one.key, user=one.user, kind=GroupKind.GANG, spec=one.spec, request=request, submitted=now,
        count=nodes, array=Array(((0, nodes - 1, 1),)),
    )  # fmt: skip
    return ledger.handle(JobsSubmitted(1, (one,), (group,)), now) + ledger.settle(now)


def test_jobs_of_the_same_size_do_not_pass_a_gang_for_ever() -> None:
    ledger = grid(1, 1)
    for number in range(4):
        ask(ledger, f"s{number}", 1, 0.1 * number, limit=10.0)
    run(ledger, "s0", "s1", now=0.5)
    ask_gang(ledger, "g", 2, 1, 1.0)
    end(ledger, "s0", 5.0)
    assert states(ledger, "s2", "s3", "g_0") == ["n1", "waiting", "waiting"]
    end(ledger, "s1", 5.1)
    run(ledger, "s2", "s3", now=5.2)
    end(ledger, "s2", 10.0)  # the gang is the first now: its nodes are kept, and a later one has to wait
    assert {one.node for one in ledger.state.reservations.by_job.values()} == {"n1", "n2"}
    ask(ledger, "later", 1, 11.0, limit=10.0)
    assert states(ledger, "later", "g_0", "g_1") == ["waiting", "waiting", "waiting"]
    ask(ledger, "short", 1, 11.0, limit=1.0)
    assert states(ledger, "short") == ["n1"]  # it is over before the other node has room
    end(ledger, "short", 12.0)
    end(ledger, "s3", 14.0)
    assert sorted(states(ledger, "g_0", "g_1", "later")) == ["n1", "n2", "waiting"]
    assert not ledger.state.reservations.by_job


def test_a_gang_that_is_cancelled_gives_its_nodes_free() -> None:
    ledger = grid(1, 1)
    ask(ledger, "holder", 1, 0.0)
    run(ledger, "holder", now=0.1)
    ask_gang(ledger, "g", 2, 1, 1.0)
    ledger.settle(2.0)
    ask(ledger, "later", 1, 3.0)
    assert states(ledger, "later") == ["waiting"] and len(ledger.state.reservations.by_job) == 2
    ledger.handle(CancelRequested(2, ("g",)), 4.0)
    ledger.settle(4.0)
    assert states(ledger, "later") == ["n2"] and not ledger.state.reservations.by_job


def test_a_gang_one_of_whose_nodes_goes_away_has_others_kept() -> None:
    ledger = grid(1, 1, 1)
    for number in (1, 2, 3):
        ask(ledger, f"s{number}", 1, 0.0, limit=10.0 * number)
    run(ledger, "s1", "s2", "s3", now=0.1)
    ask_gang(ledger, "g", 2, 1, 1.0)
    ask(ledger, "later", 1, 1.5)
    ledger.settle(2.5)
    kept = {one.node for one in ledger.state.reservations.by_job.values()}
    assert kept == {ledger.state.jobs["s1"].node, ledger.state.jobs["s2"].node}
    gone = ledger.state.jobs["s1"].node
    step(ledger, NodeDown(gone, f"session-{gone}"), 3.0)
    ask(ledger, "another", 1, 5.0)
    ask(ledger, "and another", 1, 7.0)
    assert {one.node for one in ledger.state.reservations.by_job.values()} == {
        ledger.state.jobs["s2"].node,
        ledger.state.jobs["s3"].node,
    }


def test_frozen_time_puts_off_what_waits_for_an_end_and_until_that_one_goes_on_it_is_the_earliest() -> None:
    ledger = grid(2)
    ask(ledger, "a", 2, 0.0, limit=100.0)
    run(ledger, "a", now=1.0)
    ask(ledger, "big", 2, 2.0)
    ask(ledger, "small", 1, 2.0)
    assert ledger.state.reservations.by_job["big"].at == 101.0
    frozen(ledger, "a", 10.0)
    step(ledger, Tick(), 12.0)
    why = explain.why(ledger.state, "big", None, 12.0).reason.text
    assert f"can start at {clock(101.0)} at the earliest: a.1 is suspended" in why
    frozen(ledger, "a", 50.0, why="", lasted=40.0)
    step(ledger, Tick(), 60.0)
    assert f"can start at {clock(141.0)} at the latest" in explain.why(ledger.state, "big", None, 60.0).reason.text


def test_who_asks_again_is_not_taken_past_others_nor_past_their_own_earlier_job() -> None:
    ledger = grid(2)
    ask(ledger, "held", 1, 0.0, limit=5.0, user="eve")
    run(ledger, "held", now=0.0)
    ask(ledger, "wide", 2, 1.0, user="ben")  # n1 is kept for it from the moment that `held` ends
    ask(ledger, "first", 1, 1.01, limit=10.0)
    assert [ledger.state.jobs[name].state for name in ("wide", "first")] == [State.WAITING] * 2
    ask(ledger, "second", 1, 1.9)  # ann is looked at again, a second older, and ben is not
    assert [ledger.state.jobs[name].state for name in ("wide", "first", "second")] == [State.WAITING] * 3
