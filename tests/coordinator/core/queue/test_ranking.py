"""The order of service by waiting time, as the ledger keeps it: who is next, who is overdue, and how long anybody waits
at the most."""

import random
from collections import Counter
from heapq import heappop, heappush

import msgspec
import pytest

from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    JobsSubmitted,
    MessageReceived,
    Send,
    Tick,
)
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Group
from distributed_grid.coordinator.core.policy import DEFAULT, Policy, Sharing
from distributed_grid.coordinator.core.queue import fairness, ranking, reservations
from distributed_grid.coordinator.core.queue.precedence import lane_of
from distributed_grid.coordinator.core.views import shares
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.jobs import Cause, LimitBy, Outcome, Priority, Request, RetryOn, ServiceOrder, State
from distributed_grid.protocol.messages import Exited, Launch, Stale, Started
from distributed_grid.protocol.messages.rights import Rights, Rules
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.core.scene import facts, job, join, step
from tests.depth import DEEP, tries

HOUR = 3600.0
JOBS = 300 if DEEP else 200
"""Of a crowd: with 150 nobody waits for so long that being overdue matters."""
PARTS = 3 if DEEP else 1
SECONDS = Sharing(head_start=10.0, shortest=1.0, usual=20.0, overdue_after=2.0)
"""For jobs that last for seconds."""
LENT = msgspec.structs.replace(SECONDS, owners={"n1": "u0", "n2": "u1"}, half_life=20.0, credit=0.5)
"""Where users lend each other their nodes, and that counts for much."""


def grid(*cores: int, sharing: Sharing = DEFAULT.sharing) -> Ledger:
    policy = Policy(suspect_after=1e9, disconnected_after=1e9, lost_after=1e9, sharing=sharing)
    ledger = Ledger(policy=policy)
    for number, count in enumerate(cores, 1):
        join(ledger, facts(f"n{number}", count), expires_in=1e9)
    return ledger


def ask(ledger: Ledger, name: str, now: float, limit: float, cores: float = 1, user: str = "ann") -> list[Command]:
    one = job(name, Request(Resources(cpu=int(cores * 1000))), now, user, time_limit=limit, grace=0.0)
    return ledger.handle(JobsSubmitted(1, (one,)), now) + ledger.settle(now)


def begin(ledger: Ledger, name: str, now: float) -> None:
    one = ledger.state.jobs[name]
    step(ledger, MessageReceived(one.node, Started(allocation=one.allocation)), now)


def end(ledger: Ledger, name: str, now: float) -> list[Command]:
    one = ledger.state.jobs[name]
    over = Exited(one.allocation, Outcome(cause=Cause.EXITED, seconds=1.0), True)
    return ledger.handle(MessageReceived(one.node, over), now) + ledger.settle(now)


def started(commands: list[Command]) -> list[str]:
    return [one.message.job for one in commands if isinstance(one, Send) and isinstance(one.message, Launch)]


def busy(sharing: Sharing = DEFAULT.sharing) -> Ledger:
    """One core, which `held` of eve has for a day."""
    ledger = grid(1, sharing=sharing)
    ask(ledger, "held", 1.0, 24 * HOUR, user="eve")
    begin(ledger, "held", 1.0)
    return ledger


def served(ledger: Ledger, now: float) -> list[str]:
    """The waiting jobs, in the order in which they start when each ends as soon as it has begun."""
    names, last = [], "held"
    while len(ledger.state.queue):
        (last,) = started(end(ledger, last, now))
        names.append(last)
        now += 0.001
    return names


# --- who is next ------------------------------------------------------------------------------------------------------


def test_of_jobs_of_the_same_age_the_shorter_comes_first() -> None:
    ledger = busy()
    for name, limit in (("long", 8 * HOUR), ("short", HOUR), ("middle", 2 * HOUR)):
        ask(ledger, name, 2.0, limit)
    assert served(ledger, 3.0) == ["short", "middle", "long"]


