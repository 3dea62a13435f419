"""Small plans made by hand, and what becomes of them."""

from collections.abc import Callable
from typing import Any

from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from distributed_grid.simulator.plan import FaultPlan, NodePlan, Plan
from distributed_grid.simulator.workload import JobPlan, Shape
from distributed_grid.simulator.world import World, begin_fault


def node(number: int = 0, **other: Any) -> NodePlan:
    """A node with two cores and a clock that goes right."""
    known: dict[str, Any] = {"cores": 2, "memory": 8 * GIB, "gpus": 1, "says_every": 10.0, "rate": 1.0, "seed": number}
    return NodePlan(number=number, **(known | other))


def job(number: int = 0, at: float = 5.0, seconds: float = 3.0, cpu: int = MILLI, **other: Any) -> JobPlan:
    """A job of one core that exits with 0."""
    known: dict[str, Any] = {
        "request": Request(Resources(cpu, GIB), Priority.MEDIUM), "codes": (0,), "daemon": False, "dying": 0.01,
        "grace": 1.0, "time_limit": 0.0, "unheard": 0, "cancel_at": -1.0,
    }  # fmt: skip
    return JobPlan(number=number, at=at, seconds=seconds, **(known | other))


def fault(kind: str, at: float, seconds: float = 5.0, node: int = 0, how: float = 0.9, number: int = 0) -> FaultPlan:
    return FaultPlan(number=number, kind=kind, at=at, seconds=seconds, node=node, how=how)


def world(
    *jobs: JobPlan, faults: tuple[FaultPlan, ...] = (), nodes: tuple[NodePlan, ...] = (node(),), **other: Any
) -> World:
    """A recorded world of these that was not run yet."""
    shape = Shape(nodes=len(nodes), jobs=len(jobs), faults=len(faults), seconds=30.0, events=0)
    known: dict[str, Any] = {"seed": 0, "chance": 0, "lost_after": 20.0, "sluggish": 0.0}
    made = Plan(shape=shape, nodes=nodes, jobs=jobs, faults=faults, **(known | other))
    return World(made, begin_fault, recording=True)


def run_until(of: World, condition: Callable[[], object]) -> None:
    """Go on until this is so."""
    while not condition():
        assert of.engine.step(), "it comes to its end before"


def told(of: World) -> list[str]:
    """Its story, without times."""
    return [text for _, text in of.engine.story]
