"""The blocking client against a real coordinator and a played agent, from a thread: what the asyncio one does, too."""

import asyncio
import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from distributed_grid.coordinator.client import requests, session
from distributed_grid.coordinator.client.aio import GridClient as AsyncClient
from distributed_grid.coordinator.client.blocking import GridClient
from distributed_grid.coordinator.client.session import (
    SILENT_SECONDS,
    ConnectionLost,
    GridUnavailable,
    Lost,
    Opened,
    RequestRefused,
)
from distributed_grid.coordinator.client.submission import describe_job
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.messages import InputTaken, JobUpdate, Launch, ListJobs, PutInput
from tests.coordinator import ends
from tests.coordinator.client.test_aio import FilesData, SlowData, ends_with, finish_known, wire
from tests.coordinator.client.test_connection import free_port
from tests.coordinator.ends import DataEnd, agent, coordinator, runs_on

T = TypeVar("T")


async def aside(do: Callable[[GridClient], T], url: str, **options: Any) -> T:
    """Do something with a connected client in a thread."""

    def run() -> T:
        with GridClient(url, **options) as grid:
            return do(grid)

    async with asyncio.timeout(60):
        return await asyncio.to_thread(run)


async def test_a_job_is_run_and_its_result_has_its_output(tmp_path: Path) -> None:
    text = bytes(range(256)) * 4096
    outcome = Outcome(Cause.EXITED, code=7, stdout_size=len(text), stdout_tail=text[-100:])
    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url, runs=ends_with(outcome), output=text)
        result = await aside(lambda client: client.run(["make", "all"], name="m"), grid.url)
        assert (result.exit_code, result.name, result.node) == (7, "m", "n1")
        assert result.stdout_bytes == text and not result.truncated
        await worker.close()


async def test_what_cannot_be_standard_input_is_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    def run(client: GridClient) -> list[Any]:
        for source, kind in (("text", "str"), (io.StringIO("text"), "StringIO")):
            with pytest.raises(BadValue, match=f"standard input cannot be {kind}"):
                client.run("cat", stdin=source)  # type: ignore[arg-type]
        return client.jobs()

    async with coordinator(tmp_path) as grid:
        assert await aside(run, grid.url) == []


@pytest.mark.parametrize("many", [{"array": "0-9"}, {"nodes": 2}])
async def test_what_is_many_jobs_has_no_one_result_and_is_not_submitted(tmp_path: Path, many: dict[str, Any]) -> None:
    def run(client: GridClient) -> None:
        with pytest.raises(BadValue, match="is many jobs"):
            client.run("true", **many)

    async with coordinator(tmp_path) as grid:
        await aside(run, grid.url)
        async with AsyncClient(grid.url) as client:
            with pytest.raises(BadValue, match="is many jobs"):
                await client.run("true", **many)
        assert not grid.ledger.state.jobs and not grid.ledger.state.groups


async def test_jobs_leave_in_groups_and_one_that_is_refused_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_GROUP_JOBS", 10)
    jobs = [describe_job("true", name=f"n{number}") for number in range(90)]
    refused = [*jobs[:35], describe_job("true", key="x" * 200), *jobs[35:]]

    def run(client: GridClient) -> list[str]:
        with pytest.raises(RequestRefused, match="key must have"):
            client.submit_many(refused)
        return client.submit_many(jobs)

    async with coordinator(tmp_path) as grid:
        ids = await aside(run, grid.url)
        assert [grid.ledger.state.jobs[job].spec.name for job in ids] == [f"n{number}" for number in range(90)]
        assert len(grid.ledger.state.jobs) == 90


async def test_a_job_is_followed_from_running_to_its_end(tmp_path: Path) -> None:
    def follow(client: GridClient) -> list[State]:
        states = []
        for view in client.follow(job):
            states.append(view.state)
            if view.state is State.RUNNING:
                client.cancel(job, reason="enough")
        return states

    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url, runs=runs_on)
        job = await aside(lambda client: client.submit("sleep 60"), grid.url)
        await worker.until(Launch)
        states = await aside(follow, grid.url)
        assert states[-1] is State.ENDED and State.RUNNING in states
        await worker.close()


