"""Classes come by their priority, users of a class by what they hold and held, and jobs of a user by their turn."""

import math
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.core.commands import CancelRequested, Command, JobsSubmitted, MessageReceived, Send
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Allocation, Job, Placement, Refusal
from distributed_grid.coordinator.core.policy import Policy, Sharing
from distributed_grid.coordinator.core.queue import fairness, reservations
from distributed_grid.coordinator.core.queue.fairness import FORGOTTEN, Shares, dominant, halved
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, parse_priority
from distributed_grid.protocol.messages import Exited, Launch, Started
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.core.scene import facts, job, join, step
from tests.depth import tries

DAY = 86_400.0
CPU = Request(Resources(cpu=1000))


PATIENT = Policy(suspect_after=1e9, disconnected_after=1e9, lost_after=1e9)
"""Nobody sends heartbeats here."""


def grid(cores: int = 4, policy: Policy = PATIENT, **more: Any) -> Ledger:
    ledger = Ledger(policy=policy)
    join(ledger, facts("n1", cores, **more), expires_in=1e9)
    return ledger


def submit(ledger: Ledger, user: str, count: int, now: float, request: Request = CPU, **spec: Any) -> list[Command]:
    first = ledger.state.next_turn
    jobs = tuple(job(f"{user}-{first + n}", request, now, user, **spec) for n in range(count))
    return step(ledger, JobsSubmitted(1, jobs), now)


def launched(out: list[Command]) -> list[str]:
    return [c.message.allocation for c in out if isinstance(c, Send) and isinstance(c.message, Launch)]


def user_of(allocation: str) -> str:
    return allocation.partition("-")[0]


def runs(ledger: Ledger) -> Counter[str]:
    return Counter(job.user for job in ledger.state.jobs.values() if job.allocation)


def end(ledger: Ledger, allocation: str, now: float) -> list[str]:
    """It has run, and ends; who starts instead."""
    node = ledger.state.allocations[allocation].node
    step(ledger, MessageReceived(node, Started(allocation=allocation)), now)
    return launched(step(ledger, MessageReceived(node, Exited(allocation, Outcome(cause=Cause.EXITED), True)), now))


def oldest(ledger: Ledger) -> str:
    return next(iter(ledger.state.allocations))


# --- classes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [("medium", "normal"), ("urgent", "critical"), ("LOW", "low")])
def test_both_vocabularies_name_the_same_classes(one: str, other: str) -> None:
    assert parse_priority(one) is parse_priority(other)


def test_a_class_comes_before_every_share() -> None:
    ledger = grid(2)
    submit(ledger, "ann", 2, 0.0)
    submit(ledger, "ben", 5, 1.0, Request(Resources(cpu=1000), Priority.LOW))
    submit(ledger, "ann", 5, 2.0)
    submit(ledger, "ann", 1, 3.0, Request(Resources(cpu=1000), Priority.HIGH))
    (first,) = end(ledger, oldest(ledger), 4.0)
    assert ledger.state.jobs[first.rpartition(".")[0]].request.priority is Priority.HIGH
    (second,) = end(ledger, oldest(ledger), 5.0)
    assert user_of(second) == "ann", "low takes leftovers, whoever asks for it"


def test_ten_thousand_jobs_of_one_user_delay_anothers_high_job_by_no_more_than_a_pass() -> None:
    ledger = grid(4)
    submit(ledger, "ann", 10_000, 0.0)
    submit(ledger, "ann", 10_000, 0.0, Request(Resources(cpu=1000, memory=1 << 20), Priority.HIGH))
    submit(ledger, "ben", 1, 100.0, Request(Resources(cpu=1000), Priority.HIGH))
    assert [user_of(name) for name in end(ledger, oldest(ledger), 101.0)] == ["ben"]


# --- users ------------------------------------------------------------------------------------------------------------


def test_ten_thousand_jobs_of_one_user_leave_another_the_half() -> None:
    ledger = grid(4)
    submit(ledger, "ann", 10_000, 0.0)
    submit(ledger, "ben", 100, 1.0)
    now, started = 10.0, Counter[str]()
    for _ in range(40):
        now += 10.0
        started.update(map(user_of, end(ledger, oldest(ledger), now)))
        if sum(started.values()) == 2:
            assert started == {"ben": 2}, "what becomes free is his until they hold as much"
    assert runs(ledger) == {"ann": 2, "ben": 2}
    assert 19 <= started["ben"] <= 22, started


def test_equal_users_take_turns_within_one_pass() -> None:
    ledger = Ledger()
    for user in ("ann", "ben", "cleo"):
        submit(ledger, user, 10, 0.0)
    out = join(ledger, facts("n1", 6), 1.0)
    assert Counter(map(user_of, launched(out))) == {"ann": 2, "ben": 2, "cleo": 2}


