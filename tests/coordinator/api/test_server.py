"""A coordinator over real sockets: jobs go through it, peers that misbehave lose their own connection only."""

import asyncio
import contextlib
import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.asyncio.server import broadcast
from websockets.exceptions import ConnectionClosed

from distributed_grid.coordinator.client import GridClient
from distributed_grid.coordinator.net import connection as connections
from distributed_grid.protocol.codec import CONTROL_BYTES, encode
from distributed_grid.protocol.jobs import Cause, Outcome, Request, State
from distributed_grid.protocol.messages import (
    AskWhy,
    Cancel,
    Done,
    Exited,
    Failed,
    GetShared,
    GetStatus,
    Heartbeat,
    Hello,
    Jobs,
    JobUpdate,
    Launch,
    ListJobs,
    OpenData,
    Output,
    Refused,
    Shared,
    ShowJobs,
    SignalJob,
    Started,
    Status,
    Stop,
    Submit,
    WantOutput,
    Watch,
    Welcome,
    Why,
    next_page,
)
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.resources import Resources
from tests.coordinator.ends import (
    AgentEnd,
    ClientEnd,
    Coordinator,
    agent,
    client,
    coordinator,
    job,
    node,
    runs_on,
)

# --- jobs ------------------------------------------------------------------------------------------------------------


async def test_a_job_goes_through_and_its_watcher_sees_it_end(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url), await client(grid.url)
        (name,) = await ann.submit(job("true"))
        view = await ann.ended(name)
        assert view.outcome is not None and view.outcome.cause is Cause.EXITED and view.node == "n1"
        assert [launch.allocation for launch in worker.launched] == [f"{name}.1"]
        await worker.until(lambda seen: getattr(seen, "allocations", ()) == (f"{name}.1",))  # acknowledged
        await ann.close()
        await worker.close()


async def test_the_same_key_is_the_same_job_live_ended_and_after_a_restart(tmp_path: Path) -> None:
    one = job("true", key="once")
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        first = await ann.submit(one)
        assert await ann.submit(one, one) == first * 2
        bob = await client(grid.url, "bob")
        assert await bob.submit(one) != first  # keys are each user's own
        worker = await agent(grid.url)
        await ann.ended(first[0])
        assert await ann.submit(one) == first
        for end in (ann, bob, worker):
            await end.close()
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        assert await ann.submit(one) == first
        assert (await ann.ended(first[0])).outcome is not None  # told at once to who watches
        await ann.close()


async def test_jobs_of_one_call_start_in_its_order_also_after_a_restart(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        names = await ann.submit(*(job("true", key=f"k{number}") for number in range(30)), watch=False)
    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url, node(cores=1))
        await worker.until(lambda seen: getattr(seen, "allocations", ()) == (f"{names[-1]}.1",))
        assert [launch.job for launch in worker.launched] == list(names)


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


