"""Successors in the agent's table: they hold nothing until their predecessor is over, and then at once all it held."""

import msgspec
import pytest

from distributed_grid.agent.core.commands import Kill, Prepare, Ready, Report, Run, Withdraw
from distributed_grid.agent.core.entry import keep
from distributed_grid.agent.core.table import Table
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.groups import Gang
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.messages import Ack, Exited, Launch, Stale, Started, Stop
from distributed_grid.protocol.nodes import Known
from distributed_grid.protocol.resources import Grant, ResourceType
from tests.agent.core.test_table import CORE_0, DONE, launch, only, refused, running

NEVER = Outcome(Cause.WITHDRAWN, started=False)


def after(before: str, key: str, grant: Grant = CORE_0) -> Launch:
    return msgspec.structs.replace(launch(key, grant), predecessor=before)


def queued(*keys: str) -> Table:
    """j.1 runs, and these wait behind it, each behind the one before."""
    table, before = running(Table()), "j.1"
    for key in keys:
        order = after(before, key)
        assert table.handle(order, 11.0) == [Prepare(order)]
        assert table.handle(Ready(key), 11.0) == [Run(order, chain="j.1")]
        before = key
    return table


def over(key: str, outcome: Outcome = DONE) -> Exited:
    return Exited(allocation=key, outcome=outcome)


def holders(table: Table) -> list[str]:
    return [one.allocation for one in table.holdings()]


def withdraw(key: str) -> Stop:
    return Stop(allocation=key, cause=Cause.WITHDRAWN, unless_started=True)


# --- who holds --------------------------------------------------------------------------------------------------------


def test_a_successor_is_prepared_and_handed_over_ahead_and_holds_nothing() -> None:
    table = queued("k.1")
    assert holders(table) == ["j.1"]
    assert table.waiting() == {"k.1": "j.1"}
    assert table.inventory(11.0)[-1] == Known("k.1", State.STARTING)


def test_at_its_predecessors_end_it_takes_over_and_nothing_is_free() -> None:
    table = queued("k.1")
    assert table.handle(over("j.1"), 12.0) == [Report(over("j.1"), freed=None)]
    assert holders(table) == ["k.1"] and not table.waiting()
    assert table.handle(Started(allocation="k.1"), 12.0) == [Report(Started(allocation="k.1"))]
    assert table.handle(over("k.1"), 13.0) == [Report(over("k.1"), freed=CORE_0)]


def test_it_takes_over_also_while_it_is_prepared_or_told_to_end() -> None:
    table = running(Table())
    table.handle(after("j.1", "k.1"), 11.0)
    table.handle(over("j.1"), 12.0)
    assert holders(table) == ["k.1"]
    assert table.handle(Ready("k.1"), 12.0) == [Run(after("j.1", "k.1"), chain="j.1")]
    table = queued("k.1")
    table.handle(Stop(allocation="k.1"), 12.0)
    assert table.handle(over("j.1"), 12.0) == [Report(over("j.1"), freed=None)]
    assert table.handle(over("k.1", NEVER), 13.0) == [Report(over("k.1", NEVER), freed=CORE_0)]


def test_whoever_waits_behind_one_that_goes_waits_behind_the_one_before_it() -> None:
    table = queued("k.1", "l.1")
    assert table.handle(over("k.1", NEVER), 12.0) == [Report(over("k.1", NEVER))]
    assert table.waiting() == {"l.1": "j.1"} and holders(table) == ["j.1"]
    assert table.handle(over("j.1"), 12.0) == [Report(over("j.1"))]
    assert holders(table) == ["l.1"]


def test_one_whose_start_is_told_before_its_predecessors_end_has_taken_over() -> None:
    table = queued("k.1")
    table.handle(Started(allocation="k.1", pid=8), 12.0)
    assert holders(table) == ["k.1"]
    assert table.handle(over("j.1"), 12.0) == [Report(over("j.1"))]
    assert table.handle(over("k.1"), 13.0) == [Report(over("k.1"), freed=CORE_0)]


def shipping(before: str, key: str) -> Launch:
    order = after(before, key)
    return msgspec.structs.replace(order, spec=msgspec.structs.replace(order.spec, bundle="b" * 64))


