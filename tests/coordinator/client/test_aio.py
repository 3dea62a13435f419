"""The client against a real coordinator and a played agent: results, errors, files, reconnects without a double."""

import asyncio
import contextlib
import io
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.client import (
    BadAnswer,
    GridClient,
    RequestRefused,
    describe_job,
    shipping,
)
from distributed_grid.coordinator.client.blocking import GridClient as BlockingClient
from distributed_grid.coordinator.client.shipping import ShippingWarning, scan
from distributed_grid.coordinator.client.walk import ShippingError
from distributed_grid.protocol.bundle import decode_manifest
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, State
from distributed_grid.protocol.messages import (
    Exited,
    FileData,
    FileEntry,
    Files,
    InputTaken,
    Launch,
    Output,
    PutInput,
    Signal,
    Started,
    WantFile,
    WantFiles,
    WantOutput,
)
from tests.coordinator import ends
from tests.coordinator.ends import AgentEnd, DataEnd, agent, coordinator, node, runs_on


class Wire:
    """A TCP relay between client and coordinator that can be cut, or fall `silent`: nothing passes any more."""

    def __init__(self, target: str) -> None:
        self.target = int(target.rpartition(":")[2] or 0)
        self.url = ""
        self.swallow_answers = False
        self.down = False
        self.silent = False
        self.passed = 0
        self._news = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.down:
            writer.close()
            return
        if self.silent:
            self._writers.add(writer)
            return
        there, away = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers |= {writer, away}
        await asyncio.gather(self._copy(reader, away, False), self._copy(there, writer, True))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if answers and self.swallow_answers:
                    self.cut()
                    break
                if self.silent:
                    continue
                self.passed += len(data)
                self._news.set()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def has_passed(self, count: int) -> None:
        while self.passed < count:
            self._news.clear()
            await self._news.wait()

    def cut(self) -> None:
        self.swallow_answers = False
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


@asynccontextmanager
async def wire(target: str) -> AsyncIterator[Wire]:
    made = Wire(target)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        made.cut()
        server.close()


def ends_with(outcome: Outcome) -> Any:
    return lambda launch: [Started(launch.allocation, 1), Exited(launch.allocation, outcome, returned=True)]


# --- jobs and results -------------------------------------------------------------------------------------------------


async def test_a_result_has_the_exit_code_the_output_and_the_node(tmp_path: Path) -> None:
    outcome = Outcome(Cause.EXITED, code=7, stdout_size=3, stderr_size=4, stdout_tail=b"out", stderr_tail=b"err\xff")
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, runs=ends_with(outcome))
        result = await client.run("sh -c 'exit 7'", name="seven", env={"A": "b"})
        assert (result.exit_code, result.success, result.node, result.cause) == (7, False, "n1", "exited")
        assert (result.stdout, result.stderr, result.stderr_bytes) == ("out", "err\ufffd", b"err\xff")
        assert (result.truncated, result.name) == (False, "seven")
        assert worker.launched[0].spec.argv == ("sh", "-c", "exit 7")
        assert worker.launched[0].spec.env == {"A": "b"}
        await worker.close()


async def test_output_longer_than_the_record_is_pulled_from_the_node(tmp_path: Path) -> None:
    text = bytes(range(256)) * 4096
    outcome = Outcome(Cause.EXITED, stdout_size=len(text), stdout_tail=text[-100:])
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, runs=ends_with(outcome), output=text)
        result = await client.run("true")
        assert result.stdout_bytes == text
        assert (result.truncated, result.success) == (False, True)
        await worker.close()


async def test_a_client_keeps_nothing_of_jobs_whose_output_was_read_or_left(tmp_path: Path) -> None:
    text = bytes(range(256)) * 4096
    outcome = Outcome(Cause.EXITED, stdout_size=len(text), stdout_tail=text[-100:])
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, runs=ends_with(outcome), output=text)
        result = await client.run("true")
        async with contextlib.aclosing(client.stream(result.job_id)) as pieces:
            async for _ in pieces:
                break
        assert not client._changes and not client._answers and not client._session.followed
        await worker.close()