async def test_cancel_and_signal_reach_the_agent_and_are_answered(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        (name,) = await ann.submit(job("sleep", "9"))
        await ann.until(lambda seen: isinstance(seen, JobUpdate) and seen.job.state is State.RUNNING)
        assert isinstance(await ann.ask(SignalJob(1001, name, 2)), Done)
        sent = await worker.until(lambda seen: getattr(seen, "signal", 0) == 2)
        assert sent.allocation == f"{name}.1"
        assert isinstance(await ann.ask(Cancel(1002, (name,))), Done)
        await worker.until(Stop)
        assert (await ann.ended(name)).outcome.cause is Cause.CANCELLED  # type: ignore[union-attr]
        assert (await ann.ask(Cancel(1003, (name,)))).text == "ended already"
        await ann.close()
        await worker.close()


async def test_references_are_resolved_and_unknown_ones_come_with_a_suggestion(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        first, second = await ann.submit(job("a", name="train"), job("b", name="serve"), watch=False)

        async def show(number: int, *refs: str) -> Any:
            return await ann.ask(ShowJobs(number, refs))

        assert [view.id for view in (await show(101, "train", first[:10], first)).jobs] == [first]
        assert [view.id for view in (await show(102, "last")).jobs] == [second]
        unknown = await show(103, "trian")
        assert isinstance(unknown, Failed) and unknown.code == "unknown-job" and "train" in unknown.hint
        several = await show(104, "j-")
        assert isinstance(several, Failed) and first not in several.hint
        nobody = await (await client(grid.url, "eve")).ask(ShowJobs(1, ("last",)))
        assert isinstance(nobody, Failed) and nobody.code == "unknown-job"
        await ann.close()


async def test_lists_are_bounded_newest_first_and_keep_secrets(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url), await client(grid.url)
        ended = await ann.submit(*(job("true", env={"TOKEN": "secret"}) for _ in range(3)))
        for name in ended:
            await ann.ended(name)
        waiting = await ann.submit(job("true", cpu=4000), job("true", cpu=4000), job("true", cpu=4000), watch=False)
        live = await ann.ask(ListJobs(201))
        assert {view.id for view in live.jobs} <= set(waiting)
        everything = await ann.ask(ListJobs(202, ended=True))
        assert {view.id for view in everything.jobs} == {*ended, *waiting} and not everything.more
        assert all(view.spec.env == {} and view.story == () for view in everything.jobs)
        some = await ann.ask(ListJobs(203, ended=True, limit=2))
        assert len(some.jobs) == 2 and some.more
        assert all(a.submitted >= b.submitted for a, b in zip(everything.jobs, everything.jobs[1:], strict=False))
        only = await ann.ask(ListJobs(204, ended=True, states=(State.ENDED,), user="ann"))
        assert {view.id for view in only.jobs} >= set(ended)
        assert (await ann.ask(ListJobs(205, ended=True, user="bob"))).jobs == ()
        await ann.close()
        await worker.close()


async def test_a_list_goes_on_behind_what_one_answer_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed_grid.coordinator.api.lookup.LIST_BYTES", 3000)
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url), await client(grid.url)
        ended = [name for _ in range(5) for name in await ann.submit(*(job("true") for _ in range(5)))]
        for name in ended:
            await ann.ended(name)
        await worker.close()  # so that none of the others starts, and ends, while the list is read
        waiting = [name for _ in range(6) for name in await ann.submit(*(job("true", cpu=4000) for _ in range(5)))]
        asked: ListJobs | None = ListJobs(300, ended=True, limit=50)
        pages: list[Jobs] = []
        while asked is not None:
            answer = await ann.ask(asked)
            pages.append(answer)
            asked = next_page(asked, answer, 301 + len(pages))
        told = [view for page in pages for view in page.jobs]
        assert len(pages) > 3 and pages[-1].more  # 50 of 55 were wanted
        assert len({view.id for view in told}) == 50
        live, over = told[: len(waiting)], told[len(waiting) :]
        assert {view.id for view in live} == set(waiting)
        assert [view.submitted for view in live] == sorted((view.submitted for view in live), reverse=True)
        assert [view.ended for view in over] == sorted((view.ended for view in over), reverse=True)
        async with GridClient(grid.url) as everybody:
            assert {view.id for view in await everybody.jobs(ended=True)} == {*ended, *waiting}
        await ann.close()


def shows_running(job: str, message: object) -> bool:
    return isinstance(message, JobUpdate) and (message.job.id, message.job.state) == (job, State.RUNNING)


async def test_more_nodes_than_one_answer_holds_are_told_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coordinator(tmp_path) as grid:
        workers = [await agent(grid.url, node(f"n{number}"), runs=runs_on) for number in range(7)]
        ann = await client(grid.url)
        jobs = await ann.submit(*(job("sleep 60") for _ in range(9)))
        for name in jobs:
            await ann.until(partial(shows_running, name))
        monkeypatch.setattr("distributed_grid.coordinator.api.lookup.LIST_BYTES", 1200)
        first = await ann.ask(GetStatus(301))
        assert [view.facts.name for view in first.nodes] == [f"n{number}" for number in range(len(first.nodes))]
        assert 0 < len(first.nodes) < 7 and first.past == first.nodes[-1].facts.name
        async with GridClient(grid.url) as everybody:
            whole, shared = await everybody.status(), await everybody.shared()
            one = await everybody.shared("n3")
        assert [view.facts.name for view in whole.nodes] == [f"n{number}" for number in range(7)]
        assert whole.counts == {"running": 9} and not whole.past
        assert [view.node for view in shared.offers] == [f"n{number}" for number in range(7)]
        assert {view.job for view in shared.allocations} == set(jobs)
        assert [view.node for view in one.offers] == ["n3"]
        await ann.close()
        for worker in workers:
            await worker.close()


async def test_status_shared_and_why_show_the_grid(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        await worker.say(Heartbeat(Sample(at=1.0, foreign_cpu=0.5)))
        (name,) = await ann.submit(job("sleep", "1"))
        await ann.until(lambda seen: isinstance(seen, JobUpdate) and seen.job.state is State.RUNNING)
        status = await ann.ask(GetStatus(301))
        assert isinstance(status, Status) and status.grid == grid.store.grid and status.counts == {"running": 1}
        assert status.nodes[0].sample is not None and status.nodes[0].sample.foreign_cpu == 0.5
        shared = await ann.ask(GetShared(302))
        assert isinstance(shared, Shared) and shared.offers[0].room.cpu == 3000
        assert [held.job for held in shared.allocations] == [name]
        why = await ann.ask(AskWhy(303, job=name))
        assert isinstance(why, Why) and why.job is not None and why.job.id == name
        dry = await ann.ask(AskWhy(304, request=Request(Resources(cpu=1000))))
        assert isinstance(dry, Why) and dry.chosen == "n1"
        await ann.close()
        await worker.close()


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (job(""), "no command"),
        (job("a\0b"), "zero byte"),
        (job("a", env={"A=B": "x"}), "environment"),
        (job("a", workdir="relative"), "not an absolute path"),
        (job("a", time_limit=float("nan")), "time_limit"),
        (job("a", name="last"), "cannot be used"),
        (job("a", cpu=0), "nothing is asked for"),
        (job("a", bundle="0" * 64), "not here"),
        (job("x" * (2 << 20)), "bytes"),
    ],
)
async def test_a_submission_that_cannot_be_is_refused_in_words(tmp_path: Path, bad: Any, says: str) -> None:
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        answer = await ann.ask(Submit(1, (job("fine"), bad)))
        assert isinstance(answer, Failed) and says in answer.what
        assert (await ann.ask(ListJobs(2))).jobs == ()  # all or none
        await ann.close()