def test_who_waits_long_enough_comes_before_shorter_jobs_of_others() -> None:
    ledger = busy()
    ask(ledger, "long", 2.0, 8 * HOUR)
    ask(ledger, "short", 20 * HOUR, HOUR, user="ben")
    assert served(ledger, 20 * HOUR) == ["long", "short"]


def test_equal_jobs_of_one_user_come_by_age() -> None:
    ledger = busy()
    for number, limit in enumerate((1.05, 1.1, 1.0, 1.12)):  # one lane
        ask(ledger, f"j{number}", 2.0 + number, limit * HOUR)
    assert served(ledger, 10.0) == ["j0", "j1", "j2", "j3"]


def test_of_jobs_of_the_same_age_and_length_the_smaller_share_decides() -> None:
    ledger = grid(2)
    for name in ("a", "b"):
        ask(ledger, name, 1.0, HOUR)
        begin(ledger, name, 1.0)
    ask(ledger, "hers", 2.0, HOUR)
    ask(ledger, "his", 2.0, HOUR, user="ben")
    assert started(end(ledger, "a", 3.0)) == ["his"]


def test_a_size_is_a_part_of_the_grid_as_it_is_now() -> None:
    ledger = grid(4)
    ask(ledger, "held", 1.0, 24 * HOUR, cores=4, user="eve")
    begin(ledger, "held", 1.0)
    for name, cores, user in (("wide", 2, "ann"), ("wider", 4, "ben")):
        ask(ledger, name, 2.0, HOUR, cores=cores, user=user)
    join(ledger, facts("n2", 1), expires_in=1e9, now=3.0)
    ask(ledger, "more", 1000.0, HOUR, cores=2, user="cem")
    ranks = {one.head: one.rank for one in ledger.state.queue.standings.values()}
    told = {name: ranking.precedence_of(ledger.state, ledger.state.jobs[name], 1000.0) for name in ranks}
    assert ranks == {name: -one.value for name, one in told.items() if one is not None}
    assert len(ranks) == 3


def test_by_share_an_age_of_ten_hours_does_not_outweigh_half_of_the_grid() -> None:
    ledger = grid(2, sharing=Sharing(order=ServiceOrder.SHARE))
    for name in ("a", "b"):
        ask(ledger, name, 1.0, 24 * HOUR)
        begin(ledger, name, 1.0)
    ask(ledger, "hers", 2.0, HOUR)
    ask(ledger, "his", 10 * HOUR, 20 * HOUR, user="ben")
    assert started(end(ledger, "a", 10 * HOUR)) == ["his"]


def test_a_job_that_was_held_back_waits_since_its_release() -> None:
    ledger = busy()
    late = msgspec.structs.replace(job("late", Request(Resources(cpu=1000)), 2.0, time_limit=HOUR), begin=30 * HOUR)
    step(ledger, JobsSubmitted(1, (late,)), 2.0)
    step(ledger, Tick(), 30 * HOUR)
    assert ledger.state.jobs["late"].waits_since == 30 * HOUR
    ask(ledger, "other", 29 * HOUR, HOUR, user="ben")


def array(name: str, count: int, most: int, begin: float = 0.0) -> JobsSubmitted:
    one = job(name, Request(Resources(cpu=1000)), 2.0, time_limit=HOUR, grace=0.0)
    members = Array(((0, count - 1, 1),), most)
    many = Group(
        id=name, key=one.key, user=one.user, kind=GroupKind.ARRAY, spec=one.spec, request=one.request, submitted=2.0,
        count=count, array=members, begin=begin,
    )  # fmt: skip
    return JobsSubmitted(1, (one,), (many,))


def test_a_member_that_waited_for_the_limit_of_its_array_waits_since_its_turn() -> None:
    ledger = grid(1)
    step(ledger, array("a", 2, 1), 2.0)
    begin(ledger, "a_0", 2.0)
    assert ledger.state.jobs["a_0"].waits_since == 2.0
    end(ledger, "a_0", 500.0)
    assert ledger.state.jobs["a_1"].waits_since == 500.0


