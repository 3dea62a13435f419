"""The screen of `grid status` sums up the nodes and names what needs attention."""

from msgspec.structs import replace

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.grid.status import (
    _attention,
    _grid_node,
    _is_local,
    _screen,
    _status_json,
    _use,
)
from distributed_grid.protocol.messages import RayNode, Status
from distributed_grid.protocol.nodes import NodeState, NodeView, Withheld
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts


def status(*nodes: NodeView, **counts: int) -> Status:
    return Status(
        id=1, grid="g", software="1", epoch=2, up_for=61.0, nodes=nodes, counts=counts, ended={"exited": 1}, at=1.0
    )


def test_a_grid_without_nodes_says_what_to_do() -> None:
    assert _attention(status()) == ["no node is known yet → grid agent run, on each machine that lends"]


def test_lost_nodes_withheld_resources_and_waiting_jobs_need_attention() -> None:
    lost = NodeView(facts=facts("n1"), state=NodeState.LOST, silent_for=60.0)
    busy = NodeView(facts=facts("n2"), state=NodeState.UP, withheld=(Withheld("cpu", "busy"),))
    lines = _attention(status(lost, busy, waiting=1))
    assert [line.split(" →")[0] for line in lines] == [
        "n1 is lost, silent for 1m00s", "n2 does not offer all: cpu: busy", "1 job waiting"
    ]  # fmt: skip


def test_the_screen_and_json_have_the_same_sums() -> None:
    node = NodeView(facts=facts("n1"), state=NodeState.UP, offered=Resources(cpu=1000), lent=Resources(cpu=500))
    answer = status(node, running=1)
    screen, plain = _screen(Invocation(), answer, "ws://m"), _status_json(answer, "ws://m")
    assert "1/1 node up" in screen and "1 running · 1 ended since it started" in screen
    assert (plain["offered"]["cpu"], plain["lent"]["cpu"], plain["nodes"]) == (1.0, 0.5, {"total": 1, "up": 1})


def test_nodes_without_agent_are_not_said_to_be_up() -> None:
    there = NodeView(facts=facts("n1"), state=NodeState.UP)
    declared = NodeView(facts=replace(facts("w1"), declared=Resources(1000)), state=NodeState.UP)
    answer = status(there, declared)
    assert "1/1 node up, 1 without agent" in _screen(Invocation(), answer, "ws://m")
    assert _status_json(answer, "ws://m")["nodes"] == {"total": 2, "up": 1, "no_agent": 1}


def test_ends_of_all_kinds_are_counted_by_kind() -> None:
    answer = replace(status(), ended={"exited": 4, "cancelled": 2, "time-limit": 1})
    shown = _screen(Invocation(), answer, "ws://m")
    assert "none now · 7 ended since it started (2 cancelled, 4 exited, 1 time-limit)" in shown


def test_use_of_a_ray_node_and_loopback_addresses() -> None:
    assert (_use("CPU", 2.0, 8.0), _use("GPU", 0.0, 0.0), _use("memory", 1 << 30, 2 << 30)) == ("2/8", "-", "1G/2G")
    assert _is_local("127.0.0.1") and not _is_local("192.0.2.1") and not _is_local("host")


def test_a_ray_node_is_the_grids_node_of_its_name_before_one_with_its_address() -> None:
    known = [NodeView(facts=replace(facts(name), address="192.0.2.2"), state=NodeState.UP) for name in ("lab1", "lab2")]
    assert _grid_node(RayNode(id="r", ip="192.0.2.2", name="lab2"), known) == "lab2"
    assert _grid_node(RayNode(id="r", ip="192.0.2.2", name="head"), known) == "lab1"
    assert _grid_node(RayNode(id="r", ip="192.0.2.3", name="head"), known) == ""
