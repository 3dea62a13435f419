"""A life of a node's simulated supervisor: what it has promised is in the journal, and outlives it."""

import pytest

from distributed_grid.protocol.jobs import Cause
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.world import World
from tests.simulator.plans import fault, job, run_until, told, world
from tests.simulator.test_mutants import lose_what_was_never_ordered


def test_a_job_begins_once_its_intent_is_synced() -> None:
    of = world(job(), sluggish=0.5)
    machine = of.machines[0]
    run_until(of, lambda: machine.synced < len(machine.journal))
    assert not of.judge.runs
    run_until(of, lambda: of.judge.runs)
    assert machine.synced == len(machine.journal)


def test_one_that_was_killed_is_followed_by_another_that_ends_what_it_took_over() -> None:
    of = world(job(seconds=60.0, cancel_at=20.0), faults=(fault("kill-supervisor", 8.0),))
    run_until(of, lambda: "j0x1.1 runs on n0" in told(of))
    first = of.machines[0].supervisor
    run_until(of, lambda: of.machines[0].supervisor is not first)
    assert first.dead and "j0x1.1" in of.machines[0].supervisor.jobs
    of.go()
    assert of.judge.ended["j0x1"].cause is Cause.CANCELLED and len(of.judge.runs) == 1


def kill_with_an_intent(of: World) -> None:
    """The supervisor is killed when the intent of the first job is written, and its spawner has no order yet."""
    machine = of.machines[0]
    run_until(of, lambda: "intent" in [record[0] for record in machine.journal])
    assert not machine.ordered
    machine.supervisor.dead = True
    of.engine.later(0.05, machine.agent, machine.agent.supervisor_gone)


def test_a_job_that_was_never_ordered_when_its_supervisor_was_killed_waits_again() -> None:
    of = world(job(), sluggish=0.5)
    kill_with_an_intent(of)
    of.go()
    assert of.judge.ended["j0x1"].cause is Cause.EXITED and [*of.judge.runs] == ["j0x1.2"]


def test_a_supervisor_that_loses_it_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lose_what_was_never_ordered(monkeypatch.setattr)
    of = world(job(), sluggish=0.5)
    kill_with_an_intent(of)
    with pytest.raises(Violation, match="j0x1.1 never did"):
        of.go()


def test_after_a_power_cut_what_ran_is_over_as_rebooted() -> None:
    of = world(job(seconds=20.0), faults=(fault("reboot", 8.0, seconds=2.0),))
    of.go()
    assert of.judge.ended["j0x1"].cause is Cause.REBOOTED and len(of.judge.runs) == 1


def test_what_cannot_be_journaled_is_not_begun_before_it_can_be() -> None:
    of = world(job(), faults=(fault("bad-journal", 4.0, seconds=10.0),))
    run_until(of, lambda: bool(of.judge.runs))
    assert of.engine.now >= 14.0
    of.go()
    assert len(of.judge.runs) == 1 and of.judge.ended["j0x1"].cause is Cause.EXITED


def test_a_job_is_ended_at_its_time_limit_and_not_before() -> None:
    of = world(job(seconds=60.0, time_limit=4.0))
    of.go()
    at = {text: when for when, text in of.engine.story}
    took = at["j0x1.1 on n0 is killed by 15"] - at["j0x1.1 runs on n0"]
    assert 4.0 - 0.1 < took < 4.5 and of.judge.ended["j0x1"].cause is Cause.TIME_LIMIT


def test_who_does_not_hear_is_killed_after_its_grace() -> None:
    of = world(job(seconds=60.0, cancel_at=8.0, dying=30.0, grace=2.0))
    of.go()
    at = {text: when for when, text in of.engine.story}
    assert 2.0 <= at["j0x1.1 on n0 is killed by 9"] - at["j0x1 is cancelled"] < 2.5


def test_what_a_main_process_leaves_behind_is_ended_before_the_job_is_over() -> None:
    of = world(job(daemon=True))
    run_until(of, lambda: "j0x1.1" in of.machines[0].main_over)
    assert of.machines[0].lives("j0x1.1") and "j0x1" not in of.judge.ended
    of.go()
    assert not of.machines[0].lives("j0x1.1") and of.judge.ended["j0x1"].cause is Cause.EXITED


def test_what_nobody_needs_any_more_is_forgotten() -> None:
    of = world(job())
    of.go()
    assert not of.machines[0].supervisor.jobs and "exit" in [record[0] for record in of.machines[0].journal]