class Endless(DataEnd):
    """Always has more."""

    async def react(self, message: Any) -> None:
        if isinstance(message, WantOutput):
            await self.say(Output(message.id, message.offset, b"x" * message.size))


async def test_output_without_end_ends_at_the_size_on_record(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ends, "DataEnd", Endless)
    outcome = Outcome(Cause.EXITED, stdout_size=1_000_000, stdout_tail=b"x" * 10)
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, runs=ends_with(outcome))
        async with asyncio.timeout(30):
            result = await client.result(await client.submit("make"))
        assert result.stdout_bytes == b"x" * 1_000_000 and not result.truncated and not result.output_error
        await worker.close()


async def test_output_out_of_reach_is_said_and_the_tail_is_kept(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("distributed_grid.coordinator.client.output.RETRY_SECONDS", 0.001)
    outcome = Outcome(Cause.EXITED, stdout_size=1000, stdout_tail=b"the end")
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, runs=ends_with(outcome))
        job = await client.submit("true")
        await client.wait(job)
        await worker.close()
        result = await client.result(job)
        assert (result.exit_code, result.stdout, result.truncated) == (0, "the end", True)
        assert "n1 is not connected" in result.output_error


async def test_a_question_that_comes_due_while_others_are_sent_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed_grid.coordinator.client.output.RETRY_SECONDS", 0.001)
    change = GridClient._change

    def slowly(self: GridClient, job: str) -> "asyncio.Future[None]":
        time.sleep(0.005)  # the loop is busy
        return change(self, job)

    monkeypatch.setattr(GridClient, "_change", slowly)
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, runs=ends_with(Outcome(Cause.EXITED, stdout_size=1000, stdout_tail=b"the end")))
        job = await client.submit("true")
        await client.wait(job)
        await worker.close()
        async with asyncio.timeout(30):
            assert (await client.result(job)).stdout == "the end"


