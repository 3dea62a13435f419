"""What is left of a job, where the list of our children and the processes themselves disagree for a moment."""

import subprocess
import sys

SCENE = """
import os, subprocess, sys
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import Job
from distributed_grid.agent.supervisor.tree import Tree
from distributed_grid.agent.cgroups.groups import SlotGroups
from distributed_grid.agent.cgroups.groups import Cgroups

ungrouped = SlotGroups(Cgroups({}, print), "/", print)
tree = Tree(lambda _: None, lambda *_: None, lambda: (set(), False), lambda _: False, ungrouped)
job = Job("j-a.1", 0.0, 0.0, 1.0, [])
job.orphaned, tree.running[job.id] = True, job  # its spawner is dead, and what it left is ours
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


HIDDEN = """
import os, subprocess, sys, time
from distributed_grid.agent.supervisor.job import Job
from distributed_grid.agent.supervisor.tree import Tree
from distributed_grid.agent.cgroups.groups import SlotGroups
from distributed_grid.agent.cgroups.groups import Cgroups

ungrouped = SlotGroups(Cgroups({}, print), "/", print)
tree = Tree(lambda _: None, lambda *_: None, lambda: (set(), False), lambda _: False, ungrouped)
one, other, later = (Job(f"j-{name}.1", 0.0, 0.0, 1.0, []) for name in "abc")
one.orphaned = other.orphaned = True
tree.running |= {job.id: job for job in (one, other)}
child = subprocess.Popen(["sleep", "1000"], env={}, start_new_session=True)
tree._find_orphans()
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it was ended, and is not reaped
tree.main_ended(one, 0)
tree.running[later.id] = later
print("killed", tree.alive(one), tree.alive(other), tree.alive(later))
tree.reap(lambda pid: None)
print("reaped", tree.alive(one), tree.alive(other), tree.alive(later))
"""


KNOWN = """
import os, subprocess
from distributed_grid.agent.cgroups.groups import Cgroups, SlotGroups
from distributed_grid.agent.supervisor.job import Job, Place
from distributed_grid.agent.supervisor.tree import Tree
from distributed_grid.agent.walls import accounts

ungrouped = SlotGroups(Cgroups({}, print), "/", print)
tree = Tree(lambda _: None, lambda *_: None, lambda: (set(), False), lambda _: False, ungrouped)
stays = subprocess.Popen(["sleep", "1000"])
print(tree.is_job(stays.pid), tree.is_job(os.getpid()), tree.is_job(1))
job = Job("j-a.1")
job.pid = stays.pid
tree.watched.add(job)
print(tree.is_job(stays.pid))
tree.watched.clear()
job.pid, job.place = 0, Place("s", "none", 0, 0, False, stays.pid, 0, 0)
tree.watched.add(job)
print(tree.is_job(stays.pid))
stays.kill()
stays.wait()
tree.watched.clear()
print(tree.is_job(stays.pid))
"""

ADOPTED = """
import subprocess
from distributed_grid.agent.cgroups.groups import Cgroups, SlotGroups
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import Job, Place
from distributed_grid.agent.supervisor.tree import Tree

ungrouped = SlotGroups(Cgroups({}, print), "/", print)
tree = Tree(lambda _: None, lambda *_: None, lambda: (set(), False), lambda _: False, ungrouped)
spawner = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
main = int(spawner.stdout.readline())
job = Job("j-a.1")
job.place, job.adopted = Place("s", "none", 0, 0, False, spawner.pid, procs.stat(spawner.pid).start, 0), True
print([*tree.members(job)] == [main], {*tree.members(job, spawner=True)} == {spawner.pid, main})
procs.send(main, procs.stat(main).start, 9)
spawner.wait()
"""


def told(scene: str) -> list[str]:
    """What comes of it in a process of its own: the tests' one may have children of which a tree knows nothing."""
    done = subprocess.run([sys.executable, "-c", scene], capture_output=True, text=True, check=True, timeout=100)
    return done.stdout.splitlines()


def test_a_job_is_not_gone_while_a_child_that_turned_zombie_may_have_left_another() -> None:
    """A daemon forks, its parent dies after our list of children was read: the daemon is only in the next list."""
    assert told(SCENE) == ["alone False", "child Z", "zombie True", "reaped False"]


def test_a_job_is_not_gone_while_what_hid_whose_it_was_is_dying() -> None:
    """It came to light while several ran, and may have been of any of these; not of one that began afterwards."""
    assert told(HIDDEN) == ["killed True True False", "reaped False False False"]


def test_a_process_is_known_as_a_jobs_by_the_journal_and_one_that_is_gone_is_taken_for_one() -> None:
    assert told(KNOWN) == ["False False False", "True", "True", "True"]


def test_the_spawner_of_an_adopted_job_is_none_of_its_processes() -> None:
    """Or it would be frozen with them, and count against their limits of memory and processes."""
    assert told(ADOPTED) == ["True True"]
