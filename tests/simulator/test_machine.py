"""A node that is simulated: what outlives its processes, and how long they run."""

from collections.abc import Callable

import pytest

from distributed_grid.protocol.jobs import JobSpec
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.resources import GIB, Grant
from distributed_grid.simulator.engine import Engine, Violation
from distributed_grid.simulator.judging.judge import Judge
from distributed_grid.simulator.judging.truth import Run
from distributed_grid.simulator.machine import Machine
from distributed_grid.simulator.plan import NodePlan
from distributed_grid.simulator.workload import JobPlan
from tests.simulator.plans import job, node

KEY = "j0x1.1"


def machine(plan: NodePlan | None = None, one: JobPlan | None = None) -> Machine:
    """A node on which the job may be spawned."""
    engine, plan, one = Engine(), plan or node(), one or job()
    made = Machine(engine, Judge((one,), (plan,)), plan)
    made.specs[KEY] = Launch(
        allocation=KEY, job="j0x1", user="u", epoch=1, grant=Grant((0,), memory=GIB), spec=JobSpec(("true",))
    )
    return made


def over_at(of: Machine) -> tuple[float, Run]:
    """When the job's process has come to its end."""
    run = of.runs[KEY]
    while run.alive:
        assert of.engine.step(), "it never ends"
    return of.engine.now, run


def after(of: Machine, seconds: float, act: Callable[[str], None]) -> None:
    of.engine.at(seconds, None, act, KEY)


def test_a_process_runs_its_time_and_exits_with_its_code() -> None:
    of = machine(one=job(codes=(3,)))
    of.spawn(KEY)
    assert of.lives(KEY)
    at, run = over_at(of)
    assert (at, run.code, run.signal) == (3.0, 3, 0) and not of.lives(KEY)


@pytest.mark.parametrize(("thawed", "least"), [(2.5, 4.5), (8.0, 10.0)])
def test_what_is_frozen_takes_at_least_so_much_longer(thawed: float, least: float) -> None:
    of = machine()
    of.spawn(KEY)
    after(of, 1.0, of.freeze)
    after(of, thawed, of.thaw)
    assert over_at(of)[0] >= least


def test_a_process_that_is_killed_ends_by_that_signal_and_never_exits() -> None:
    of = machine()
    of.spawn(KEY)
    after(of, 1.0, of.kill)
    at, run = over_at(of)
    assert (at, run.code, run.signal) == (1.0, None, 9)


def test_who_is_frozen_cannot_be_asked_to_end() -> None:
    of = machine()
    of.spawn(KEY)
    of.freeze(KEY)
    with pytest.raises(Violation, match="asked to end while it is frozen"):
        of.terminate(KEY)


def test_what_a_daemon_leaves_behind_lives_on_until_it_is_killed() -> None:
    of = machine(one=job(daemon=True))
    of.spawn(KEY)
    while KEY not in of.main_over:
        assert of.engine.step()
    assert of.lives(KEY)
    of.kill(KEY)
    assert not of.lives(KEY) and of.runs[KEY].code == 0


def test_a_time_limit_before_its_time_is_a_violation() -> None:
    of = machine()
    of.spawn(KEY)
    began = of.clock()
    of.engine.now = 2.0
    of.had_its_time(KEY, 2.0, began)
    with pytest.raises(Violation, match="is ended for its time limit of 3 s after 2.00 s"):
        of.had_its_time(KEY, 3.0, began)


def test_a_power_cut_leaves_what_is_synced_and_perhaps_more() -> None:
    left = set()
    for seed in range(40):
        of = machine(node(seed=seed))
        of.journal[:] = [["synced"], ["first"], ["second"]]
        of.synced = 1
        of.power_cut()
        assert of.journal == [["synced"], ["first"], ["second"]][: len(of.journal)] and of.synced == len(of.journal)
        left.add(len(of.journal))
    assert left == {1, 2, 3}


def test_a_power_cut_ends_all_processes_and_what_was_to_happen_to_them() -> None:
    of = machine()
    of.spawn(KEY)
    before = of.facts().boot_id
    of.power_cut()
    assert not of.lives(KEY) and not of.judge.living["n0"] and of.facts().boot_id != before
    assert not of.engine.step(), "its process was to exit"


def test_its_clock_goes_a_little_wrong() -> None:
    of = machine(node(rate=1.01))
    start = of.clock()
    of.engine.now = 100.0
    assert of.clock() - start == pytest.approx(101.0) and of.seconds(101.0) == pytest.approx(100.0)


def test_what_its_owner_uses_is_measured() -> None:
    of = machine()
    assert of.sample().foreign_cpu == 0.0
    of.use(0.5)
    sample = of.sample()
    assert (sample.foreign_cpu, sample.cores) == (1.0, {0: 50, 1: 50}) and sample.gpus[0].memory_used == 8 * GIB