async def test_a_job_is_followed_from_waiting_to_its_end(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        await (await agent(grid.url)).close()  # known, so that it can be asked for; not there, so that it waits
        job = await client.submit("true", priority="critical")
        states = []
        async with asyncio.timeout(60), contextlib.aclosing(client.follow(job)) as views:
            async for view in views:
                states.append(view.state)
                if states == [State.WAITING]:
                    worker = await agent(grid.url, facts=node(incarnation=2))
        assert (states[0], states[-1]) == (State.WAITING, State.ENDED)
        assert view.request.priority is Priority.URGENT
        assert (await client.show(job[:6])).id == job == (await client.show("last")).id
        await worker.close()


async def test_hundreds_of_jobs_are_submitted_and_waited_for_at_once(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url)
        ids = await client.submit_many([describe_job("true") for _ in range(300)])
        views = await asyncio.gather(*(client.wait(job) for job in ids))
        assert [view.id for view in views] == ids
        assert len({launch.job for launch in worker.launched}) == len(worker.launched) == 300
        assert len(await client.jobs(ended=True, limit=10)) == 10
        await worker.close()


async def test_a_running_job_is_signalled_and_cancelled(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, runs=runs_on)
        job = await client.submit("sleep 60")
        await worker.until(Launch)
        async with contextlib.aclosing(client.follow(job)) as views:
            async for view in views:
                if view.state is State.RUNNING:
                    break
        await client.signal(job, 10)
        assert (await worker.until(Signal)).signal == 10
        await client.cancel(job, reason="enough")
        view = await client.wait(job)
        assert view.outcome is not None and view.outcome.cause is Cause.CANCELLED
        assert (await client.result(job)).exit_code == 143
        await worker.close()


async def test_what_cannot_be_done_is_refused_with_a_code(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        with pytest.raises(RequestRefused) as unknown:
            await client.wait("j-nothere")
        assert unknown.value.code == "unknown-job"
        worker = await agent(grid.url)
        with pytest.raises(RequestRefused) as never:
            await client.submit("true", cpus=64)
        assert never.value.code == "never-fits" and "64" in str(never.value.lines())
        await worker.close()


@pytest.mark.parametrize("given", [1, None, b"here", ["here"], "he\0re"], ids=repr)
async def test_what_is_no_path_is_said_in_both_clients_before_anything_is_asked(tmp_path: Path, given: Any) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        for call in (client.ship(given), client.fetch("j-nothere", into=given)):
            with pytest.raises(BadValue, match="cannot be"):
                await call
    blocking = BlockingClient(grid.url)
    for asked in (lambda: blocking.ship(given), lambda: blocking.fetch("j-nothere", into=given)):
        with pytest.raises(BadValue, match="cannot be"):
            asked()


async def test_status_nodes_offers_and_reasons_are_there(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url)
        assert [one.facts.name for one in await client.nodes()] == ["n1"]
        assert [one.node for one in (await client.shared()).offers] == ["n1"]
        assert (await client.why(request=describe_job("true").request)).chosen == "n1"
        await worker.close()


# --- what is asked ----------------------------------------------------------------------------------------------------


# --- away and back ----------------------------------------------------------------------------------------------------


async def finish_known(worker: AgentEnd, job: str) -> None:
    await worker.say(Exited(f"{job}.1", Outcome(Cause.EXITED, code=3), returned=True))


class SlowData(DataEnd):
    """Gives output in small pieces, so that a cut falls between them."""

    async def react(self, message: Any) -> None:
        if isinstance(message, WantOutput):
            data = self.output[message.offset : message.offset + 7]
            await self.say(Output(message.id, message.offset, data, end=message.offset + len(data) >= len(self.output)))


async def test_a_stream_goes_on_after_cuts_without_a_gap_or_a_double(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ends, "DataEnd", SlowData)
    text = bytes(range(256)) * 2
    async with coordinator(tmp_path) as grid, wire(grid.url) as link, GridClient(link.url) as client:
        worker = await agent(grid.url, runs=runs_on, output=text)
        job = await client.submit("print", requeue=False)  # its stand-in tells no end
        seen = {"stdout": b"", "stderr": b""}
        cuts = 0
        async with asyncio.timeout(60):
            async for stream, piece in client.stream(job):
                seen[stream] += piece
                if len(seen["stdout"]) // 150 > cuts:
                    cuts += 1
                    link.cut()
        assert seen == {"stdout": text, "stderr": text}
        assert cuts == 3
        await worker.close()


# --- files ------------------------------------------------------------------------------------------------------------


async def test_a_directory_is_shipped_and_an_unchanged_file_travels_once(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "large").write_bytes(bytes(range(256)) * 4000)
    (here / "empty").write_bytes(b"")
    async with coordinator(tmp_path) as grid, wire(grid.url) as link, GridClient(link.url) as client:
        bundle = await client.ship(here)
        assert grid.blobs.has(bundle)
        assert link.passed > 1_000_000
        link.passed = 0
        assert await client.ship(here) == bundle
        (here / "more").write_text("new")
        newer = await client.ship(here)
        assert newer != bundle and link.passed < 10_000
        manifest = decode_manifest((tmp_path / "blobs" / newer[:2] / newer).read_bytes())
        assert [entry.path for entry in manifest.entries] == ["empty", "large", "more"]
        assert all(grid.blobs.has(blob) for blob in manifest.blobs)


async def test_a_cut_while_shipping_starts_the_file_over(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "large").write_bytes(bytes(range(256)) * 20_000)
    async with coordinator(tmp_path) as grid, wire(grid.url) as link, GridClient(link.url) as client:
        shipping = asyncio.create_task(client.ship(here))
        async with asyncio.timeout(60):
            await link.has_passed(1_000_000)
            link.cut()
            bundle = await shipping
        manifest = decode_manifest((tmp_path / "blobs" / bundle[:2] / bundle).read_bytes())
        assert grid.blobs.has(manifest.entries[0].blob)


async def test_a_file_that_changes_on_the_way_is_shipped_as_it_is_then(tmp_path: Path, monkeypatch: Any) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "a").write_text("before")
    real = scan
    calls: list[str] = []

    def scan_then_change(directory: Path, **options: Any) -> Any:
        bundle = real(directory, **options)
        calls.append(bundle.hash)
        if len(calls) == 1:
            (here / "a").write_text("after!")
        return bundle

    monkeypatch.setattr(shipping, "scan", scan_then_change)
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        assert await client.ship(here) == calls[1] != calls[0]

    def change_after_each_scan(directory: Path, **options: Any) -> Any:
        bundle = real(directory, **options)
        (here / "a").write_text(bundle.hash)
        return bundle

    (here / "a").write_text("never sent")
    monkeypatch.setattr(shipping, "scan", change_after_each_scan)
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        with pytest.raises(ShippingError, match="cannot be shipped"):
            await client.ship(here)


async def test_a_program_is_warned_of_what_is_not_shipped(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here/.env").write_text("TOKEN=1")
    (tmp_path / "here/out").symlink_to("/etc/passwd")
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        with pytest.raises(BadValue, match="'both'"):
            await client.ship(tmp_path / "here", links="both")
        with pytest.raises(ShippingError, match="too large"):
            await client.ship(tmp_path / "here", links="skip", secrets=True, ceiling=1)
        with pytest.warns(ShippingWarning) as warned:
            bundle = await client.ship(tmp_path / "here", links="skip")
        said = [str(one.message) for one in warned if one.category is ShippingWarning]
        assert [(".env" in one, "out ->" in one) for one in said] == [
            (True, False),
            (False, True),
        ]
        assert not decode_manifest((tmp_path / "blobs" / bundle[:2] / bundle).read_bytes()).entries


# --- standard input ---------------------------------------------------------------------------------------------------


async def test_what_cannot_be_standard_input_is_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        for source, kind in (("text", "str"), (io.StringIO("text"), "StringIO")):
            with pytest.raises(BadValue, match=f"standard input cannot be {kind}"):
                await client.run("cat", stdin=source)  # type: ignore[arg-type]
        assert await client.jobs() == []


async def test_a_piece_that_is_no_bytes_ends_the_job_and_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts: list[str] = []

    class TakesInput(DataEnd):
        async def react(self, message: Any) -> None:
            await super().react(message)
            if isinstance(message, PutInput):
                await self.say(InputTaken(message.id, until=100, over=bool(message.cut)))
                if message.cut:
                    cuts.append(message.cut)
                    await finish_known(worker, message.allocation.rpartition(".")[0])

    monkeypatch.setattr(ends, "DataEnd", TakesInput)
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, runs=runs_on)
        async with asyncio.timeout(60):
            with pytest.raises(BadValue, match="standard input cannot be str"):
                await client.run("cat", stdin=["text"])  # type: ignore[list-item]
        assert len(cuts) == 1 and "cannot be str" in cuts[0]
        await worker.close()


class FilesData(DataEnd):
    """A node with two files in a job's working directory, and with what a node must not be able to do."""

    contents = {"out/a.bin": bytes(range(256)) * 3000, "run.sh": b"#!/bin/sh\n"}
    evil = ""

    async def react(self, message: Any) -> None:
        match message:
            case WantFiles():
                found = [FileEntry(path, len(text), 0o755) for path, text in self.contents.items()]
                if self.evil:
                    found = [FileEntry(self.evil, 1)]
                await self.say(Files(message.id, tuple(found)))
            case WantFile():
                text = self.contents.get(message.path, b"evil")
                data = text[message.offset : message.offset + message.size]
                await self.say(FileData(message.id, data, end=message.offset + len(data) >= len(text)))


async def test_results_are_fetched_with_content_and_mode(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ends, "DataEnd", FilesData)
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, runs=runs_on)
        job = await client.submit("make")
        await worker.until(Launch)
        paths = await client.fetch(job, "**", into=tmp_path / "results", executable=True)
        assert sorted(str(path.relative_to(tmp_path / "results")) for path in paths) == ["out/a.bin", "run.sh"]
        assert (tmp_path / "results/out/a.bin").read_bytes() == FilesData.contents["out/a.bin"]
        assert (tmp_path / "results/run.sh").stat().st_mode & 0o777 == 0o755
        await worker.close()
        for glob in ("../x", "/etc/passwd", ""):  # told without asking the node, which is away
            with pytest.raises(BadValue, match="does not lead into the working directory"):
                await client.fetch(job, glob, into=tmp_path / "results")
            with pytest.raises(BadValue, match="does not lead into the working directory"):
                await client.files(job, glob)


