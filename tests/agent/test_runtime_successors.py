"""Successors on a real agent with real jobs, and a coordinator that is played by the test."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.protocol.jobs import Cause, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, NewSettings, Stale, Started, Stop
from distributed_grid.protocol.nodes import Layer, Lending, Offer
from distributed_grid.protocol.resources import Grant
from tests.agent import scene
from tests.agent.scene import Coordinator, launch
from tests.agent.scene import coordinator as coordinator
from tests.agent.scene import node as node
from tests.agent.test_owner_policy import LIMITS, RECALL
from tests.agent.test_owner_policy import Node as OwnedNode
from tests.agent.test_owner_policy import node as owned

__all__ = ["owned"]

CORE = Grant(cores=(3,), virtual=True)


def after(before: str, key: str, *argv: str, **spec: Any) -> Launch:
    return msgspec.structs.replace(launch(key, *argv, grant=CORE, **spec), predecessor=before)


def gated(gate: Path) -> tuple[str, ...]:
    return ("sh", "-c", f"until [ -e {gate} ]; do sleep 0.01; done")


async def queued(coordinator: Coordinator, node: scene.Node | OwnedNode, gate: Path, *keys: str) -> None:
    """j1.1 runs until the gate is there, and these wait behind it at the supervisor."""
    await coordinator.say(launch("j1.1", *gated(gate), grant=CORE))
    await coordinator.hears(Started, "j1.1")
    before = "j1.1"
    for key in keys:
        await coordinator.say(after(before, key, "sh", "-c", "exit 4"))
        before = key
    table = node.runtime.table
    await coordinator.until(lambda: [*table.waiting()] == [*keys])
    await coordinator.until(lambda: all(one.state is not State.WAITING for one in table.inventory(0.0)))


async def test_a_successor_follows_and_the_offer_stays_as_it_is(
    coordinator: Coordinator, node: scene.Node, tmp_path: Path
) -> None:
    await queued(coordinator, node, tmp_path / "go", "j2.1", "j3.1")
    assert [one.allocation for one in node.runtime.table.holdings()] == ["j1.1"]
    (tmp_path / "go").touch()
    ends = [await coordinator.hears(Exited, key) for key in ("j1.1", "j2.1", "j3.1")]
    assert [one.outcome.code for one in ends] == [0, 4, 4]
    assert [one.returned for one in ends] == [False, False, True], "what is taken over is not spare"
    said = [one for frame in coordinator.frames for one in frame if isinstance(one, Started | Exited)]
    order = [(type(one), one.allocation) for one in said]
    assert order.index((Exited, "j1.1")) < order.index((Exited, "j2.1"))
    assert (Started, "j2.1") in order or ends[1].walls, "of a short one its end says that it started"


async def test_one_with_shipped_files_gets_them_where_its_predecessor_ran_when_that_is_over(
    coordinator: Coordinator, node: scene.Node, tmp_path: Path
) -> None:
    bundle = scene.shipped(coordinator, {"a": b"hello"})
    script = "cat a; echo changed > a; rm -rf ../*/a"
    waits = f"until [ -e {tmp_path}/go ]; do sleep 0.01; done; {script}"
    await coordinator.say(launch("j1.1", "sh", "-c", waits, grant=CORE, bundle=bundle))
    await coordinator.hears(Started, "j1.1")
    for before, key in (("j1.1", "j2.1"), ("j2.1", "j3.1")):
        await coordinator.say(after(before, key, "sh", "-c", script, bundle=bundle))
    await coordinator.until(lambda: [*node.runtime.table.waiting()] == ["j2.1", "j3.1"])
    (tmp_path / "go").touch()
    ends = [await coordinator.hears(Exited, key) for key in ("j1.1", "j2.1", "j3.1")]
    assert [one.outcome.stdout_tail for one in ends] == [b"hello"] * 3, "nobody changes what the next one gets"
    assert [one.returned for one in ends] == [False, False, True]
    assert len({node.launcher.slots.slot(one.allocation) for one in ends}) == 1
    assert len(coordinator.asked) == 2, "manifest and content are fetched once"


async def test_a_successor_that_is_withdrawn_is_over_and_who_waited_behind_it_follows(
    coordinator: Coordinator, node: scene.Node, tmp_path: Path
) -> None:
    await queued(coordinator, node, tmp_path / "go", "j2.1", "j3.1")
    await coordinator.say(Stop(allocation="j2.1", cause=Cause.WITHDRAWN, unless_started=True))
    outcome = (await coordinator.hears(Exited, "j2.1")).outcome
    assert (outcome.cause, outcome.started) == (Cause.WITHDRAWN, False)
    (tmp_path / "go").touch()
    assert (await coordinator.hears(Exited, "j3.1")).outcome.code == 4
    assert not coordinator.all(Started, "j2.1")


async def test_a_withdrawal_of_one_that_runs_is_ignored(
    coordinator: Coordinator, node: scene.Node, tmp_path: Path
) -> None:
    await queued(coordinator, node, tmp_path / "go")
    await coordinator.say(after("j1.1", "j2.1", *gated(tmp_path / "more")))
    (tmp_path / "go").touch()
    await coordinator.hears(Started, "j2.1")
    await coordinator.say(Stop(allocation="j2.1", cause=Cause.WITHDRAWN, unless_started=True))
    (tmp_path / "more").touch()
    assert (await coordinator.hears(Exited, "j2.1")).outcome.cause is Cause.EXITED


async def test_one_that_waits_is_not_in_the_next_agents_inventory(
    coordinator: Coordinator, node: scene.Node, tmp_path: Path
) -> None:
    await queued(coordinator, node, tmp_path / "go", "j2.1")
    await node.stop()
    again = scene.Node(node.dir, f"ws://127.0.0.1:{coordinator.port}")
    try:
        await coordinator.connected(2)
        assert [one.allocation for one in coordinator.all(Inventory)[-1].known] == ["j1.1"]
        await coordinator.say(after("j1.1", "j2.1", "sh", "-c", "exit 5"))
        await coordinator.until(lambda: again.runtime.table.waiting())
        (tmp_path / "go").touch()
        assert (await coordinator.hears(Exited, "j2.1")).outcome.code == 5
    finally:
        await again.stop()


async def test_a_supervisor_of_an_older_release_gets_no_successors(
    coordinator: Coordinator, node: scene.Node, tmp_path: Path
) -> None:
    await queued(coordinator, node, tmp_path / "go")
    node.launcher.queues = False
    await coordinator.say(after("j1.1", "j2.1", "true"))
    assert "older release" in (await coordinator.hears(Stale, "j2.1")).reason


# --- the owner --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [LIMITS, RECALL])
async def test_successors_are_taken_back_when_the_owner_is_back(
    coordinator: Coordinator, owned: OwnedNode, tmp_path: Path, limits: Limits
) -> None:
    await owned.stop()
    owned.begin(limits)
    await coordinator.connected(2)
    await queued(coordinator, owned, tmp_path / "go", "j2.1", "j3.1")
    owned.probe.percent = 87
    for key in ("j2.1", "j3.1"):
        outcome = (await coordinator.hears(Exited, key)).outcome
        assert (outcome.cause, outcome.started) == (Cause.RECALLED, False)
        assert "foreign CPU 87 %" in outcome.text or "87 % >" in outcome.text
    if limits is LIMITS:
        await coordinator.say(after("j1.1", "j4.1", "true"))
        assert (await coordinator.hears(Stale, "j4.1")).reason
    (tmp_path / "go").touch()


async def test_successors_are_taken_back_when_the_node_lends_nothing_any_more(
    coordinator: Coordinator, node: scene.Node, tmp_path: Path
) -> None:
    await queued(coordinator, node, tmp_path / "go", "j2.1")
    await coordinator.say(NewSettings(settings=Layer(Lending(can_share=False))))
    outcome = (await coordinator.hears(Exited, "j2.1")).outcome
    assert (outcome.cause, outcome.started) == (Cause.RECALLED, False) and "shares nothing" in outcome.text
    (tmp_path / "go").touch()
    assert (await coordinator.hears(Exited, "j1.1")).outcome.code == 0


async def test_successors_are_taken_back_when_the_agent_is_to_be_stopped(
    coordinator: Coordinator, node: scene.Node, tmp_path: Path
) -> None:
    await queued(coordinator, node, tmp_path / "go", "j2.1")
    node.runtime._control._count(1)
    outcome = (await coordinator.hears(Exited, "j2.1")).outcome
    assert (outcome.cause, outcome.started) == (Cause.RECALLED, False)
    await coordinator.until(lambda: "being stopped" in str(coordinator.all(Offer)[-1].withheld))
    (tmp_path / "go").touch()