async def test_a_stream_goes_on_after_cuts_without_a_gap_or_a_double(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ends, "DataEnd", SlowData)
    text = bytes(range(256)) * 2
    async with coordinator(tmp_path) as grid, wire(grid.url) as link:
        loop, worker = asyncio.get_running_loop(), await agent(grid.url, runs=runs_on, output=text)

        def read(client: GridClient) -> dict[str, bytes]:
            seen, cuts = {"stdout": b"", "stderr": b""}, 0
            for stream, piece in client.stream(client.submit("print", requeue=False)):
                seen[stream] += piece
                if len(seen["stdout"]) // 150 > cuts:
                    cuts += 1
                    loop.call_soon_threadsafe(link.cut)
            assert cuts == 3
            return seen

        assert await aside(read, link.url) == {"stdout": text, "stderr": text}
        await worker.close()


async def test_directories_go_out_and_results_come_back(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ends, "DataEnd", FilesData)
    here = tmp_path / "here"
    here.mkdir()
    for number in range(40):
        (here / f"small{number}").write_text(str(number))
    (here / "large").write_bytes(bytes(range(256)) * 4000)
    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url, runs=runs_on)

        def go(client: GridClient) -> list[Path]:
            bundle = client.ship(here)
            assert client.ship(here) == bundle and grid.blobs.has(bundle)
            return client.fetch(client.submit("make", bundle=bundle), "**", into=tmp_path / "results")

        paths = await aside(go, grid.url)
        assert sorted(path.name for path in paths) == ["a.bin", "run.sh"]
        await worker.close()


async def test_a_submit_whose_answer_was_lost_is_one_job(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, wire(grid.url) as link:
        worker = await agent(grid.url)
        link.swallow_answers = True  # also that to the hello: the first connect is waited for

        def submit() -> str:
            client = GridClient(link.url).connect(patience=30.0)
            loop.call_soon_threadsafe(setattr, link, "swallow_answers", True)
            job = client.submit("true")
            client.wait(job)
            client.close()
            return job

        loop = asyncio.get_running_loop()
        job = await asyncio.to_thread(submit)
        assert [one.job for one in worker.launched] == [job]
        await worker.close()


async def test_who_does_not_want_to_wait_is_told_that_the_connection_was_lost(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, wire(grid.url) as link:

        def ask(client: GridClient) -> None:
            client.status()
            loop.call_soon_threadsafe(link.cut)
            with pytest.raises(ConnectionLost):
                client.wait(client.submit("true"))

        loop = asyncio.get_running_loop()
        await agent(grid.url, runs=runs_on)
        await aside(ask, link.url, patience=0.0)


async def test_events_tell_what_happens_to_who_polls(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, wire(grid.url) as link:

        def until(client: GridClient, kind: type) -> None:
            for _ in range(60):
                assert client.timeout() <= SILENT_SECONDS
                if any(isinstance(one, kind) for one in client.receive(1.0)):
                    return
            pytest.fail(f"no {kind.__name__}")

        def poll(client: GridClient) -> None:
            client.watch(client.submit("true"))
            until(client, JobUpdate)
            assert client.fileno() >= 0
            loop.call_soon_threadsafe(link.cut)
            until(client, Lost)
            assert client.fileno() < 0
            until(client, Opened)
            until(client, JobUpdate)  # it is watched again

        loop = asyncio.get_running_loop()
        worker = await agent(grid.url, runs=runs_on)
        await aside(poll, link.url)
        await worker.close()


def until_answered(client: GridClient) -> None:
    """Use the client for something else until what it asked for is there, too."""
    for _ in range(100):
        client.status()
        if any(client._answers.values()):
            return


async def test_a_client_that_is_used_while_it_streams_goes_on_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PING_SECONDS", 1000.0)  # nothing else wakes it
    monkeypatch.setattr(ends, "DataEnd", SlowData)
    text = bytes(range(42))

    def stream(client: GridClient) -> dict[str, bytes]:
        seen = {"stdout": b"", "stderr": b""}
        for name, piece in client.stream(client.submit("print", requeue=False)):
            seen[name] += piece
            until_answered(client)
        return seen

    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url, runs=runs_on, output=text)
        assert await aside(stream, grid.url, patience=0.0) == {"stdout": text, "stderr": text}
        await worker.close()


async def test_a_client_that_its_input_is_made_with_goes_on_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = b""

    class TakesInput(DataEnd):
        async def react(self, message: Any) -> None:
            nonlocal taken
            await super().react(message)
            if isinstance(message, PutInput):
                taken += message.data
                await self.say(InputTaken(message.id, next=len(taken), until=100, over=message.end))
                if message.end:
                    await finish_known(worker, message.allocation.rpartition(".")[0])

    monkeypatch.setattr(session, "PING_SECONDS", 1000.0)
    monkeypatch.setattr(ends, "DataEnd", TakesInput)

    def pieces(client: GridClient) -> Iterator[bytes]:
        for number in range(5):
            yield b"%d" % number
            until_answered(client)

    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url, runs=runs_on)
        async with asyncio.timeout(15):  # the coordinator would wake it in 20 s
            result = await aside(lambda client: client.run("cat", stdin=pieces(client)), grid.url, patience=0.0)
        assert (result.exit_code, taken) == (3, b"01234")
        await worker.close()


async def test_a_client_keeps_nothing_of_jobs_that_were_waited_for_or_left(tmp_path: Path) -> None:
    def use(client: GridClient) -> list[Any]:
        for _ in range(3):
            assert client.run("true").exit_code == 0
        left = [client.submit("true") for _ in range(3)]
        for job in left:
            next(client.follow(job))
        while any(view.state is not State.ENDED for view in map(client.show, left)):
            pass
        client.status()
        return client.receive()

    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url)
        assert await aside(use, grid.url) == []
        await worker.close()


