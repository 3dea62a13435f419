"""What is left of a job, where the list of our children and the processes themselves disagree for a moment."""

import os
import subprocess
import sys

from distributed_grid.agent import supervisor_procs as procs
from distributed_grid.agent.supervisor_job import Job
from distributed_grid.agent.supervisor_tree import Tree


def test_a_job_is_not_gone_while_a_child_that_turned_zombie_may_have_left_another() -> None:
    """A daemon forks, its parent dies after our list of children was read: the daemon is only in the next list."""
    tree = Tree(lambda _: None, lambda _: False)
    job = Job("j-a.1", 0.0, 0.0, 1.0, [])
    tree.main_ended(job, 0)
    tree._find_orphans()
    assert not tree.alive(job)
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is over, and not reaped
    seen = procs.stat(child.pid)
    assert seen is not None and seen.state == "Z"
    tree._find_orphans()
    assert tree.alive(job)
    child.wait()
    tree._find_orphans()
    assert not tree.alive(job)
