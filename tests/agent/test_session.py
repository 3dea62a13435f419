"""The connection to the coordinator: how it is refused, and what leaves in one frame."""

import asyncio
from pathlib import Path

import pytest

from distributed_grid.agent.session import CannotConnect
from distributed_grid.protocol.messages import (
    Refused,
    Stale,
)
from distributed_grid.protocol.resources import Grant
from tests.agent.scene import (
    Coordinator,
    Node,
    clean,
    launch,
)
from tests.agent.scene import coordinator as coordinator
from tests.agent.scene import node as node


async def test_a_final_refusal_ends_the_agent_and_says_why(coordinator: Coordinator, tmp_path: Path) -> None:
    coordinator.answer = Refused("a node named 'node1' is connected already", why="its agent lives", final=True)
    one = Node(tmp_path, f"ws://127.0.0.1:{coordinator.port}")
    await asyncio.wait([one.task], timeout=60)
    with pytest.raises(CannotConnect, match="connected already"):
        one.task.result()
    await clean(tmp_path)


async def test_a_refusal_that_is_not_final_is_tried_again(coordinator: Coordinator, tmp_path: Path) -> None:
    coordinator.answer = Refused("full")
    one = Node(tmp_path, f"ws://127.0.0.1:{coordinator.port}")
    await coordinator.until(lambda: len(coordinator.hellos) >= 2)
    coordinator.answer = None
    await coordinator.connected()
    await one.stop()
    await clean(tmp_path)


async def test_what_one_turn_brings_leaves_in_one_frame(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(*[launch(f"j{number}.1", grant=Grant(cores=(99,))) for number in range(20)])
    await coordinator.hears(Stale, count=20)
    frames = [frame for frame in coordinator.frames if any(isinstance(one, Stale) for one in frame)]
    assert len(frames) == 1