def test_one_with_shipped_files_is_prepared_when_its_turn_has_come() -> None:
    table = running(Table())
    first, second = shipping("j.1", "k.1"), shipping("k.1", "l.1")
    assert table.handle(first, 11.0) == table.handle(second, 11.0) == []
    assert (holders(table), table.waiting()) == (["j.1"], {"k.1": "j.1", "l.1": "j.1"})
    assert table.handle(over("j.1"), 12.0) == [Report(over("j.1")), Prepare(first)]
    assert holders(table) == ["k.1"]
    assert table.handle(Ready("k.1"), 12.0) == [Run(first, chain="j.1")]
    assert table.handle(over("k.1"), 13.0) == [Report(over("k.1")), Prepare(second)]


@pytest.mark.parametrize("event", [Stale(allocation="k.1", reason="busy"), over("k.1", NEVER)])
def test_where_it_cannot_be_prepared_the_turn_is_the_next_ones(event: Stale | Exited) -> None:
    table = running(Table())
    table.handle(shipping("j.1", "k.1"), 11.0)
    table.handle(second := shipping("k.1", "l.1"), 11.0)
    table.handle(over("j.1"), 12.0)
    said = table.handle(event, 12.0)
    assert said == [Report(event), Prepare(second)] and holders(table) == ["l.1"]


def test_one_that_is_taken_back_before_its_turn_is_never_prepared() -> None:
    table = running(Table())
    table.handle(shipping("j.1", "k.1"), 11.0)
    table.handle(second := shipping("k.1", "l.1"), 11.0)
    assert table.handle(withdraw("k.1"), 11.0) == [Kill(withdraw("k.1"))]
    assert table.handle(over("j.1"), 12.0) == [Report(over("j.1"))], "it is not known yet that it never starts"
    assert table.handle(over("k.1", NEVER), 12.0) == [Report(over("k.1", NEVER)), Prepare(second)]


# --- who may follow whom ----------------------------------------------------------------------------------------------


def test_a_launch_after_one_that_is_over_or_unknown_is_like_any_other() -> None:
    for order in (after("x.1", "k.1"), after("k.1", "k.1")):
        assert Table().handle(order, 1.0) == [Prepare(order)]
    assert refused(running(Table()), after("x.1", "k.1")).reason == "core 0 is held by j.1"
    table = running(Table())
    table.handle(over("j.1"), 12.0)
    table.handle(after("j.1", "k.1"), 12.0)
    assert holders(table) == ["k.1"]
    assert table.handle(Ready("k.1"), 12.0) == [Run(after("j.1", "k.1"))]


def test_it_has_the_very_grant_of_its_predecessor() -> None:
    stale = refused(running(Table()), after("j.1", "k.1", Grant(cores=(0,), memory=1)))
    assert stale.reason == "it cannot follow j.1: its predecessor holds something else"
    table = Table()
    table.restore([(Known("j.1", State.RUNNING), None, 7)], now=1.0)
    assert "something else" in refused(table, after("j.1", "k.1", Grant())).reason


def test_each_allocation_has_one_successor() -> None:
    assert refused(queued("k.1"), after("j.1", "l.1")).reason == "it cannot follow j.1: another allocation does"


@pytest.mark.parametrize("how", ["gang", "boost"])
def test_a_boost_or_a_member_of_a_gang_follows_nobody(how: str) -> None:
    order = after("j.1", "k.1")
    if how == "gang":
        order = msgspec.structs.replace(order, gang=Gang(0, ("a", "b"), ("", ""), 1234))
    else:
        spec = msgspec.structs.replace(order.spec, boost=Boost("t", "192.0.2.1:6379", ResourceType.CPU, 1000))
        order = msgspec.structs.replace(order, spec=spec)
    assert "follows nobody" in refused(running(Table()), order).reason


def test_one_that_is_ready_before_its_predecessor_is_handed_over_behind_it() -> None:
    table = running(Table())
    first, second = after("j.1", "k.1"), after("k.1", "l.1")
    table.handle(first, 11.0)
    table.handle(second, 11.0)
    assert table.handle(Ready("l.1"), 11.0) == []
    assert table.handle(Ready("k.1"), 11.0) == [Run(first, chain="j.1"), Run(second, chain="j.1")]


