"""The connection to the coordinator: how it is refused, and what leaves in one frame."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from websockets.exceptions import ConnectionClosedError

from distributed_grid.agent import session
from distributed_grid.agent.session import CannotConnect
from distributed_grid.protocol.messages import (
    Hello,
    Refused,
    Stale,
)
from distributed_grid.protocol.resources import Grant
from distributed_grid.runtime import loopback
from tests.agent.scene import (
    Coordinator,
    Node,
    clean,
    launch,
)
from tests.agent.scene import coordinator as coordinator
from tests.agent.scene import node as node


def test_the_pause_before_another_try_grows_up_to_ten_seconds() -> None:
    assert all(0.05 <= session.back_off(tries) <= 0.1 * 2**tries for tries in range(8))
    assert max(session.back_off(1000) for _ in range(100)) > 5
    assert all(session.back_off(1000) <= 10 for _ in range(100))


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


async def test_an_agent_tells_nothing_to_a_strangers_coordinator_and_comes_back(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the coordinator were another user's: it is looked at which user's it is before anything is said.
    monkeypatch.setattr(loopback, "service_users", lambda _: set())
    monkeypatch.setattr(loopback, "_other_end", lambda _: (12345, 1))
    one = Node(tmp_path, f"ws://127.0.0.1:{coordinator.port}")
    with capture_logs() as lines:
        while not any("is another user's" in line["event"] for line in lines):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert coordinator.hellos == []
    monkeypatch.undo()
    await coordinator.connected()
    await one.stop()
    await clean(tmp_path)


async def test_both_connections_lead_to_the_coordinator_of_a_user_whom_the_agent_is_told_to_trust(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loopback, "service_users", lambda _: set())
    monkeypatch.setattr(loopback, "_other_end", lambda _: (12345, 1))
    one = Node(tmp_path, f"ws://127.0.0.1:{coordinator.port}", trusts="12345")
    await coordinator.connected()
    await coordinator.open_data()
    await one.stop()
    await clean(tmp_path)


async def test_what_one_turn_brings_leaves_in_one_frame(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(*[launch(f"j{number}.1", grant=Grant(cores=(99,))) for number in range(20)])
    await coordinator.hears(Stale, count=20)
    frames = [frame for frame in coordinator.frames if any(isinstance(one, Stale) for one in frame)]
    assert len(frames) == 1


async def test_what_is_hurried_leaves_in_the_turn_that_queued_it_and_only_once(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, written = node.runtime._session, list[bytes]()
    assert connection is not None
    monkeypatch.setattr(connection, "_write", written.append)
    connection.send(Stale(allocation="j0.1", reason="x"))
    connection.flush_now()
    assert ["j0.1" in str(frame) for frame in written] == [True]
    await asyncio.sleep(0.01)
    connection.flush_now()
    assert sum("j0.1" in str(frame) for frame in written) == 1


async def test_a_connection_that_breaks_before_it_is_made_is_tried_again(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(*args: object, **options: object) -> None:
        raise ConnectionClosedError(None, None)  # the library's, where the other end goes before the request has left

    monkeypatch.setattr(session, "connect", breaks)
    with pytest.raises(CannotConnect, match="does not let us in") as refused:
        await session.dial(f"ws://127.0.0.1:{coordinator.port}", Hello((1, 0), "test", "agent", "node1"))
    assert not refused.value.final
