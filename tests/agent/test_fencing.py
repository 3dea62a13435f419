"""Which coordinator an agent obeys, also after a restart, and what it does not start for another one."""

import errno
import json
from unittest.mock import Mock

import pytest

from distributed_grid.protocol.messages import (
    Exited,
    Inventory,
    Stale,
)
from distributed_grid.protocol.nodes import Stamp
from tests.agent.scene import Coordinator, Node, launch
from tests.agent.scene import coordinator as coordinator
from tests.agent.scene import node as node


async def test_a_launch_of_an_older_epoch_is_refused_also_by_the_next_agent(
    coordinator: Coordinator, node: Node
) -> None:
    coordinator.epoch = 4
    await coordinator.cut("agent")
    await coordinator.connected(2)
    await node.stop()
    again = Node(node.dir, f"ws://127.0.0.1:{coordinator.port}")
    coordinator.epoch = 3
    tried = len(coordinator.hellos)
    await coordinator.until(lambda: len(coordinator.hellos) > tried + 1)  # it turned away, and asked again
    assert coordinator.hellos[-1].stamp == Stamp(4, 3, "seal"), "it shows whom it obeys"
    assert len(coordinator.all(Inventory)) == 2
    coordinator.epoch = 5
    await coordinator.until(lambda: len(coordinator.all(Inventory)) == 3)
    await coordinator.say(launch("j0.1", epoch=4))
    assert "epoch 4" in (await coordinator.hears(Stale, "j0.1")).reason
    await again.stop()


async def test_a_second_coordinator_that_claims_the_same_epoch_is_not_obeyed(
    coordinator: Coordinator, node: Node
) -> None:
    await coordinator.connected()
    coordinator.instance = "second"
    await coordinator.cut("agent")
    await coordinator.until(lambda: len(coordinator.hellos) > 2)  # it turned away, and asked again
    assert len(coordinator.all(Inventory)) == 1
    coordinator.instance = "first"
    await coordinator.until(lambda: len(coordinator.all(Inventory)) == 2)


async def test_while_the_node_cannot_keep_whom_it_obeys_nothing_is_started(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await coordinator.connected()
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(node.runtime._fence, "_keep", Mock(side_effect=full))
    coordinator.epoch = 2
    await coordinator.cut("agent")
    await coordinator.connected(2)
    await coordinator.say(launch("j0.1", epoch=2))
    assert "No space left" in (await coordinator.hears(Stale, "j0.1")).reason
    monkeypatch.undo()
    await coordinator.say(launch("j1.1", epoch=2))
    assert (await coordinator.hears(Exited, "j1.1")).outcome.code == 0
    assert json.loads((node.dir / "epoch").read_text()) == ["grid", 2, "first", [2, 3, "seal"]]