@pytest.mark.parametrize(
    "event", [Stale(allocation="k.1", reason="busy"), Stop(allocation="k.1"), over("k.1", NEVER), withdraw("k.1")]
)
def test_one_that_is_ready_is_handed_over_when_its_predecessor_goes(event: Stale | Stop | Exited) -> None:
    table = running(Table())
    table.handle(after("j.1", "k.1"), 11.0)
    second = after("k.1", "l.1")
    table.handle(second, 11.0)
    table.handle(Ready("l.1"), 11.0)
    assert table.handle(event, 11.0)[-1] == Run(second, chain="j.1")
    assert holders(table) == ["j.1"]


# --- taken back -------------------------------------------------------------------------------------------------------


def test_a_withdrawal_of_one_that_runs_does_nothing() -> None:
    table = queued("k.1")
    table.handle(over("j.1"), 12.0)
    table.handle(Started(allocation="k.1", pid=8), 12.0)
    assert table.handle(withdraw("k.1"), 12.0) == []
    assert table.inventory(12.0)[-1].state is State.RUNNING


def test_one_that_is_withdrawn_while_it_is_prepared_never_starts() -> None:
    table = running(Table())
    table.handle(after("j.1", "k.1"), 11.0)
    assert table.handle(withdraw("k.1"), 11.0) == [Kill(withdraw("k.1"))]
    assert table.handle(Ready("k.1"), 11.0) == [] and not table.waiting()
    assert table.handle(over("k.1", NEVER), 11.0) == [Report(over("k.1", NEVER))]
    assert table.handle(withdraw("k.1"), 11.0) == [Report(over("k.1", NEVER))]


def test_the_supervisor_decides_whether_a_withdrawal_comes_too_late() -> None:
    table = queued("k.1")
    assert table.handle(withdraw("k.1"), 12.0) == [Withdraw(withdraw("k.1"))]
    assert only(table.handle(Started(allocation="k.1"), 12.0)) == Report(Started(allocation="k.1"))
    table = queued("k.1")
    table.handle(withdraw("k.1"), 12.0)
    assert only(table.handle(over("k.1", NEVER), 12.0)) == Report(over("k.1", NEVER))


def test_one_that_is_withdrawn_unheard_of_is_refused_and_told_as_running_if_an_earlier_agent_had_it() -> None:
    table = Table()
    assert table.handle(withdraw("k.1"), 1.0) == [Withdraw(withdraw("k.1"))]
    assert table.handle(launch("k.1"), 1.0) == []
    assert only(table.handle(Started(allocation="k.1"), 1.0)) == Report(Started(allocation="k.1"))
    table.handle(over("k.1"), 1.0)
    table.handle(Ack(allocations=("k.1",)), 1.0)
    report = only(table.handle(withdraw("k.1"), 1.0))
    assert isinstance(report, Report) and isinstance(report.message, Exited)
    assert (report.message.outcome.cause, report.message.outcome.started) == (Cause.NODE_LOST, True)


def test_who_is_told_to_end_is_not_withdrawn() -> None:
    table = queued("k.1")
    table.handle(Stop(allocation="k.1"), 12.0)
    assert table.handle(withdraw("k.1"), 12.0) == []


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_the_next_agent_knows_the_chain_of_what_runs() -> None:
    table = Table()
    kept = keep(after("i.1", "j.1"), "i.1")
    table.restore([(Known("j.1", State.RUNNING), kept, 7)], now=1.0)
    order = after("j.1", "k.1")
    table.handle(order, 1.0)
    assert table.handle(Ready("k.1"), 1.0) == [Run(order, chain="i.1")]


def test_what_follows_a_lost_one_is_never_started() -> None:
    table = queued("k.1")
    table.handle(after("k.1", "l.1"), 11.0)
    table.lose(())
    assert not table.entries and not table.holdings()
    for event in (Ready("l.1"), after("j.1", "k.1"), after("k.1", "l.1")):
        assert table.handle(event, 12.0) == []


def test_one_that_waits_is_lost_with_the_supervisor_that_had_it_and_its_predecessor_is_not() -> None:
    table = queued("k.1")
    table.lose({"j.1"})
    assert holders(table) == ["j.1"] and [*table.entries] == ["j.1"]
