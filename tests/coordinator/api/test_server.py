"""A coordinator over real sockets: jobs go through it, peers that misbehave lose their own connection only."""

import asyncio
from pathlib import Path
from typing import Any

import msgpack
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from distributed_grid.coordinator.history.history import TURNS
from distributed_grid.coordinator.net import connection as connections
from distributed_grid.protocol.codec import CONTROL_BYTES, encode
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.messages import (
    Buckets,
    BucketsKept,
    Exited,
    GetStatus,
    Heartbeat,
    Hello,
    JobUpdate,
    Launch,
    Refused,
    ShowJobs,
    Stop,
    Watch,
    Welcome,
)
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.scaling.machines import Machine, MachineState
from tests.coordinator.ends import (
    PATIENCE,
    agent,
    client,
    coordinator,
    job,
    node,
    runs_on,
    works,
)
from tests.coordinator.history.scene import bucket

# --- jobs ------------------------------------------------------------------------------------------------------------


async def test_a_job_goes_through_and_its_watcher_sees_it_end(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url), await client(grid.url)
        (name,) = await ann.submit(job("true"))
        view = await ann.ended(name)
        assert view.outcome is not None and view.outcome.cause is Cause.EXITED and view.node == "n1"
        assert [launch.allocation for launch in worker.launched] == [f"{name}.1"]
        await ann.submit(job("true"), watch=False)
        status = await ann.ask(GetStatus(900))
        while status.runs.count < 2:  # watched or not, how long it waited and ran is counted
            status = await ann.ask(GetStatus(status.id + 1))
        assert status.waits.count == 2 and 0 <= status.waits.median <= status.waits.p99 < 60
        await worker.until(lambda seen: getattr(seen, "allocations", ()) == (f"{name}.1",))  # acknowledged
        await ann.close()
        await worker.close()


async def test_what_a_node_measured_is_kept_beside_the_ledger_and_acknowledged(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url)
        await worker.say(Buckets(at=1300.0, buckets=tuple(bucket(number) for number in range(90, 110))))
        async with asyncio.timeout(PATIENCE):
            while (newest := grid.server._history.newest("n1")) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert newest[0] == bucket(109) and 180 < grid.clock() - newest[1] < 220
        for _ in range(TURNS):
            grid.server._history.tick()
        kept = await worker.until(BucketsKept)
        assert 104 <= kept.through <= 114
        await worker.close()


async def test_a_restart_has_queued_and_running_jobs_as_they_were(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url, node(cores=1), runs_on), await client(grid.url)
        running, queued = await ann.submit(job("sleep", "1"), job("sleep", "2"))
        await ann.until(lambda seen: isinstance(seen, JobUpdate) and seen.job.state is State.RUNNING)
        await ann.close()
        await worker.close()
    async with coordinator(tmp_path) as grid:
        assert grid.store.epoch == 2
        ann = await client(grid.url)
        shown = (await ann.ask(ShowJobs(1, (running, queued)))).jobs
        assert shown[0].allocation == f"{running}.1" and shown[1].state is State.WAITING
        worker = await agent(grid.url, node(cores=1, incarnation=2), runs_on, held=worker.held)
        await ann.ask(Watch(2, (running, queued)))
        await worker.say(Exited(f"{running}.1", Outcome(Cause.EXITED, code=7), returned=True))
        assert (view := (await ann.ended(running)).outcome) is not None and view.code == 7
        launch = await worker.until(Launch)
        assert launch.job == queued and launch.epoch == 2  # and the running one was not started again
        await ann.close()
        await worker.close()


# --- output ----------------------------------------------------------------------------------------------------------


# --- peers that misbehave ---------------------------------------------------------------------------------------------


def deep(levels: int) -> bytes:
    return b"\x92\x01\x91" + b"\x91" * levels + b"\xc0"


HELLOS = {
    "garbage": b"\xc1garbage",
    "empty": b"",
    "text": "hello",
    "deep": deep(60_000),
    "oversized": b"\xc4" * (80 << 10),
    "huge": b"\x00" * (5 << 20),
    "not a hello": encode(1, [Heartbeat(Sample(at=1.0))]),
    "two": encode(1, [Hello(protocol=(1, 0), software="t", role="client", name="a")] * 2),
    "unknown role": encode(1, [Hello(protocol=(1, 0), software="t", role="root", name="a")]),
    "other version": encode(1, [Hello(protocol=(9, 0), software="t", role="client", name="a")]),
    "no facts": encode(1, [Hello(protocol=(1, 0), software="t", role="agent", name="a")]),
    "bomb": msgpack.packb([1, [{"type": "hello", "name": [{}] * 4000}]]),
}


@pytest.mark.parametrize("name", HELLOS)
async def test_a_bad_first_frame_ends_that_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(connections, "HELLO_SECONDS", 1000.0)  # not what ends it
    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url)
        stranger = await connect(grid.url, compression=None, ping_interval=None)
        with pytest.raises(ConnectionClosed):
            async with asyncio.timeout(60):
                await stranger.send(HELLOS[name])
                while True:
                    await stranger.recv()
        await works(grid, worker)
        await worker.close()


