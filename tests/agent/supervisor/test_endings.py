"""A job that was killed and of which something lives all the same: it holds what it has, the node says so, and runs
jobs of strangers again only when it is over."""

import os
import secrets
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distributed_grid.agent.cgroups import hierarchies
from distributed_grid.agent.launch.supervisor import facts_while
from distributed_grid.agent.supervisor.endings import DOUBT, KILL_EVERY, STUCK_EVERY, Endings
from distributed_grid.agent.supervisor.job import NEVER, Job
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import Exited, Inventory, Noted, Stale, Started, Stop
from distributed_grid.protocol.placement import admits
from tests.agent.conftest import Bench, removed
from tests.agent.scene import Coordinator, Node, launch
from tests.agent.scene import coordinator as coordinator
from tests.agent.scene import node as node
from tests.protocol.samples import FACTS


@pytest.fixture
def ice() -> Iterator[Path]:
    """A freezer of version 1: what is frozen in there does not even die of SIGKILL."""
    mount = hierarchies.mounted().get("freezer")
    if mount is None or os.geteuid() != 0:
        pytest.skip("needs root, and the freezer of version 1")
    made = Path(mount, f"grid-test-{secrets.token_hex(4)}")
    made.mkdir()
    yield made
    (made / "freezer.state").write_text("THAWED")
    while not removed(made):
        pass


async def test_what_cannot_be_ended_holds_its_place_and_is_told_until_it_is_over(bench: Bench, ice: Path) -> None:
    told: list[tuple[str, str]] = []
    bench.launcher.noted = lambda allocation, text: told.append((allocation, text))
    id = bench.launch("sleep", "1000")
    pid = await bench.started(id)
    (ice / "cgroup.procs").write_text(str(pid))
    (ice / "freezer.state").write_text("FROZEN")
    bench.stop(id, grace=0)
    await bench.until(lambda: told)
    assert told[0][0] == id and f"lives {DOUBT:g} s after SIGKILL (process {pid} in state D)" in told[0][1]
    assert bench.outcomes(id) == [] and bench.launcher.unended == {id: told[0][1]}
    await bench.restart()
    assert bench.launcher.unended == {id: told[0][1]}, "the next agent is told with the hello"
    bench.launcher.noted = lambda allocation, text: told.append((allocation, text))
    (ice / "freezer.state").write_text("THAWED")
    assert (await bench.ended(id)).cause is Cause.CANCELLED
    assert bench.launcher.unended == {} and told[1:] == [(id, "")]


def test_what_does_not_end_is_tried_seldom_once_that_is_told() -> None:
    now, tried, told = 100.0, list[float](), list[Job]()
    tree: Any = SimpleNamespace(kill=lambda job: tried.append(now), members=lambda job: {})
    nothing_frozen: Any = SimpleNamespace(poll=lambda now: [], due=NEVER)
    journal: Any = SimpleNamespace()
    endings = Endings(tree, journal, nothing_frozen, told.append, lambda: now)
    job = Job("j-a.1")
    job.kill_at = now
    endings.arm(job)
    while now < 200.0:
        now = endings.due
        endings.fire(now)
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert told == [job] and max(gaps) == STUCK_EVERY
    assert max(gaps[: sum(at < job.killed_at + DOUBT for at in tried)]) <= KILL_EVERY, "at first it may end any moment"
    assert len(tried) < 30


def test_as_long_as_something_cannot_be_ended_the_walls_of_its_node_count_as_none() -> None:
    assert facts_while(FACTS, {}) == FACTS
    facts = facts_while(FACTS, {"j-a.1": "process 7 in state D", "j-b.1": "process 8 in state D"})
    assert facts.walls == "none" and facts.walls_why == "j-a.1 cannot be ended: process 7 in state D, and 1 more"
    assert not admits(facts.walls, ("ann",), "owner", "bob") and admits(facts.walls, ("ann",), "owner", "ann")


async def test_the_coordinator_hears_of_it_and_only_owners_jobs_are_taken_meanwhile(
    coordinator: Coordinator, node: Node, ice: Path
) -> None:
    await coordinator.say(launch("j1.1", "sleep", "1000"))
    (ice / "cgroup.procs").write_text(str((await coordinator.hears(Started, "j1.1")).pid))
    (ice / "freezer.state").write_text("FROZEN")
    before = coordinator.hellos[-1].facts
    await coordinator.say(Stop(allocation="j1.1", grace=0.0, cause="cancelled"))
    assert "lives 5 s after SIGKILL" in (await coordinator.hears(Noted, "j1.1")).text
    await coordinator.until(lambda: coordinator.hellos[-1].facts and coordinator.hellos[-1].facts.walls == "none")
    told = coordinator.hellos[-1].facts
    assert told is not None and told.walls_why.startswith("j1.1 cannot be ended: ")
    await coordinator.until(lambda: len(coordinator.all(Inventory)) == 2)
    assert [one.allocation for one in coordinator.all(Inventory)[-1].known] == ["j1.1"]
    await coordinator.say(launch("j2.1"))
    assert (await coordinator.hears(Stale, "j2.1")).reason == "its walls are none, and it runs jobs of its owners only"
    assert coordinator.all(Exited) == []
    (ice / "freezer.state").write_text("THAWED")
    await coordinator.hears(Exited, "j1.1")
    await coordinator.until(lambda: coordinator.hellos[-1].facts == before)
    await coordinator.say(launch("j3.1"))
    await coordinator.hears(Started, "j3.1")
