"""The asyncio connection: nobody there, restarts, lost answers, patience, and event loops."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.client import (
    ConnectionLost,
    GridClient,
    GridUnavailable,
    session,
)
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import (
    Launch,
    Signal,
)
from tests.coordinator.client.test_aio import finish_known, wire
from tests.coordinator.ends import Coordinator, agent, coordinator, node, runs_on


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_nobody_there_is_one_clear_error(tmp_path: Path) -> None:
    url = f"ws://127.0.0.1:{free_port()}"
    with pytest.raises(GridUnavailable) as caught:
        await GridClient(url).connect()
    assert url in caught.value.what and caught.value.why == "connection refused: nothing listens there"
    assert "grid coordinator run" in caught.value.hint
    with pytest.raises(GridError, match="not a coordinator's address"):
        await GridClient("http://x").connect()


async def test_another_service_on_the_port_is_said_to_be_none_of_ours() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    with pytest.raises(GridUnavailable) as caught:
        await GridClient(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}").connect()
    assert "does not speak our protocol" in caught.value.why
    server.close()


async def test_one_that_listens_and_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CONNECT_SECONDS", 0.1)
    async with wire("") as link, asyncio.timeout(15):
        link.silent = True
        with pytest.raises(GridUnavailable) as caught:
            await GridClient(link.url).connect()
    assert caught.value.why == session.TIMED_OUT


async def test_a_coordinator_that_falls_silent_is_given_up_when_patience_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(session, "PING_SECONDS", 0.1)
    monkeypatch.setattr(session, "SILENT_SECONDS", 0.2)
    async with coordinator(tmp_path) as grid, wire(grid.url) as link:
        client = GridClient(link.url, patience=0.2)
        await client.connect()
        link.silent = True
        async with asyncio.timeout(15):
            with pytest.raises(GridUnavailable) as caught:
                await client.status()
        assert caught.value.why == session.TIMED_OUT
        await client.close()


async def test_a_quiet_coordinator_is_pinged_and_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with coordinator(tmp_path) as grid, wire(grid.url) as link, GridClient(link.url) as client:
        monkeypatch.setattr(session, "PING_SECONDS", 0.05)
        monkeypatch.setattr(session, "SILENT_SECONDS", 1.0)
        await client.status()
        async with asyncio.timeout(15):
            await link.has_passed(link.passed + 1)
        assert client._session.connected and client._session.opened == 1


async def test_a_wait_goes_on_through_a_restart_of_the_coordinator(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = Coordinator(tmp_path)
        first.url = f"ws://127.0.0.1:{await first.server.listen('127.0.0.1', 0)}"
        link = await stack.enter_async_context(wire(first.url))
        client = await stack.enter_async_context(GridClient(link.url))
        await (await agent(first.url)).close()
        job = await client.submit("sleep 60")
        running = asyncio.Event()

        async def follow() -> JobView:
            async with contextlib.aclosing(client.follow(job)) as views:
                async for view in views:
                    if view.state is State.RUNNING:
                        running.set()
            return view

        waiting = asyncio.create_task(follow())
        worker = await agent(first.url, facts=node(incarnation=2), runs=runs_on)
        async with asyncio.timeout(60):
            await running.wait()  # told by the watch, so there is one
        link.down = True
        link.cut()
        held = worker.held
        await worker.close()
        await first.stop()
        async with coordinator(tmp_path) as second:
            link.target = int(second.url.rpartition(":")[2])
            again = await agent(second.url, facts=node(incarnation=3), runs=runs_on, held=held)
            link.down = False
            await finish_known(again, job)
            async with asyncio.timeout(60):
                view = await waiting
            assert view.outcome is not None and view.outcome.code == 3
            await again.close()
            await client.close()


async def test_a_submit_whose_answer_was_lost_is_said_again_and_is_one_job(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, wire(grid.url) as link, GridClient(link.url) as client:
        worker = await agent(grid.url)
        link.swallow_answers = True
        async with asyncio.timeout(60):
            job = await client.submit("true")
            await client.wait(job)
        assert [one.job for one in worker.launched] == [job]
        assert len(await client.jobs(ended=True)) == 1
        await worker.close()


async def test_a_signal_whose_answer_was_lost_is_not_sent_twice(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, wire(grid.url) as link, GridClient(link.url) as client:
        worker = await agent(grid.url, runs=runs_on)
        job = await client.submit("sleep 60")
        await worker.until(Launch)
        link.swallow_answers = True
        with pytest.raises(ConnectionLost):
            await client.signal(job, 2)
        await client.status()
        assert len([seen for seen in worker.seen if isinstance(seen, Signal)]) <= 1
        await worker.close()


async def test_patience_ends_with_an_error_for_everybody_who_waits(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, wire(grid.url) as link:
        worker = await agent(grid.url, runs=runs_on)
        client = GridClient(link.url, patience=0.2)
        await client.connect()
        job = await client.submit("sleep 60")
        waiting = asyncio.create_task(client.wait(job))
        await client.status()
        link.down = True
        link.cut()
        async with asyncio.timeout(60):
            with pytest.raises(GridUnavailable):
                await waiting
        with pytest.raises(GridUnavailable):
            await client.status()
        link.down = False
        await client.connect()
        assert (await client.show(job)).state is State.RUNNING
        await client.close()
        with pytest.raises(GridUnavailable, match="closed"):
            await client.status()
        await worker.close()


def test_a_client_that_is_used_in_another_event_loop_says_so(tmp_path: Path) -> None:
    """A loop that is closed, and one that runs in a thread of its own: nobody would serve the connection in either."""
    with asyncio.Runner() as first:
        made = coordinator(tmp_path)
        grid = first.run(made.__aenter__())
        client = GridClient(grid.url)
        first.run(client.connect())
        for call in (client.status, client.connect, lambda: client.wait("last"), client.close):
            with pytest.raises(GridError, match="belongs to another event loop") as caught:
                asyncio.run(asyncio.wait_for(call(), 60))
            assert "still exists" in caught.value.why and "distributed_grid.sync" in caught.value.hint
        assert first.run(client.jobs()) == []  # where it belongs, it is as it was
        first.run(client.close())
        first.run(made.__aexit__(None, None, None))


def test_a_client_whose_event_loop_is_closed_is_closed_and_used_in_another(tmp_path: Path) -> None:
    with asyncio.Runner() as serving:
        made = coordinator(tmp_path)
        grid = serving.run(made.__aenter__())

        async def here(work: Any) -> Any:
            """In a loop of its own, while the coordinator's goes on."""
            return await asyncio.to_thread(asyncio.run, work)

        async def both() -> None:
            client = GridClient(grid.url)
            await here(client.connect())
            with pytest.raises(GridError, match="belongs to another event loop") as caught:
                await here(client.jobs())
            assert "is closed" in caught.value.why and caught.value.hint.startswith("connect it here")

            async def again() -> Any:
                await client.close()
                async with client:
                    return await client.jobs()

            for _ in range(2):
                assert await here(again()) == []

            async def connected_anew() -> Any:
                await client.connect()
                return await client.jobs()

            for _ in range(2):
                assert await here(connected_anew()) == []

        serving.run(both())
        serving.run(made.__aexit__(None, None, None))


def test_a_client_that_could_not_connect_is_used_in_another_event_loop(tmp_path: Path) -> None:
    client = GridClient(f"unix://{tmp_path / 'nobody.sock'}")

    async def connect() -> tuple[BaseException | None, ...]:
        return await asyncio.gather(client.connect(), client.connect(), return_exceptions=True)

    with asyncio.Runner() as living:
        for run in (living.run, asyncio.run, asyncio.run):
            failed = run(connect())
            assert [type(one) for one in failed] == [GridUnavailable] * 2
            assert all("cannot reach" in str(one) for one in failed)


def test_a_client_that_several_tasks_connect_is_used_in_one_event_loop_after_another(tmp_path: Path) -> None:
    with asyncio.Runner() as serving:
        made = coordinator(tmp_path)
        grid = serving.run(made.__aenter__())
        client = GridClient(grid.url)

        async def use() -> Any:
            await asyncio.gather(client.connect(), client.connect(), client.connect())
            try:
                return await client.jobs()
            finally:
                await client.close()

        for _ in range(2):
            assert serving.run(asyncio.to_thread(asyncio.run, use())) == []
        serving.run(made.__aexit__(None, None, None))