async def test_files_of_a_node_that_is_away_are_waited_for(tmp_path: Path, monkeypatch: Any) -> None:
    """By both clients, as behind a restart of the coordinator, when nodes are not back yet."""
    monkeypatch.setattr(ends, "DataEnd", FilesData)

    def blocking(url: str, job: str) -> list[FileEntry]:
        with BlockingClient(url) as client:
            return client.files(job)

    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, runs=runs_on)
        job = await client.submit("make")
        held = (await worker.until(Launch)) and worker.held
        await worker.close()
        await ends.until_away(grid)
        asked: list[asyncio.Task[Any]] = [
            asyncio.create_task(client.fetch(job, into=tmp_path / "results")),
            asyncio.create_task(asyncio.to_thread(blocking, grid.url, job)),
        ]
        failed, _ = await asyncio.wait(asked, timeout=0.2)
        assert not failed
        again = await agent(grid.url, facts=node(incarnation=2), runs=runs_on, held=held)
        assert [len(found) for found in await asyncio.gather(*asked)] == [2, 2]
        await again.close()


@pytest.mark.parametrize("evil", ["../up", "/etc/x", "a/../../b"])
async def test_a_node_cannot_write_outside_the_directory(tmp_path: Path, monkeypatch: Any, evil: str) -> None:
    monkeypatch.setattr(ends, "DataEnd", FilesData)
    monkeypatch.setattr(FilesData, "evil", evil)
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, runs=runs_on)
        job = await client.submit("make")
        await worker.until(Launch)
        with pytest.raises(BadAnswer, match="node n1"):
            await client.fetch(job, into=tmp_path / "deep" / "results")
        assert not (tmp_path / "deep").exists()
        await worker.close()


