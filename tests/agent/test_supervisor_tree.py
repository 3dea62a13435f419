"""What is left of a job, where the list of our children and the processes themselves disagree for a moment."""

import subprocess
import sys

SCENE = """
import os, subprocess, sys
from distributed_grid.agent import supervisor_procs as procs
from distributed_grid.agent.supervisor_job import Job
from distributed_grid.agent.supervisor_tree import Tree

tree = Tree(lambda _: None, lambda _: False)
job = Job("j-a.1", 0.0, 0.0, 1.0, [])
tree.main_ended(job, 0)
tree._find_orphans()
print("alone", tree.alive(job))
child = subprocess.Popen([sys.executable, "-c", ""])
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is over, and not reaped
seen = procs.stat(child.pid)
print("child", seen and seen.state)
tree._find_orphans()
print("zombie", tree.alive(job))
child.wait()
tree._find_orphans()
print("reaped", tree.alive(job))
"""


def test_a_job_is_not_gone_while_a_child_that_turned_zombie_may_have_left_another() -> None:
    """A daemon forks, its parent dies after our list of children was read: the daemon is only in the next list. In a
    process of its own, since the tests' own one may have children of which a tree knows nothing."""
    told = subprocess.run([sys.executable, "-c", SCENE], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.splitlines() == ["alone False", "child Z", "zombie True", "reaped False"]