async def test_a_request_is_in_the_audit_log_with_the_jobs_ids_and_without_its_words(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        (made,) = await ann.submit(job("secretly", key="hunter3", env={"PASSWORD": "hunter2"}))
        await ann.close()
    text = (tmp_path / "audit.log").read_text()
    line = json.loads(text.splitlines()[-1])
    assert (line["user"], line["event"], line["ids"], line["via"]) == ("ann", "submit", [made], "")
    assert not any(word in text for word in ("hunter", "PASSWORD", "secretly"))


# --- output ----------------------------------------------------------------------------------------------------------


def ends_with(outcome: Outcome) -> Any:
    return lambda launch: [Started(launch.allocation, 1), Exited(launch.allocation, outcome, returned=True)]


async def test_output_is_relayed_from_the_nodes_data_connection_under_the_clients_numbers(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        text = bytes(range(256)) * 4096  # 1 MiB
        worker = await agent(grid.url, runs=runs_on, output=text)
        ann, bob = await client(grid.url), await client(grid.url, "bob")
        (name,) = await ann.submit(job("cat"))
        await worker.until(Launch)

        async def read(end: ClientEnd, number: int) -> bytes:
            got = b""
            while True:
                number += 1
                part = await end.ask(WantOutput(number, f"{name}.1", "stdout", len(got), 1 << 30))
                assert isinstance(part, Output) and not part.error and part.offset == len(got)
                assert len(part.data) <= 256 << 10
                got += part.data
                if part.end:
                    return got

        assert list(await asyncio.gather(read(ann, 5000), read(bob, 5000))) == [text, text]
        assert sum(isinstance(seen, OpenData) for seen in worker.seen) == 1
        for end in (ann, bob, worker):
            await end.close()


async def test_output_of_an_ended_job_is_had_from_its_record_when_the_node_is_away(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        outcome = Outcome(Cause.EXITED, stdout_size=5, stdout_tail=b"hello", stderr_size=90_000, stderr_tail=b"end")
        worker, ann = await agent(grid.url, runs=ends_with(outcome)), await client(grid.url)
        (name,) = await ann.submit(job("echo"))
        await ann.ended(name)
        await worker.close()
        await until_away(grid)
        assert await ann.ask(WantOutput(401, f"{name}.1", "stdout", 0, 100)) == Output(401, 0, b"hello", end=True)
        assert await ann.ask(WantOutput(402, f"{name}.1", "stdout", 1, 2)) == Output(402, 1, b"el")
        assert await ann.ask(WantOutput(403, f"{name}.1", "stdout", 5, 9)) == Output(403, 5, b"", end=True)
        assert await ann.ask(WantOutput(404, f"{name}.1", "stderr", 89_998, 9)) == Output(404, 89_998, b"nd", end=True)
        gone = await ann.ask(WantOutput(405, f"{name}.1", "stderr", 0, 9))
        assert "unavailable" in gone.error and "n1" in gone.error
        assert "no allocation" in (await ann.ask(WantOutput(406, "j-x.1", "stdout", 0, 9))).error
        await ann.close()


async def until_away(grid: Coordinator, name: str = "n1") -> None:
    async with asyncio.timeout(60):
        while name in grid.server._agents:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_question_to_a_node_that_goes_away_is_answered_with_that(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        (name,) = await ann.submit(job("cat"))
        await worker.until(Launch)
        worker.react = lambda message: asyncio.sleep(0)  # type: ignore[method-assign]  # never opens it
        await ann.say(WantOutput(501, f"{name}.1", "stdout", 0, 10, wait=30.0))
        await worker.until(OpenData)
        await worker.close()
        answer = await ann.until(lambda seen: isinstance(seen, Output))
        assert "not connected" in answer.error
        await ann.close()


def wires(grid: Coordinator) -> list[Any]:
    return [guest.wire for guest in grid.server._listener._peers if guest.wire is not None]


# --- peers that misbehave ---------------------------------------------------------------------------------------------


async def works(grid: Coordinator, worker: AgentEnd) -> None:
    """All else goes on: a job through the same coordinator and agent."""
    ann = await client(grid.url, "witness")
    (name,) = await ann.submit(job("true"))
    await ann.ended(name)
    await ann.close()


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


async def test_a_client_that_never_reads_is_cut_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Below what makes the library pause: who is slow enough to wait for that would not get above its outbox.
    monkeypatch.setattr(connections, "OUTBOX_BULK", 16 << 10)
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url), await client(grid.url)
        await ann.submit(*(job("x" * 1000, cpu=4000) for _ in range(200)), watch=False)
        before = set(wires(grid))
        deaf = await client(grid.url, "deaf")
        (wire,) = set(wires(grid)) - before
        deaf.socket.transport.pause_reading()
        async with asyncio.timeout(60):
            for number in itertools.count():
                if wire.transport.is_closing():
                    break
                assert wire.transport.get_write_buffer_size() < 1 << 20
                deaf.link.send(ListJobs(number))  # each answer has some 250 KiB
                broadcast([deaf.socket], deaf.link.data_to_send()[0])
                await asyncio.sleep(0.001)
        await works(grid, worker)
        await ann.close()
        await worker.close()


async def test_pings_whose_pongs_are_never_read_do_not_fill_memory(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        stranger = await connect(grid.url, compression=None, ping_interval=None)
        stranger.transport.pause_reading()
        (wire,) = wires(grid)
        async with asyncio.timeout(60):
            while wire.state.name == "OPEN":
                for _ in range(1000):
                    stranger.protocol.send_ping(b"x" * 125)
                stranger.send_data()
                assert wire.transport.get_write_buffer_size() < 1 << 20
                await asyncio.sleep(0)
        stranger.transport.abort()


async def test_a_silent_agent_loses_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed_grid.protocol.link.SILENCE", 0.3)
    with capture_logs() as lines:
        async with coordinator(tmp_path) as grid:
            with contextlib.suppress(ConnectionClosed):  # on a busy machine: while it has yet to say what it offers
                await (await agent(grid.url)).gone()
            await until_away(grid)
    assert [line["node"] for line in lines if line["event"] == "agent is silent"] == ["n1"]


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