def test_what_a_user_was_granted_while_nobody_else_waited_counts_when_somebody_does() -> None:
    ledger = grid(cores=2)
    submit(ledger, "zoe", 2, 1.0)
    submit(ledger, "ann", 2, 1.0)
    submit(ledger, "carl", 1, 1.0)  # all are ranked
    step(ledger, CancelRequested(1, tuple(name for name, one in ledger.state.jobs.items() if one.user == "carl")), 1.1)
    assert [user_of(name) for name in end(ledger, oldest(ledger), 1.2)] == ["ann"]
    submit(ledger, "ann", 1, 1.3)
    submit(ledger, "bob", 1, 1.4)
    assert [user_of(name) for name in end(ledger, oldest(ledger), 1.5)] == ["bob"]


def test_a_weight_of_two_is_twice_the_share() -> None:
    ledger = Ledger(policy=Policy(sharing=Sharing(weights={"ann": 2.0})))
    for user in ("ben", "ann"):
        submit(ledger, user, 20, 0.0)
    out = join(ledger, facts("n1", 12), 1.0)
    assert Counter(map(user_of, launched(out))) == {"ann": 8, "ben": 4}


def test_the_dominant_share_counts() -> None:
    """Half of the GPUs weighs more than a quarter of the cores."""
    ledger = grid(8, gpus=2)
    submit(ledger, "ann", 1, 0.0, Request(Resources(gpu=1000)))
    submit(ledger, "ben", 2, 0.0)
    submit(ledger, "cleo", 6, 0.0)
    submit(ledger, "ann", 1, 1.0)
    submit(ledger, "ben", 1, 1.0)
    done = next(name for name in ledger.state.allocations if user_of(name) == "cleo")
    assert [user_of(name) for name in end(ledger, done, 1.0)] == ["ben"]


def test_what_was_held_yesterday_counts_half() -> None:
    shares, policy = Shares(), Sharing()
    shares.know(Resources(), Resources(cpu=4000))
    shares.take("ann", Resources(cpu=2000), 0.0, policy)
    assert shares.share("ann", 0.0, policy) == 0.5, "a grant counts from the moment it is made"
    assert shares.share("ann", DAY, policy) == pytest.approx(0.5 + 0.25)
    shares.give("ann", Resources(cpu=2000), DAY, DAY, policy)
    assert shares.share("ann", DAY, policy) == pytest.approx(0.25)
    assert shares.share("ann", 3 * DAY, policy) == pytest.approx(0.25 / 4)
    assert shares.drop(3 * DAY, policy) == []
    assert shares.drop(60 * DAY, policy) == ["ann"]
    assert not shares.accounts and not shares.share("ann", 60 * DAY, policy)


def test_accounts_go_as_soon_as_they_are_negligible_however_often_one_looks() -> None:
    chance, policy, shares = random.Random(2), Sharing(), Shares()
    shares.know(Resources(), Resources(cpu=8000))
    now, held, gone = 0.0, dict[str, Resources](), 0
    for _ in range(tries(3000)):
        now += chance.choice((1.0, 600.0, DAY))
        user = f"u{chance.randrange(40)}"
        if user in held:
            shares.give(user, held.pop(user), chance.choice((0.1, 60.0)), now, policy)
        elif chance.random() < 0.3:
            held[user] = Resources(cpu=chance.choice((1, 1000, 8000)))
            shares.take(user, held[user], now, policy)
        past = {name: shares.past(one, now, policy) for name, one in shares.accounts.items() if not one.held}
        dropped = shares.drop(now, policy)
        assert dropped == [name for name, one in past.items() if one < FORGOTTEN]
        gone += len(dropped)
    assert gone > 50


def test_a_short_attempt_is_charged_as_one_of_ten_seconds() -> None:
    policy = Sharing()
    pasts = []
    for seconds in (0.001, 10.0):
        shares = Shares()
        shares.know(Resources(), Resources(cpu=4000))
        shares.take("ann", Resources(cpu=4000), 0.0, policy)
        shares.give("ann", Resources(cpu=4000), seconds, seconds, policy)
        pasts.append(shares.share("ann", seconds, policy))
    assert pasts[0] == pytest.approx(pasts[1], rel=1e-3)


def test_what_a_node_refused_to_start_is_charged_to_nobody() -> None:
    shares, policy = Shares(), Sharing()
    shares.know(Resources(), Resources(cpu=4000))
    shares.take("ann", Resources(cpu=4000), 0.0, policy)
    shares.give("ann", Resources(cpu=4000), math.inf, 0.0, policy)
    assert shares.share("ann", 0.0, policy) == 0.0


