"""A world goes through the faults of its plan to its end, and what has no good end is a violation."""

import pytest

from distributed_grid.protocol.jobs import Cause
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.machine import Machine
from distributed_grid.simulator.plan import KINDS
from tests.simulator.plans import fault, job, node, run_until, told, world

JOB = "j0x1"


def test_without_a_fault_a_job_runs_once_and_is_told_as_it_was() -> None:
    of = world(job())
    of.go()
    assert [one.allocation for one in of.judge.runs.values()] == ["j0x1.1"] and not of.faults
    assert (of.judge.ended[JOB].cause, of.judge.ended[JOB].code) == (Cause.EXITED, 0)
    assert told(of)[-1] == "peace"


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_fault_is_survived_by_itself(kind: str) -> None:
    of = world(job(seconds=6.0), faults=(fault(kind, 7.0, node=0),), nodes=(node(0), node(1)))
    of.go()
    assert of.faults == {kind: 1}
    assert any(line.startswith(f"fault0: {kind}") for line in told(of)) and JOB in of.judge.ended


def test_a_power_cut_ends_what_ran_and_it_is_told_so() -> None:
    of = world(job(seconds=6.0), faults=(fault("reboot", 8.0),))
    of.go()
    assert of.judge.ended[JOB].cause is Cause.REBOOTED and of.machines[0].boots == 2


def test_at_peace_every_fault_is_over_before_its_time() -> None:
    kinds = ("slow-disk", "kill-coordinator", "kill-agent")
    of = world(faults=tuple(fault(kind, 20.0, 500.0, number=number) for number, kind in enumerate(kinds)))
    run_until(of, lambda: of.machines[0].agent.dead)
    assert of.reachable() is None and of.weather.slow and of.engine.now < 21.0
    run_until(of, lambda: of.healed)
    assert of.reachable() is of.coordinator and not of.machines[0].agent.dead and not of.weather.slow


def test_a_job_that_nobody_ends_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "_done", lambda self, run, code, counted: None)
    with pytest.raises(Violation, match="j0x1: it is running for ever, on n0"):
        world(job()).go()


def test_a_job_that_fits_nowhere_may_wait_for_ever() -> None:
    of = world(job(cpu=4000), nodes=(node(0), node(1, cores=1)))
    of.go()
    assert not of.judge.runs


def test_an_assertion_of_a_core_is_a_violation() -> None:
    def fails() -> None:
        raise AssertionError("the room is not what the allocations say")

    of = world()
    of.engine.at(3.0, None, fails)
    with pytest.raises(Violation, match="the ledger: the room is not what the allocations say"):
        of.go()