FRAMES: dict[str, bytes | str] = {
    "garbage": b"\xc1\xc1",
    "text": "text",
    "deep": deep(100_000),
    "oversized": b"\x00" * (CONTROL_BYTES + 1),
    "out of sequence": encode(9, [Heartbeat(Sample(at=1.0))]),
    "wrong direction": encode(3, [Stop("j-x.1")]),
    "a client's message": encode(3, [GetStatus(1)]),
}


@pytest.mark.parametrize("name", FRAMES)
async def test_a_bad_frame_of_an_agent_ends_that_connection_only(tmp_path: Path, name: str) -> None:
    async with coordinator(tmp_path) as grid:
        worker, bad = await agent(grid.url), await agent(grid.url, node("bad", cores=0))
        await bad.socket.send(FRAMES[name])
        await bad.gone()
        if name == "oversized":  # not even read, so it is told by the code of the close
            assert bad.socket.close_code == 1009
        else:
            assert isinstance(bad.seen[-1], Refused) and not bad.seen[-1].final
        await works(grid, worker)
        assert "n1" in grid.server._agents and "bad" not in grid.server._agents
        await worker.close()


async def test_a_peer_that_says_nothing_is_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HELLO_SECONDS", 0.2)
    async with coordinator(tmp_path) as grid:
        silent = await connect(grid.url, compression=None)
        with pytest.raises(ConnectionClosed):
            async with asyncio.timeout(60):
                while True:
                    await silent.recv()


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}])
async def test_web_pages_are_turned_away(tmp_path: Path, headers: dict[str, str]) -> None:
    async with coordinator(tmp_path) as grid:
        port = int(grid.url.rpartition(":")[2])
        lines = {"Host": f"127.0.0.1:{port}"} | headers
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(
            f"GET / HTTP/1.1\r\n{head}Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        assert b" 403 " in await reader.readline()
        writer.close()


# --- one agent per name -----------------------------------------------------------------------------------------------


async def test_an_agent_on_another_machine_than_the_recorded_one_is_refused_and_told(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        machines = grid.ledger.state.scaling.machines
        given: dict[str, Any] = {
            "pool": "a",
            "provider": "p",
            "state": MachineState.BOOTING,
            "handle": "i-1",
            "born": grid.clock(),
        }
        machines["n1"] = Machine(name="n1", join_within=600.0, ends_by=grid.clock() + 3600, **given)
        other = await agent(grid.url, node(machine="i-2"))
        refused = other.seen[0]
        assert isinstance(refused, Refused) and refused.final
        assert refused.why == "machine n1 is i-1 of p, and its agent runs on i-2"
        async with asyncio.timeout(10):
            while machines["n1"].text != refused.why:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert machines["n1"].state is MachineState.BOOTING
        right = await agent(grid.url, node(machine="i-1"))
        assert not isinstance(right.seen[0], Refused)
        await right.close()


@pytest.mark.parametrize("other", [node(), node(hostname="elsewhere"), node(boot_id="x", incarnation=9)])
async def test_a_second_agent_with_the_name_is_refused_and_the_first_goes_on(tmp_path: Path, other: Any) -> None:
    async with coordinator(tmp_path) as grid:
        first = await agent(grid.url)
        second = await agent(grid.url, other)
        refused = second.seen[0]
        assert isinstance(refused, Refused) and refused.final and "n1" in refused.what and refused.hint
        await works(grid, first)
        assert len(first.launched) == 1
        await first.close()


async def test_a_restarted_agent_replaces_its_former_self(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        first = await agent(grid.url)
        second = await agent(grid.url, node(incarnation=2))
        assert isinstance(second.seen[0], Welcome)
        await first.gone()
        await works(grid, second)
        assert len(second.launched) == 1
        await second.close()


async def test_an_agent_on_a_copy_of_the_state_directory_is_refused_and_one_on_the_original_is_not(
    tmp_path: Path,
) -> None:
    async with coordinator(tmp_path) as grid:
        first = await agent(grid.url, node(instance="i", directory="1:2"))
        copy = await agent(grid.url, node(incarnation=2, instance="i", directory="1:3"))
        refused = copy.seen[0]
        assert isinstance(refused, Refused) and refused.final and "is a copy of the state directory" in refused.what
        await works(grid, first)
        restarted = await agent(grid.url, node(incarnation=2, instance="i", directory="1:2"))
        assert isinstance(restarted.seen[0], Welcome)
        await first.gone()
        await works(grid, restarted)
        await restarted.close()


async def test_a_name_held_by_a_dead_connection_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed_grid.coordinator.api.server.PROBE_SECONDS", 0.2)
    async with coordinator(tmp_path) as grid:
        first = await agent(grid.url)
        first.socket.transport.pause_reading()  # as if the cable were out
        second = await agent(grid.url)
        assert isinstance(second.seen[0], Welcome)
        await works(grid, second)
        first.socket.transport.abort()
        await second.close()


async def test_a_data_connection_without_its_session_is_refused(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url)
        hello = Hello(protocol=(1, 0), software="t", role="agent-data", name="n1", session="guessed")
        async with connect(grid.url, compression=None) as stranger:
            await stranger.send(encode(1, [hello]))
            assert b"refused" in await stranger.recv()
        await worker.close()