def test_of_users_who_are_about_even_who_waited_longest_goes_first_and_no_other_is_passed() -> None:
    policy = Sharing()
    assert fairness.aged(0.0, policy) == 0.0
    assert fairness.aged(1800.0, policy) == pytest.approx(0.05)
    assert fairness.aged(1e9, policy) == policy.aged_most == 0.1
    ledger = grid(20)
    submit(ledger, "ann", 10, 0.0)
    submit(ledger, "ben", 9, 0.0)
    submit(ledger, "cleo", 1, 0.0)
    submit(ledger, "ann", 1, 1.0)
    submit(ledger, "ben", 1, 3600.0)
    assert [user_of(name) for name in end(ledger, oldest(ledger), 3601.0)] == ["ann"], "0.45 less 0.1 against 0.45"
    submit(ledger, "cleo", 1, 3602.0)
    done = next(name for name in ledger.state.allocations if user_of(name) == "ben")
    assert [user_of(name) for name in end(ledger, done, 3602.0)] == ["cleo"], "who has next to nothing is not passed"


# --- what never happens -----------------------------------------------------------------------------------------------


USERS = ("ann", "ben", "cleo")
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from(USERS), st.integers(1, 3), st.sampled_from(list(Priority))),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.sampled_from((0.1, 5.0, 3600.0, DAY))),
    ),
    max_size=60,
)


@settings(max_examples=tries(20), deadline=None)
@given(ACTS)
@example([*[("submit", "ann", 1, Priority.LOW)] * 3, ("submit", "ben", 1, Priority.LOW), ("wait", DAY), ("end", 0)])
def test_nobody_is_served_before_one_who_is_owed_more(acts: list[tuple[object, ...]]) -> None:
    """Each grant goes to the highest class that waits, there to who is overdue, there to the lowest rank, there to
    the oldest. So a grant never makes the next one go back: ranks are strictly ordered."""
    ledger, now = grid(4, memory=64 * GIB), 1.0
    for kind, *what in acts:
        match kind:
            case "submit":
                user, cores, priority = what
                assert isinstance(user, str) and isinstance(cores, int) and isinstance(priority, Priority)
                request = Request(Resources(cpu=1000 * cores), priority)
                with watched(ledger):
                    submit(ledger, user, 2, now, request)
            case "end" if ledger.state.allocations:
                assert isinstance(what[0], int)
                names = list(ledger.state.allocations)
                with watched(ledger):
                    end(ledger, names[what[0] % len(names)], now)
            case "wait":
                assert isinstance(what[0], float)
                now += what[0]
                ledger.settle(now)


@contextmanager
def watched(ledger: Ledger) -> Iterator[None]:
    """Look at every grant before it is made."""
    grant = ledger.state.grant

    def looked(granted: Job, placement: Placement, *how: Any) -> Allocation:
        queue = ledger.state.queue
        if granted.id not in queue:  # it starts on what was kept for it
            return grant(granted, placement, *how)
        for waiting in queue.turns:
            other = ledger.state.jobs[waiting]
            same = other.user == granted.user and other.request == granted.request
            assert not same or queue.turns[waiting] >= queue.turns[granted.id], "a later one of the same passes it"
            if not _lacks_room(ledger, other):
                assert granted.request.priority >= other.request.priority, "a lower class passes it"
                if granted.request.priority == other.request.priority:
                    mine, its = (
                        queue.rank_at(queue.line(one).standing, queue.turns[one]) for one in (granted.id, waiting)
                    )
                    assert mine <= its, f"{granted.user} goes before {other.user}, who is owed more"
        return grant(granted, placement, *how)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ledger.state, "grant", looked)
        yield


def _lacks_room(ledger: Ledger, other: Job) -> bool:
    """Also where what is free is kept for somebody before it (test_reservations.py)."""
    ask = reservations.asked(ledger.state, other.id)
    return isinstance(reservations.places_for(ledger.state, ledger.state.reservations, ask, ledger.state.now), Refusal)


@settings(max_examples=tries(20), deadline=None)
@given(st.lists(st.tuples(st.sampled_from((0.001, 1.0, 100.0, DAY)), st.booleans()), max_size=40))
def test_a_share_is_never_below_zero_nor_above_all_there_is(moves: list[tuple[float, bool]]) -> None:
    shares, policy, now, taken = Shares(), Sharing(), 0.0, list[float]()
    shares.know(Resources(), Resources(cpu=8000))
    for wait, take in moves:
        now += wait
        if take and len(taken) < 8:
            shares.take("ann", Resources(cpu=1000), now, policy)
            taken.append(now)
        elif taken:
            shares.give("ann", Resources(cpu=1000), now - taken[0], now, policy)
            del taken[0]
        account = shares.accounts.get("ann")
        if account is not None:
            assert dominant(account.held, shares.capacity) == len(taken) / 8
            assert 0.0 <= shares.past(account, now, policy) <= 1.01


@given(st.floats(0.0, 1100.0))
def test_halving_by_plain_arithmetic_is_what_the_library_says(times: float) -> None:
    assert halved(times) == pytest.approx(2.0**-times, rel=1e-12, abs=1e-300)