def test_members_of_an_array_that_was_to_begin_later_wait_since_then() -> None:
    ledger = busy()
    step(ledger, array("a", 2, 0, begin=400.0), 2.0)
    step(ledger, Tick(), 401.0)
    assert [ledger.state.jobs[f"a_{number}"].waits_since for number in range(2)] == [401.0] * 2


# --- overdue ----------------------------------------------------------------------------------------------------------


def test_an_overdue_job_comes_before_whoever_has_the_higher_precedence() -> None:
    ledger = busy()
    ask(ledger, "long", 2.0, HOUR)
    for number in range(3):
        ask(ledger, f"short{number}", 2.0, 60.0, user="ben")
    assert served(ledger, 9.9 * HOUR)[0] == "short0"
    ledger = busy()
    ask(ledger, "long", 2.0, HOUR)
    ask(ledger, "short", 9.99 * HOUR, 60.0, user="ben")
    assert served(ledger, 10.01 * HOUR) == ["long", "short"]


def test_once_one_was_served_for_that_the_next_of_its_lane_waits_anew() -> None:
    ledger = busy()
    for number in range(3):
        ask(ledger, f"mine{number}", 2.0, HOUR)
    ask(ledger, "other", 10.5 * HOUR, HOUR / 10, user="ben")
    assert served(ledger, 11 * HOUR)[:2] == ["mine0", "other"]


def test_where_the_overdue_job_has_no_room_the_next_of_its_lane_is_not_overdue_for_it() -> None:
    ledger = grid(2)
    for name in ("a", "b"):
        ask(ledger, name, 1.0, 48 * HOUR, user="eve")
        begin(ledger, name, 1.0)
    ask(ledger, "wide", 2.0, HOUR, cores=2)
    ask(ledger, "narrow", 2.0, HOUR)
    ask(ledger, "other", 9 * HOUR, 60.0, user="ben")
    assert started(end(ledger, "a", 11 * HOUR)) == ["other"], "until both cores are free"
    assert ledger.state.reservations.by_job.keys() == {"wide"}


def test_behind_an_overdue_job_that_a_quota_keeps_back_the_next_of_its_lane_is_overdue_in_the_same_pass() -> None:
    rules = Rules(users={"ann": Rights(memory=GIB)})
    ledger = Ledger(policy=Policy(suspect_after=1e9, disconnected_after=1e9, lost_after=1e9, rights=rules))
    join(ledger, facts("n1", 2), expires_in=1e9)
    ask(ledger, "held", 1.0, 48 * HOUR, cores=2, user="eve")
    begin(ledger, "held", 1.0)
    with_memory = Resources(cpu=1000, memory=GIB)
    wanted = (Request(with_memory, Priority.HIGH), Request(with_memory), Request(Resources(cpu=1000)))
    for number, request in enumerate(wanted):
        one = job(f"mine{number}", request, 2.0, time_limit=HOUR, grace=0.0)
        step(ledger, JobsSubmitted(1, (one,)), 2.0)
    ask(ledger, "other", 3.0, HOUR, user="ben")
    assert started(end(ledger, "held", 11 * HOUR)) == ["mine0", "mine2"]
    assert ledger.state.jobs["mine1"].state is State.WAITING


def test_the_first_has_a_reservation_in_place_of_one_who_comes_after() -> None:
    ledger = grid(4)
    for number in range(4):
        ask(ledger, f"held{number}", 1.0, 100 * HOUR, user="eve")
        begin(ledger, f"held{number}", 1.0)
    ask(ledger, "his", 2.0, HOUR, cores=4, user="ben")
    ask(ledger, "small", 2.0, HOUR, user="cleo")
    assert ledger.state.reservations.by_job.keys() == {"his"}
    ask(ledger, "hers", 3.0, HOUR / 4, cores=4)
    end(ledger, "held0", 4.0)
    assert ledger.state.reservations.by_job.keys() == {"hers"}


# --- the bound --------------------------------------------------------------------------------------------------------


