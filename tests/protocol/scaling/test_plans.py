"""Plans: when one changes nothing."""

from distributed_grid.protocol.scaling.plans import Create, DrainCause, DrainMachine, NotDone, ReturnMachine, ScalePlan


def test_a_plan_that_only_says_why_nothing_is_done_is_quiet() -> None:
    assert ScalePlan(at=1.0, not_done=(NotDone(what="x", code="limit", why="y"),)).quiet


def test_a_plan_that_changes_something_is_not() -> None:
    assert not ScalePlan(at=1.0, creates=(Create(pool="a", provider="p"),)).quiet
    assert not ScalePlan(at=1.0, drains=(DrainMachine(machine="m", pool="a", cause=DrainCause.IDLE),)).quiet
    assert not ScalePlan(at=1.0, returns=(ReturnMachine(machine="m", pool="a"),)).quiet
