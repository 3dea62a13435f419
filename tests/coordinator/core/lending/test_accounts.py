"""Loans in the ledger: whose node it is says the configuration, a credit decides between nearly equal shares and
starves nobody, and balances outlast the coordinator."""

import random
from copy import deepcopy

import pytest
from msgspec.structs import astuple

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import (
    Command,
    JobsSubmitted,
    Lent,
    MessageReceived,
    RecordLoan,
    Send,
    Tick,
)
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lending import accounts
from distributed_grid.coordinator.core.policy import Policy, Sharing
from distributed_grid.coordinator.core.queue.ranking import counted
from distributed_grid.coordinator.core.views import shares
from distributed_grid.protocol.jobs import Cause, Outcome, Request, ServiceOrder
from distributed_grid.protocol.messages import Exited, Launch, Started
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import decoded, facts, job, join, step
from tests.depth import tries

HOUR = 3600.0
OWNED = Sharing(owners={"n1": "ann", "n2": "ben"})


def grid(sharing: Sharing = OWNED, cores: int = 2, nodes: int = 2) -> Ledger:
    ledger = Ledger(policy=patient(sharing))
    for number in range(1, nodes + 1):
        join(ledger, facts(f"n{number}", cores, owners=("eve",)), expires_in=1e9)
    return ledger


def patient(sharing: Sharing) -> Policy:
    return Policy(suspect_after=1e9, disconnected_after=1e9, lost_after=1e9, sharing=sharing)


def ask(ledger: Ledger, name: str, now: float, user: str, cores: int = 1, node: str = "") -> list[Command]:
    request = Request(Resources(cpu=cores * 1000), nodes=(node,) if node else ())
    return step(ledger, JobsSubmitted(1, (job(name, request, now, user, time_limit=HOUR),)), now)


def begin(ledger: Ledger, name: str, now: float) -> None:
    one = ledger.state.jobs[name]
    step(ledger, MessageReceived(one.node, Started(allocation=one.allocation)), now)


def end(ledger: Ledger, name: str, now: float) -> list[Command]:
    one = ledger.state.jobs[name]
    return step(ledger, MessageReceived(one.node, Exited(one.allocation, Outcome(cause=Cause.EXITED), True)), now)


def started(commands: list[Command]) -> list[str]:
    return [one.message.job for one in commands if isinstance(one, Send) and isinstance(one.message, Launch)]


# --- what a loan is ---------------------------------------------------------------------------------------------------


def test_what_a_user_holds_on_a_node_of_another_is_lent_to_them_and_on_their_own_it_is_not() -> None:
    ledger = grid(nodes=3)
    for name, user, node in (("a", "ben", "n1"), ("b", "ann", "n1"), ("c", "ann", "n3")):
        ask(ledger, name, 1.0, user, node=node)
    (lent,) = ledger.state.loans.live.values()
    assert (lent.lender, lent.borrower, lent.node) == ("ann", "ben", "n1")
    assert lent.part == pytest.approx(1 / 6)


def test_whose_a_node_is_says_the_configuration_and_not_the_node() -> None:
    ledger = grid(Sharing())
    ask(ledger, "a", 1.0, "ben", node="n1")
    assert not ledger.state.loans.live, "eve is what its agent says"


def test_a_successor_borrows_from_when_it_holds_something() -> None:
    ledger = grid()
    ask(ledger, "a", 1.0, "ben", node="n1")
    begin(ledger, "a", 1.0)
    end(ledger, "a", HOUR)
    assert not ledger.state.loans.live
    (told,) = accounts.pairs(ledger.state, HOUR)
    assert (told.lender, told.borrower, told.loans, told.now) == ("ann", "ben", 0, 0.0) and told.past > 0


# --- the order of service ---------------------------------------------------------------------------------------------


def lent_before(sharing: Sharing = OWNED) -> Ledger:
    """Cleo has borrowed of ann for long, and holds nothing now; eve holds all."""
    ledger = grid(sharing)
    ask(ledger, "loan", 1.0, "cleo", 2, "n1")
    begin(ledger, "loan", 1.0)
    end(ledger, "loan", 24 * HOUR)
    for name, node in (("held1", "n1"), ("held2", "n2")):
        ask(ledger, name, 24 * HOUR, "eve", 2, node)
        begin(ledger, name, 24 * HOUR)
    return ledger


def test_of_two_who_hold_and_held_nothing_the_one_who_is_owed_comes_first() -> None:
    ledger = lent_before()
    ask(ledger, "his", 24 * HOUR + 1, "dan")
    ask(ledger, "hers", 24 * HOUR + 2, "ann")
    assert started(end(ledger, "held1", 24 * HOUR + 10)) == ["hers", "his"]
    ledger = lent_before(Sharing(owners=OWNED.owners, credit=0.0))
    ask(ledger, "his", 24 * HOUR + 1, "dan")
    ask(ledger, "hers", 24 * HOUR + 2, "ann")
    assert started(end(ledger, "held1", 24 * HOUR + 10)) == ["his", "hers"]


def test_why_and_shares_show_what_a_credit_counts() -> None:
    ledger = lent_before()
    ask(ledger, "hers", 24 * HOUR + 1, "ann")
    now = 24 * HOUR + 10
    told = explain.why(ledger.state, "hers", None, now).precedence
    assert told is not None and told.credit == pytest.approx(0.1)
    credits = {one.user: one.credit for one in shares(ledger.state, now)}
    assert (credits["ann"], credits["cleo"]) == (0.1, -0.1)
    assert -0.001 < credits["eve"] < 0 < credits["ben"] < 0.001, "what lasts for seconds counts for little"


