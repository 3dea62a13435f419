"""The benchmark of scaling runs the real ledger, and its other policies do what they are called."""

from bench.policies.scaling import IDLE, MOST, World, compare, plan_time, timeout_alone
from distributed_grid.coordinator.core.scaling import passes
from distributed_grid.coordinator.core.scaling.plan import plan
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.simulator.lab.trace import TraceJob

JOBS = [TraceJob(submit=300.0 * at, duration=200.0, resources=Resources(4000, GIB)) for at in range(6)]


def test_each_policy_runs_all_jobs_and_is_counted() -> None:
    found = {row["policy"]: row for row in compare(JOBS)}
    assert len(found) == 5 and vars(passes)["plan"] is plan, "the grid's own is back"
    assert found["the grid"]["creations"] == 1 and found["the grid"]["wasted"] == 0
    assert found["always the most"]["creations"] == MOST
    assert found["the grid"]["machine_hours"] < found["idle timeout alone"]["machine_hours"]
    assert found["always the most"]["wait_p95"] <= found["the grid"]["wait_p95"]


def test_a_timeout_alone_creates_all_that_there_may_be() -> None:
    world = World(JOBS[:1], timeout_alone)
    world.run()
    assert world.created == MOST and len(world.waits) == 1 and IDLE > 0


def test_a_plan_at_size_is_timed() -> None:
    made, times = plan_time(60, waiting=60, kinds=6, machines=40, pools=4)
    assert made > 0 and times == sorted(times)
