"""Small worlds for the tests of the lab."""

from collections.abc import Sequence

from hypothesis import strategies as st

from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.simulator.lab.baselines import BASELINES
from distributed_grid.simulator.lab.grid import Grid
from distributed_grid.simulator.lab.trace import Machine, TraceJob
from distributed_grid.simulator.lab.world import Scheduler, World


def job(submit: float, duration: float, cores: float, requested: float | None = None, **other: object) -> TraceJob:
    """A job; it requests what it takes, if nothing else is said."""
    gpu = int(other.pop("gpu", 0))  # type: ignore[call-overload]
    memory = int(other.pop("memory", 0))  # type: ignore[call-overload]
    limit = duration if requested is None else requested
    amount = Resources(int(cores * 1000), memory, gpu)
    return TraceJob(submit, duration, amount, limit, **other)  # type: ignore[arg-type]


def scheduler(policy: str, machines: Sequence[Machine], jobs: Sequence[TraceJob], seed: int = 0) -> Scheduler:
    """A policy by its name."""
    return Grid(machines, jobs) if policy == "grid" else BASELINES[policy](machines, jobs, seed=seed)


def schedule(
    policy: str, jobs: Sequence[TraceJob], cores: int = 4, machines: Sequence[Machine] = (), seed: int = 0
) -> list[float]:
    """When each job starts, on one machine with so many cores, or on these; everything is checked at each moment."""
    machines = machines or [Machine("m", cores)]
    world = World(machines, jobs, scheduler(policy, machines, jobs, seed))
    world.run(World.check)
    return [record.began for record in world.records]


MACHINES = [Machine("a", 4, 4 * GIB, 2), Machine("b", 8, 2 * GIB), Machine("c", 2, GIB, 1)]


@st.composite
def workloads(draw: st.DrawFn, most: int = 25) -> list[TraceJob]:
    """Jobs each of which fits on one of MACHINES; some without requested times."""
    found, at = [], 0.0
    for _ in range(draw(st.integers(1, most))):
        at += draw(st.sampled_from([0.0, 0.0, 1.0, 7.0, 60.0]))
        gpu = draw(st.sampled_from([0, 0, 250, 500, 1000, 2000]))
        cores = draw(st.sampled_from([0.25, 0.5, 1, 2, 4, 8] if not gpu else [0.5, 1, 2]))
        duration = draw(st.sampled_from([1.0, 5.0, 30.0, 300.0]))
        limit = draw(st.sampled_from([0.0, duration, 2 * duration]))
        user = draw(st.sampled_from("abc"))
        memory = draw(st.sampled_from([0, GIB // 2, GIB]))
        found.append(job(at, duration, cores, limit, gpu=gpu, memory=memory, user=user))
    return found