@pytest.mark.parametrize("order", list(ServiceOrder))
@pytest.mark.parametrize("seed", range(tries(4, 2)))
def test_a_credit_never_reverses_shares_that_differ_by_more_than_it_may_count(order: ServiceOrder, seed: int) -> None:
    """Whatever was lent and borrowed, for however long: so no stream of borrowing or lending starves anybody."""
    chance = random.Random(seed)
    sharing = Sharing(order=order, owners={f"n{n}": chance.choice(("ann", "ben", "cleo")) for n in (1, 2, 3)})
    ledger, now, running = grid(sharing, cores=4, nodes=3), 1.0, list[str]()
    for number in range(60):
        now += chance.expovariate(1 / HOUR)
        ask(ledger, f"j{number}", now, chance.choice(("ann", "ben", "cleo", "dan")), chance.randint(1, 3))
        for name in [*ledger.state.jobs]:
            if ledger.state.jobs[name].allocation and name not in running:
                begin(ledger, name, now)
                running.append(name)
        if running and chance.random() < 0.6:
            end(ledger, running.pop(chance.randrange(len(running))), now)
        ledger.check()
        for user in ("ann", "ben", "cleo", "dan"):
            share = ledger.state.shares.share(user, now, sharing)
            assert abs(counted(ledger.state, user, now) - share) <= sharing.credit + 1e-12


# --- over restarts ----------------------------------------------------------------------------------------------------


def test_balances_are_saved_once_a_minute_and_known_after_a_restart_with_what_went_on_meanwhile() -> None:
    ledger = grid()
    ask(ledger, "over", 1.0, "ben", 1, "n1")
    begin(ledger, "over", 1.0)
    ask(ledger, "on", 1.0, "cleo", 1, "n1")
    begin(ledger, "on", 1.0)
    out = end(ledger, "over", 50.0) + step(ledger, Tick(), 62.0)
    saved = {(one.lender, one.borrower): (one.past, one.at) for one in out if isinstance(one, RecordLoan)}
    assert saved.keys() == {("ann", "ben"), ("ann", "cleo")}
    (days,) = [one.days for one in out if isinstance(one, Lent)]
    assert {(one.borrower, one.cpu) for one in days} == {("ben", 49.0), ("cleo", 61.0)}
    jobs, held = deepcopy([*ledger.state.jobs.values()]), deepcopy([*ledger.state.allocations.values()])
    again = Ledger(policy=patient(OWNED))
    nodes = [one.facts for one in ledger.state.nodes.values()]
    again.restore(jobs, held, nodes, 1000.0, lent=saved)
    again.check()
    before, after = ([astuple(one) for one in accounts.balances(of.state, 1000.0)] for of in (ledger, again))
    assert [one[0] for one in before] == [one[0] for one in after]
    assert [one[1:] for one in after] == [pytest.approx(one[1:]) for one in before]
    (more,) = again.state.loans.unreported(1000.0)
    assert (more.borrower, more.cpu) == ("cleo", 938.0), "since it was counted last, and not twice"


def test_a_node_that_is_renamed_keeps_what_its_owner_is_owed_and_lends_for_whom_its_new_name_is() -> None:
    """Owners are configured by the names of nodes, which a coordinator that is started again reads anew."""
    ledger = grid(Sharing(owners={"n1": "ann"}))
    ask(ledger, "over", 1.0, "ben", 1, "n1")
    begin(ledger, "over", 1.0)
    saved = {
        (one.lender, one.borrower): (one.past, one.at)
        for one in end(ledger, "over", HOUR) + step(ledger, Tick(), HOUR + 62.0)
        if isinstance(one, RecordLoan)
    }
    owed = ledger.state.loans.credit("ann", HOUR + 62.0, OWNED)
    again = Ledger(policy=patient(Sharing(owners={"n9": "ann"})))
    again.restore((), (), [one.facts for one in ledger.state.nodes.values()], HOUR + 62.0, lent=saved)
    assert owed > 0 and again.state.loans.credit("ann", HOUR + 62.0, OWNED) == pytest.approx(owed)
    join(again, facts("n9", 2), HOUR + 70.0, expires_in=1e9)
    join(again, facts("n1", 2), HOUR + 70.0, expires_in=1e9)
    for name, node in (("new", "n9"), ("old", "n1")):
        ask(again, name, HOUR + 80.0, "ben", 1, node)
    (loan,) = again.state.loans.live.values()
    assert (loan.lender, loan.borrower, loan.node) == ("ann", "ben", "n9"), "the old name is nobody's now"


def test_a_checkpoint_has_all_loans_and_goes_on_from_there() -> None:
    ledger = grid()
    ask(ledger, "a", 1.0, "ben", 1, "n1")
    begin(ledger, "a", 1.0)
    step(ledger, Tick(), 30.0)
    ask(ledger, "b", 40.0, "cleo", 1, "n1")
    other = checkpoint.resume(decoded(checkpoint.take(ledger)))
    for one in (ledger, other):
        end(one, "b", 50.0)
        step(one, Tick(), 70.0)
        one.check()
    assert checkpoint.differs(checkpoint.take(ledger), checkpoint.take(other)) == ""
    assert accounts.balances(ledger.state, 100.0) == accounts.balances(other.state, 100.0)