class Crowd:
    """Users with jobs of all sizes and lengths, more than the nodes can take; each has a time limit and keeps it."""

    def __init__(self, lot: random.Random, sharing: Sharing = SECONDS) -> None:
        self.lot, self.sharing, self.now = lot, sharing, 1.0
        cores = [lot.choice((2, 4, 8)) for _ in range(lot.randint(1, 3))]
        self.ledger, self.most = grid(*cores, sharing=sharing), max(cores)
        self.ends: list[tuple[float, str]] = []
        self.asked: dict[str, tuple[float, float, int]] = {}
        """When, the time limit, and how many of its lane waited."""
        self.started: dict[str, float] = {}
        self.lanes: dict[tuple[str, int], None] = {}
        self.waiting: Counter[tuple[str, int]] = Counter()
        self.lane: dict[str, tuple[str, int]] = {}
        self.users = [(f"u{number}", lot.choice((1.0, 2.0, 8.0, 30.0))) for number in range(lot.randint(1, 4))]

    def see(self, out: list[Command]) -> None:
        for name in started(out):
            self.started[name] = self.now
            self.waiting[self.lane[name]] -= 1
            limit = self.asked[name][1]
            heappush(self.ends, (self.now + (limit if self.lot.random() < 0.5 else self.lot.uniform(0, limit)), name))
            begin(self.ledger, name, self.now)

    def until(self, then: float) -> None:
        while self.ends and self.ends[0][0] <= then:
            self.now, name = heappop(self.ends)
            self.see(end(self.ledger, name, self.now))
        self.now = then
        self.see(step(self.ledger, Tick(), then))

    def submit(self) -> None:
        user, longest = self.lot.choice(self.users)
        limit = longest * self.lot.choice((0.5, 1.0, 1.0))
        name = f"j{len(self.asked)}"
        lane = self.lane[name] = user, lane_of(limit, self.sharing)
        self.asked[name] = self.now, limit, self.waiting[lane]
        self.waiting[lane] += 1
        self.lanes[lane] = None
        cores = self.lot.choice((1, 1, 1, 2, self.most))
        self.see(ask(self.ledger, name, self.now, limit, cores, user))

    def day(self, count: int) -> None:
        for _ in range(count):
            self.submit()
            self.until(self.now + self.lot.expovariate(2.0))
        while len(self.ledger.state.queue):
            self.until(self.now + 5.0)

    def bound(self, name: str) -> float:
        """docs/shares.md"""
        _, limit, before = self.asked[name]
        longest = max(limit for _, limit, _ in self.asked.values())
        late = fairness.RANKED_EVERY + reservations.STARTING
        counted = max(limit, self.sharing.shortest) * 2**0.5  # any of its lane
        return (before + 1) * (self.sharing.overdue_after * counted + len(self.lanes) * (longest + late))


@pytest.mark.parametrize(
    ("seed", "sharing"), [*((n, SECONDS) for n in range(tries(2, 1))), *((n, LENT) for n in range(tries(2, 1)))]
)
def test_nobody_waits_longer_than_the_bound(seed: int, sharing: Sharing) -> None:
    crowd = Crowd(random.Random(seed), sharing)
    crowd.day(JOBS)
    waits = {name: at - crowd.asked[name][0] for name, at in crowd.started.items()}
    assert waits.keys() == crowd.asked.keys()
    for name, waited in waits.items():
        assert waited <= crowd.bound(name), f"{name} waited {waited:.1f} s, and may {crowd.bound(name):.1f}"


@pytest.mark.parametrize("part", range(PARTS))
def test_who_is_first_and_overdue_starts_when_the_longest_that_runs_is_over(part: int) -> None:
    """From the moment that a job is the first and overdue, what comes after it never delays it."""
    seeds = range(part, tries(3, 1), PARTS)
    crowds = [delayed_by_nobody(seed) for seed in seeds]
    assert 2 * sum(crowds) > len(seeds), "in most of them somebody is overdue: the others have nodes for all that come"