async def test_what_changed_here_stays_unless_forced_and_no_bit_is_executable(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ends, "DataEnd", FilesData)
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, runs=runs_on)
        job = await client.submit("make")
        await worker.until(Launch)
        (tmp_path / "results/out").mkdir(parents=True)
        (tmp_path / "results/out/a.bin").write_text("mine")
        with pytest.raises(GridError, match="1 file is not written: out/a.bin"):
            await client.fetch(job, into=tmp_path / "results")
        assert (tmp_path / "results/out/a.bin").read_text() == "mine"
        assert (tmp_path / "results/run.sh").stat().st_mode & 0o111 == 0
        await client.fetch(job, into=tmp_path / "results", force=True)
        assert (tmp_path / "results/out/a.bin").read_bytes() == FilesData.contents["out/a.bin"]
        await worker.close()


async def test_a_coordinator_that_does_not_know_the_job_any_more_ends_the_wait(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    async with (
        coordinator(tmp_path / "first") as first,
        coordinator(tmp_path / "second") as second,
        wire(first.url) as link,
        GridClient(link.url) as client,
    ):
        worker = await agent(first.url, runs=runs_on)
        job = await client.submit("sleep 60")
        waiting = asyncio.create_task(client.wait(job))
        await worker.until(Launch)
        await client.status()
        link.target = int(second.url.rpartition(":")[2])
        link.cut()
        with pytest.raises(RequestRefused) as caught:
            async with asyncio.timeout(60):
                await waiting
        assert caught.value.code == "unknown-job"
        await worker.close()


# --- event loops ------------------------------------------------------------------------------------------------------


# --- commands as text -------------------------------------------------------------------------------------------------
