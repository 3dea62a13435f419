"""A grid in one process and one thread: the real cores, and time, links, disks and crashes made from a seed."""

from distributed_grid.simulator.plan import KINDS, Plan, make
from distributed_grid.simulator.run import Run, run, shrink, story
from distributed_grid.simulator.workload import Shape

__all__ = ["KINDS", "Plan", "Run", "Shape", "make", "run", "shrink", "story"]
