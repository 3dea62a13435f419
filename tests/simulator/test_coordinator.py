"""A life of the simulated coordinator: what it says is on disk before, and the next life goes on where it ended."""

from distributed_grid.protocol.jobs import Cause, State
from distributed_grid.simulator.world import WALL
from tests.simulator.plans import fault, job, run_until, told, world


def test_nothing_is_answered_before_a_slow_disk_has_it() -> None:
    of = world(job(), faults=(fault("slow-disk", 4.0, seconds=20.0, how=1.0),))
    run_until(of, lambda: "job 0 is submitted as j0x1" in told(of))
    run_until(of, lambda: of.coordinator.disk.rows)
    assert not of.judge.promised, "it has just become durable"
    run_until(of, lambda: of.judge.promised)
    of.go()
    assert of.judge.ended["j0x1"].cause is Cause.EXITED


def test_while_the_disk_fails_nothing_is_acknowledged_and_afterwards_all_is() -> None:
    of = world(job(at=6.0), faults=(fault("bad-disk", 5.0, seconds=8.0),))
    run_until(of, lambda: of.engine.now > 12.0)
    assert not of.judge.promised and "a commit of the coordinator fails" in told(of)
    of.go()
    assert of.judge.ended["j0x1"].cause is Cause.EXITED


def test_the_next_life_has_the_next_epoch_and_all_that_was_committed() -> None:
    of = world(job(seconds=60.0), faults=(fault("kill-coordinator", 10.0, seconds=3.0),))
    run_until(of, lambda: of.coordinator.dead)
    first, clock = of.coordinator, of.coordinator.clock()
    run_until(of, lambda: not of.coordinator.dead)
    second = of.coordinator
    assert (first.epoch, second.epoch) == (1, 2) and second.ledger.state.jobs["j0x1"].state is not State.WAITING
    assert second.clock() >= clock and second.instance != first.instance
    of.go()
    assert len(of.judge.runs) == 1, "the job has run on"


def test_its_clock_does_not_go_back_behind_a_commit_with_the_wall() -> None:
    of = world(faults=(fault("wall-jump", 5.0, how=0.9), fault("kill-coordinator", 8.0, 2.0, number=1)))
    run_until(of, lambda: of.coordinator.epoch == 2)
    assert of.wall < WALL, "it was set back a day"
    assert of.coordinator.clock() >= of.coordinator.disk.clock >= WALL


def test_while_it_is_suspended_nothing_is_decided() -> None:
    of = world(job(at=5.0), faults=(fault("stop-coordinator", 4.5, seconds=3.0),))
    run_until(of, lambda: of.engine.now > 7.0)
    assert not of.coordinator.ledger.state.jobs
    of.go()
    at = {text: when for when, text in of.engine.story}
    assert at["j0x1.1 runs on n0"] >= 7.5


def test_of_two_with_one_epoch_an_agent_obeys_the_one_that_it_knows() -> None:
    of = world(job(), faults=(fault("second-coordinator", 2.0, 20.0), fault("cut", 3.0, number=1)))
    of.go()
    assert "does not obey this coordinator" in " ".join(told(of)) and len(of.judge.runs) == 1


def test_where_run_times_are_predicted_jobs_that_wait_have_one() -> None:
    of = world(job(cpu=2000, seconds=30.0), job(1, at=6.0, cpu=2000, seconds=4.0), predicts=True)
    run_until(of, lambda: "j1x1" in of.coordinator.ledger.state.queue)
    run_until(of, lambda: of.coordinator.ledger.state.jobs["j1x1"].planned > 0.0)
    assert of.coordinator.ledger.state.jobs["j0x1"].planned == 0.0, "it did not wait"
    of.go()