def delayed_by_nobody(seed: int) -> bool:
    """Whether somebody was first and overdue in this crowd; then, that it started when it had to."""
    crowd = Crowd(random.Random(seed))
    promised: dict[str, float] = {}
    for _ in range(JOBS):
        crowd.submit()
        crowd.until(crowd.now + crowd.lot.expovariate(2.0))
        state = crowd.ledger.state
        first = min(state.queue.standings.values(), key=state.queue.place, default=None)
        if first is not None and first.overdue >= 0 and first.head not in promised:
            ends = [latest(crowd, one.job) for one in state.allocations.values()]
            promised[first.head] = max(ends, default=crowd.now) + 1.0
    while len(crowd.ledger.state.queue):
        crowd.until(crowd.now + 5.0)
    for name, at in promised.items():
        assert crowd.started[name] <= at, f"seed {seed}: {name}"
    return bool(promised)


def latest(crowd: Crowd, name: str) -> float:
    return crowd.started[name] + crowd.asked[name][1]


# --- as it is shown ---------------------------------------------------------------------------------------------------


def test_why_says_the_numbers_of_the_order() -> None:
    ledger = busy()
    ask(ledger, "mine", HOUR, 2 * HOUR)
    told = explain.why(ledger.state, "mine", None, 4 * HOUR).precedence
    assert told is not None
    assert (told.waited, told.limit, told.by, told.overdue_in) == (3 * HOUR, 2 * HOUR, LimitBy.LIMIT, 17 * HOUR)
    assert told.value == pytest.approx(4 / 2 / 0.05**0.5)
    (held, mine) = sorted(shares(ledger.state, 4 * HOUR), key=lambda one: one.user, reverse=True)
    assert mine.precedence == told and held.precedence is None


def test_by_share_there_are_no_such_numbers() -> None:
    ledger = busy(Sharing(order=ServiceOrder.SHARE))
    ask(ledger, "mine", HOUR, 2 * HOUR)
    assert explain.why(ledger.state, "mine", None, 4 * HOUR).precedence is None
    assert ledger.state.jobs["mine"].state is State.WAITING


def test_an_overdue_job_whose_node_refuses_to_start_it_is_overdue_again() -> None:
    ledger = grid(1, sharing=SECONDS)
    ask(ledger, "runs", 0.0, 1000.0)
    begin(ledger, "runs", 0.0)
    ask(ledger, "late", 1.0, 10.0)
    ask(ledger, "next", 1.0, 10.0)
    ask(ledger, "his", 99.0, 10.0, user="ben")
    assert started(end(ledger, "runs", 100.0)) == ["late"]
    standing = next(one for one in ledger.state.queue.standings.values() if one.user == "ann")
    assert standing.served_at == 100.0 and standing.overdue == -1, "its lane was served, so the next one waits anew"
    refused = Stale(allocation=ledger.state.jobs["late"].allocation, reason="its owner is back")
    step(ledger, MessageReceived("n1", refused), 101.0)
    assert standing.served_at == 0.0 and standing.overdue == ledger.state.queue.turns["late"]
    assert ledger.state.chains.overdue == {}
    ledger.check()


def test_one_that_comes_back_before_an_overdue_one_of_its_lane_starts_though_nobody_else_waits() -> None:
    ledger = grid(1, sharing=SECONDS)
    request = Request(Resources(cpu=1000), retry_on=(RetryOn.FAILED,), retries=1)
    for name in ("first", "second"):
        step(ledger, JobsSubmitted(1, (job(name, request, 1.0, "ann", grace=0.0),)), 1.0)
    begin(ledger, "first", 1.0)
    ask(ledger, "other", 100.0, 0.0, cores=0.5, user="bob")
    queue = ledger.state.queue
    assert queue.line("second").standing.overdue == queue.turns["second"]
    assert ledger.state.reservations.by_job.keys() == {"second"}
    step(ledger, CancelRequested(1, ("other",)), 101.0)
    assert len(queue.standings) == 1, "nobody else waits"
    failed = Exited(ledger.state.jobs["first"].allocation, Outcome(Cause.EXITED, code=1, seconds=1.0), True)
    commands = ledger.handle(MessageReceived("n1", failed), 102.0) + ledger.settle(102.0)
    for now in range(103, 106):
        commands += ledger.handle(Tick(), now) + ledger.settle(now)
    assert len(started(commands)) == 1, "the only node is free"
