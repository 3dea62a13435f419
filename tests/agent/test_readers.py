"""Readers of running jobs, on a real agent with real jobs: a job waits for its reader, and the coordinator is told."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.agent.core.table import Table
from distributed_grid.agent.readers import MOST, Readers
from distributed_grid.protocol.messages import AwaitsReader, Inventory, WantOutput
from tests.agent.scene import Coordinator, clean, coordinator
from tests.agent.test_owner_policy import LIMITS, Node, ready

__all__ = ["coordinator"]

MIB = 1 << 20
WRITES = """
trap 'told=1' USR1
echo up >&2
while [ -z "$told" ]; do sleep 0.02; done
head -c 12000000 /dev/zero
exec sleep 1000
"""
"""Writes once it is told to."""


class Reading(Node):
    """An agent that keeps 4 MiB of each stream."""

    def begin(self, limits: Limits = LIMITS) -> None:
        super().begin(limits)
        self.launcher.keep_output = 4 * MIB  # before it begins

    def reads(self, offset: int, reader: str = "ann") -> None:
        self.runtime._readers.asked(WantOutput(1, "j1.1", "stdout", offset, 1000, reader=reader))

    def size(self) -> int:
        return (self.dir / "allocs/j1.1/stdout").stat().st_size


@pytest.fixture
async def node(coordinator: Coordinator, tmp_path: Path) -> AsyncIterator[Reading]:
    (tmp_path / "agent").mkdir()
    one = Reading(tmp_path / "agent", f"ws://127.0.0.1:{coordinator.port}")
    await coordinator.connected()
    yield one
    await one.stop()
    await clean(one.dir)


async def read_by_ann(coordinator: Coordinator, node: Reading) -> AwaitsReader:
    await ready(coordinator, node, WRITES)
    node.reads(0)
    node.launcher.signal("j1.1", signal.SIGUSR1)  # which the supervisor hears after it has heard of the reader
    return await coordinator.hears(AwaitsReader, "j1.1")


async def test_a_job_waits_for_its_reader_and_goes_on_as_that_reads(coordinator: Coordinator, node: Reading) -> None:
    told = await read_by_ann(coordinator, node)
    assert told.why.endswith(" of stdout unread")
    await coordinator.until(lambda: node.state("j1.1") == "T")
    while node.size() < 12_000_000 or node.state("j1.1") == "T":
        node.reads(node.size())
        await asyncio.sleep(0.01)
    again = await coordinator.hears(AwaitsReader, "j1.1", count=2)
    assert again.why == "" or again.lasted == 0.0


async def test_a_coordinator_that_comes_back_is_told_who_waits(coordinator: Coordinator, node: Reading) -> None:
    told = await read_by_ann(coordinator, node)
    coordinator.frames.clear()
    await coordinator.cut("agent")
    await coordinator.until(lambda: coordinator.all(Inventory))
    (known,) = coordinator.all(Inventory)[-1].known
    assert known.awaits_reader == told.why


async def test_the_next_agent_tells_of_it_and_an_expired_freeze_is_none(
    coordinator: Coordinator, node: Reading
) -> None:
    told = await read_by_ann(coordinator, node)
    await node.stop()
    coordinator.frames.clear()
    node.begin()
    await coordinator.until(lambda: coordinator.all(Inventory))
    (known,) = coordinator.all(Inventory)[-1].known
    assert known.awaits_reader == told.why
    node.reads(1 << 60)
    assert (await coordinator.hears(AwaitsReader, "j1.1")).why == ""
    await coordinator.until(lambda: node.state("j1.1") != "T")


class Passed:
    """What was passed on to a supervisor."""

    keep_output = 32 * MIB
    awaits_reader = None

    def __init__(self) -> None:
        self.reads: list[tuple[str, str, str, int]] = []

    def read(self, *what: object) -> None:
        self.reads.append(what)  # type: ignore[arg-type]


class Runs(Table):
    def __init__(self) -> None:
        pass

    def runs(self, allocation: str) -> bool:
        return allocation == "j1.1"


def test_not_every_question_is_passed_on_and_nothing_of_who_only_looks_or_of_what_is_over() -> None:
    passed = Passed()
    readers = Readers(passed, Runs(), lambda told: None)  # type: ignore[arg-type]
    for offset in range(0, 4 * MIB, MIB // 4):
        readers.asked(WantOutput(1, "j1.1", "stdout", offset, 1000, reader="ann"))
        readers.asked(WantOutput(1, "j1.1", "stdout", offset, 1000))
        readers.asked(WantOutput(1, "j2.1", "stdout", offset, 1000, reader="ann"))
    assert passed.reads == [("j1.1", "ann", "stdout", number * MIB) for number in range(4)]


def test_only_so_many_readers_are_remembered() -> None:
    readers = Readers(Passed(), Runs(), lambda told: None)  # type: ignore[arg-type]
    for number in range(2 * MOST):
        readers.asked(WantOutput(1, "j1.1", "stdout", 0, 1000, reader=str(number)))
    assert len(readers._passed_on) == MOST