async def test_a_forked_process_is_told_to_connect_a_client_of_its_own(tmp_path: Path) -> None:
    def child(client: GridClient) -> str:
        try:
            client.status()
        except GridError as error:
            client.close()
            with client:
                return f"{error.what}; {client.status().grid}"
        return "nothing was said"

    def fork(client: GridClient) -> tuple[str, str]:
        reader, writer = os.pipe()
        if not (pid := os.fork()):
            with contextlib.suppress(BaseException):
                os.write(writer, child(client).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        with open(reader, "rb") as told:
            os.close(writer)
            return told.read().decode(), client.status().grid

    async with coordinator(tmp_path) as grid:
        said, found = await aside(fork, grid.url, patience=0.0)  # one that is hung up would be told
        assert said == f"this GridClient belongs to another process; {found}"


async def test_a_second_thread_is_told_and_what_the_first_one_does_goes_on(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        client = GridClient(grid.url, patience=0.0)  # one that is hung up would be told
        await asyncio.to_thread(client.connect)
        job = await asyncio.to_thread(client.submit, "sleep 600")
        streamed = client.stream(job)
        waits = asyncio.create_task(asyncio.to_thread(client.wait, job))
        async with asyncio.timeout(60):
            while not client.session.followed:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        others: list[Callable[[], object]] = [
            client.status, lambda: client.submit("true"), client.receive, lambda: next(streamed),
            lambda: client.ask(ListJobs(id=0)), lambda: client.watch(job), client.connect,
        ]  # fmt: skip
        for found in await asyncio.gather(*map(asyncio.to_thread, others), return_exceptions=True):
            assert isinstance(found, GridError) and "in use by another thread" in found.what
        assert [*grid.ledger.state.jobs] == [job]
        async with AsyncClient(grid.url) as other:
            await other.cancel(job)
        assert (await waits).state is State.ENDED
        assert (await asyncio.to_thread(client.status)).grid == grid.store.grid
        await asyncio.to_thread(client.close)


async def test_what_cannot_be_done_is_refused_with_a_code(tmp_path: Path) -> None:
    def ask(client: GridClient) -> None:
        with pytest.raises(RequestRefused) as unknown:
            client.wait("j-nothere")
        assert unknown.value.code == "unknown-job"
        with pytest.raises(BadValue, match="cannot be asked"):
            client.show(7)  # type: ignore[arg-type]
        assert client.nodes() == [] and client.jobs(ended=True) == []

    async with coordinator(tmp_path) as grid:
        await aside(ask, grid.url)


def test_nobody_there_is_one_clear_error() -> None:
    url = f"ws://127.0.0.1:{free_port()}"
    with pytest.raises(GridUnavailable, match="cannot reach") as caught:
        GridClient(url).connect()
    assert caught.value.why == "connection refused: nothing listens there"
    with pytest.raises(GridUnavailable, match="not connected"):
        GridClient(url).status()
