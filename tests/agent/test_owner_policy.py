"""The owner's return on a real agent with real jobs: only what others use of the machine is made up."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.agent.gpus.base import NoGpus
from distributed_grid.agent.launch.launcher import Launcher
from distributed_grid.agent.runtime import Runtime, RuntimeSettings
from distributed_grid.agent.sampling.probe import Probe
from distributed_grid.agent.supervisor import procs
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import Ack, Exited, Inventory, Offer, Recalled, Started, Stop, Suspended
from distributed_grid.protocol.nodes import OwnerPolicy, Sample
from tests.agent import supervisors
from tests.agent.scene import CORES, LONG, Coordinator, clean, coordinator, launch, settings

__all__ = ["coordinator"]

LIMITS = Limits(
    offer_after=0.0,
    cpu_percent_max=30.0,
    memory_percent_max=100.0,
    memory_min=0,
    reserve_memory=0,
    owner_after=0.0,
    owner_quiet=0.1,
    owner_hold=0.0,
)
RECALL = msgspec.structs.replace(LIMITS, owner_policy=OwnerPolicy.RECALL)
CHECKPOINTS = """
trap 'while [ ! -e "$GRID_RECALL_FILE" ]; do :; done; cat "$GRID_RECALL_FILE"; exit 0' TERM
echo up >&2
while :; do sleep 0.02; done
"""
STUBBORN = "trap '' TERM; echo up >&2; while :; do sleep 0.05; done"


class Used(Probe):
    """A probe that sees others use the machine as the test says: percent of all cores."""

    percent = 0

    def sample(self, at: float | None = None, read_gpus: bool = True) -> Sample:
        seen = super().sample(at, read_gpus)
        cores = dict.fromkeys(CORES, self.percent)
        return msgspec.structs.replace(seen, cores=cores, foreign_cpu=self.percent * len(CORES) / 100, memory_foreign=0)


class Node:
    """An agent in this process, with an owner."""

    def __init__(self, state_dir: Path, url: str) -> None:
        self.dir = state_dir
        self.url = url
        self.probe = Used(CORES, 0, NoGpus(), virtual=True, own_roots=lambda: (os.getpid(),))
        self.begin()

    def begin(self, limits: Limits = LIMITS) -> None:
        process = supervisors.started(self.dir)
        self.launcher = Launcher(self.dir, lambda told: self.runtime.feed(told), process=process)
        facts = self.probe.facts("node1", 1, limits)
        self.runtime = Runtime(
            RuntimeSettings(self.url, self.dir), facts, settings(self.dir, limits, 0.1), self.probe, self.launcher
        )
        self.task = asyncio.create_task(self.runtime.run())

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    def state(self, key: str) -> str:
        seen = procs.stat(self.launcher.pids[key])
        return seen.state if seen is not None else ""


@pytest.fixture
async def node(coordinator: Coordinator, tmp_path: Path) -> AsyncIterator[Node]:
    (tmp_path / "agent").mkdir()
    one = Node(tmp_path / "agent", f"ws://127.0.0.1:{coordinator.port}")
    await coordinator.connected()
    yield one
    await one.stop()
    await clean(one.dir)


async def frozen(coordinator: Coordinator, node: Node, key: str = "j1.1") -> Suspended:
    await coordinator.say(launch(key, *LONG))
    await coordinator.hears(Started, key)
    node.probe.percent = 87
    return await coordinator.hears(Suspended, key)


async def ready(coordinator: Coordinator, node: Node, script: str, grace: float = 5.0) -> None:
    """A job that has said by its stderr that it is ready for SIGTERM."""
    await coordinator.say(launch("j1.1", "sh", "-c", script, grace=grace))
    await coordinator.hears(Started, "j1.1")
    said = node.dir / "allocs/j1.1/stderr"
    await coordinator.until(lambda: said.read_bytes() == b"up\n")


async def test_the_owner_is_back_and_gone_again(coordinator: Coordinator, node: Node) -> None:
    told = await frozen(coordinator, node)
    assert told.why == "foreign CPU 87 % > 30 %"
    await coordinator.until(lambda: node.state("j1.1") == "T")
    await coordinator.until(lambda: "owner is back" in str(coordinator.all(Offer)[-1].withheld))
    node.probe.percent = 0
    again = await coordinator.hears(Suspended, "j1.1", count=2)
    assert (again.why, again.in_all) == ("", again.lasted)
    await coordinator.until(lambda: node.state("j1.1") == "S")
    await coordinator.until(lambda: not coordinator.all(Offer)[-1].withheld)


async def test_only_own_use_freezes_nothing(coordinator: Coordinator, node: Node) -> None:
    node.probe.percent = 30
    await coordinator.say(launch("j1.1", "sh", "-c", "while :; do :; done"))
    await coordinator.hears(Started, "j1.1")
    began = node.probe.sample().at
    await coordinator.until(lambda: (new := node.runtime._meter.newest) is not None and new.at > began + 1.0)
    assert coordinator.all(Suspended) == []


async def test_a_coordinator_that_comes_back_is_told_what_is_frozen(coordinator: Coordinator, node: Node) -> None:
    await frozen(coordinator, node)
    coordinator.frames.clear()
    await coordinator.cut("agent")
    said = await coordinator.hears(Suspended, "j1.1")
    assert said.why == "foreign CPU 87 % > 30 %" and said.lasted > 0
    kinds = [type(message) for frame in coordinator.frames for message in frame]
    assert kinds.index(Inventory) < kinds.index(Suspended)


async def test_the_next_agent_lets_go_on_what_the_last_one_froze(coordinator: Coordinator, node: Node) -> None:
    await frozen(coordinator, node)
    await node.stop()
    coordinator.frames.clear()
    node.probe.percent = 0
    node.begin()
    await coordinator.hears(Suspended, "j1.1")
    assert coordinator.all(Suspended, "j1.1")[0].why
    await coordinator.until(lambda: not coordinator.all(Suspended, "j1.1")[-1].why)
    await coordinator.until(lambda: node.state("j1.1") == "S")


async def test_a_frozen_job_that_is_cancelled_ends(coordinator: Coordinator, node: Node) -> None:
    await frozen(coordinator, node)
    await coordinator.say(Stop(allocation="j1.1", grace=20.0))
    ended = (await coordinator.hears(Exited, "j1.1")).outcome
    assert (ended.cause, ended.signal) == (Cause.CANCELLED, 15) and ended.suspended > 0
    await coordinator.say(Ack(allocations=("j1.1",)))
    await coordinator.until(lambda: not node.runtime._owner._owner.cases)


# --- recall -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def strict(coordinator: Coordinator, node: Node) -> Node:
    """The same node, whose owner wants all back at once."""
    await node.stop()
    node.begin(RECALL)
    await coordinator.connected(2)
    return node


async def test_a_recalled_job_gets_notice_and_time_and_ends_as_recalled(coordinator: Coordinator, strict: Node) -> None:
    await ready(coordinator, strict, CHECKPOINTS, grace=60.0)
    strict.probe.percent = 87
    told = await coordinator.hears(Recalled, "j1.1")
    assert (told.why, told.grace) == ("foreign CPU 87 % > 30 %", 60.0)
    ended = await coordinator.hears(Exited, "j1.1")
    assert (ended.outcome.cause, ended.outcome.code, ended.returned) == (Cause.RECALLED, 0, False)
    said = json.loads(ended.outcome.stdout_tail)
    assert (said["cause"], said["reason"]) == ("recalled", "the owner is back (foreign CPU 87 % > 30 %)")
    assert said["seconds"] == 60.0 and 0 < said["deadline"] - time.time() <= 60.0
    assert "owner is back" in str(coordinator.all(Offer)[-1].withheld)


async def test_a_job_that_does_not_end_when_it_is_recalled_is_killed(coordinator: Coordinator, strict: Node) -> None:
    await ready(coordinator, strict, STUBBORN, grace=0.2)
    strict.probe.percent = 87
    ended = (await coordinator.hears(Exited, "j1.1")).outcome
    assert (ended.cause, ended.signal) == (Cause.RECALLED, 9)


async def test_a_frozen_job_that_is_recalled_is_woken_for_it(coordinator: Coordinator, node: Node) -> None:
    await frozen(coordinator, node)
    await node.stop()
    node.begin(RECALL)
    ended = (await coordinator.hears(Exited, "j1.1")).outcome
    assert (ended.cause, ended.signal) == (Cause.RECALLED, 15) and ended.suspended > 0


async def test_a_coordinator_that_comes_back_is_told_of_the_recall(coordinator: Coordinator, strict: Node) -> None:
    await ready(coordinator, strict, STUBBORN, grace=60.0)
    strict.probe.percent = 87
    await coordinator.hears(Recalled, "j1.1")
    coordinator.frames.clear()
    await coordinator.cut("agent")
    assert (await coordinator.hears(Recalled, "j1.1")).grace == 60.0


async def test_a_preempted_job_finds_the_same_notice(coordinator: Coordinator, node: Node) -> None:
    await ready(coordinator, node, CHECKPOINTS)
    await coordinator.say(Stop(allocation="j1.1", grace=50.0, cause="preempted", text="for j-2"))
    ended = (await coordinator.hears(Exited, "j1.1")).outcome
    said = json.loads(ended.stdout_tail)
    assert (said["cause"], said["reason"], said["seconds"]) == ("preempted", "for j-2", 50.0)


async def test_a_job_that_is_only_cancelled_gets_no_notice(coordinator: Coordinator, node: Node) -> None:
    looks = "trap 'ls $GRID_RECALL_FILE; exit 6' TERM; echo up >&2; while :; do sleep 0.02; done"
    await ready(coordinator, node, looks)
    await coordinator.say(Stop(allocation="j1.1", grace=60.0))
    outcome = (await coordinator.hears(Exited, "j1.1")).outcome
    assert (outcome.code, outcome.stdout_size) == (6, 0)
