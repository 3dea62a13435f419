"""What clients and agents see of a coordinator whose disk takes nothing for a while."""

import asyncio
import errno
import itertools
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from distributed_grid.coordinator.core import pipeline
from distributed_grid.coordinator.core.commands import Send
from distributed_grid.coordinator.store.errors import as_sqlite, failure
from distributed_grid.coordinator.store.rows import Snapshot
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.messages import (
    Ack,
    Cancel,
    Done,
    Exited,
    Failed,
    GetStatus,
    Jobs,
    JobUpdate,
    Launch,
    ListJobs,
    ShowJobs,
    SignalJob,
    Status,
    Submit,
    Submitted,
)
from tests.coordinator.ends import ClientEnd, Coordinator, agent, answer_to, client, coordinator, job, node, runs_on

_numbers = itertools.count(9000)


@pytest.fixture
async def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Coordinator]:
    monkeypatch.setattr(pipeline, "AGAIN_SECONDS", 0.02)
    async with coordinator(tmp_path) as made:
        yield made


@pytest.fixture
def full(grid: Coordinator, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Let the disk be full, or working again."""
    ails = False
    commit = grid.store.commit

    def ailing(snapshot: Snapshot) -> None:
        if ails:
            raise failure(Path("grid.db"), as_sqlite(OSError(errno.ENOSPC, "full")))
        commit(snapshot)

    def switch(on: bool) -> None:
        nonlocal ails
        ails = on

    monkeypatch.setattr(grid.store, "commit", ailing)
    return switch


async def seen_in_trouble(ann: ClientEnd, yes: bool = True) -> str:
    async with asyncio.timeout(60):
        for number in _numbers:
            status = await ann.ask(GetStatus(number))
            assert isinstance(status, Status)
            if bool(status.trouble) is yes:
                return status.trouble
            await asyncio.sleep(0.02)
    raise AssertionError("it did not come")


async def refused(ann: ClientEnd, message: Submit | Cancel | SignalJob) -> None:
    answer = await ann.ask(message)
    assert isinstance(answer, Failed) and answer.code == "unavailable", answer
    assert "no new jobs" in answer.what and "no space left for grid.db" in answer.why and answer.hint


async def test_orders_are_refused_questions_answered_and_keys_known_while_the_disk_is_full(
    grid: Coordinator, full: Callable[[bool], None]
) -> None:
    worker, ann = await agent(grid.url, node(cores=2), runs_on), await client(grid.url)
    first, second = job("sleep", key="first"), job("sleep", key="second")
    (running,) = await ann.submit(first)
    await ann.until(lambda seen: isinstance(seen, JobUpdate) and seen.job.state is State.RUNNING)
    await grid.stored()  # that it runs may be told a moment before
    full(True)
    await ann.say(Submit(100, (second,)))  # this one finds out
    assert "no space left" in await seen_in_trouble(ann)
    await refused(ann, Submit(101, (job("true"),)))
    await refused(ann, Submit(102, (first, job("true"))))
    await refused(ann, Cancel(103, (running,)))
    await refused(ann, SignalJob(104, running, 2))
    assert (await ann.ask(Submit(105, (first,)))).jobs == (running,), "its key is on disk"
    await ann.say(Submit(106, (second,)))  # its key is not, and it is no new job either
    assert isinstance(await ann.ask(ListJobs(107)), Jobs)
    await worker.say(Exited(f"{running}.1", Outcome(Cause.EXITED, code=3), returned=True))
    shown = (await ann.ask(ShowJobs(108, (running,)))).jobs[0]
    assert shown.state is State.RUNNING, "what is not on disk is not told"
    assert not any(isinstance(seen, Ack) for seen in worker.seen) and len(worker.launched) == 1
    assert not any(getattr(seen, "id", 0) in (100, 106) for seen in ann.seen)
    full(False)
    ended = await ann.ended(running)
    assert ended.outcome is not None and ended.outcome.code == 3
    answers = [await ann.until(answer_to(number)) for number in (100, 106)]
    assert all(isinstance(answer, Submitted) for answer in answers) and answers[0].jobs == answers[1].jobs
    await worker.until(Ack)
    await worker.until(lambda seen: isinstance(seen, Launch) and seen.job == answers[0].jobs[0])
    await seen_in_trouble(ann, False)
    assert isinstance(await ann.ask(Cancel(109, answers[0].jobs)), Done)
    assert isinstance(await ann.ask(Submit(110, (job("true"),))), Submitted)
    await ann.close()
    await worker.close()


async def test_a_launch_of_what_was_given_up_while_it_waited_is_not_sent(grid: Coordinator) -> None:
    worker, ann = await agent(grid.url, node(cores=2), runs_on), await client(grid.url)
    await ann.submit(job("sleep"))
    launch = await worker.until(Launch)
    late = Launch(allocation="j-gone.1", job="j-gone", user="ann", epoch=1, grant=launch.grant, spec=launch.spec)
    for message in (late, launch):
        grid.server.perform(Send("n1", message))
    await worker.until(lambda seen: len(worker.launched) == 2)
    assert [launch.allocation for launch in worker.launched] == [launch.allocation] * 2
    await ann.close()
    await worker.close()


async def test_a_launch_that_waited_while_its_node_began_another_life_is_not_sent(grid: Coordinator) -> None:
    worker, ann = await agent(grid.url, node(cores=2), runs_on), await client(grid.url)
    await ann.submit(job("sleep"))
    launch = await worker.until(Launch)
    before = grid.ledger.state.allocations[launch.allocation]
    grid.ledger.state.allocations[launch.allocation] = msgspec.structs.replace(before, boot="the one before")
    grid.server.perform(Send("n1", launch))
    grid.ledger.state.allocations[launch.allocation] = before
    grid.server.perform(Send("n1", launch))
    await worker.until(lambda seen: len(worker.launched) == 2)
    await ann.ask(ListJobs(1))
    assert len(worker.launched) == 2
    await ann.close()
    await worker.close()


async def test_a_store_that_cannot_be_read_fails_the_question_and_nothing_else(
    grid: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    ann = await client(grid.url)
    monkeypatch.setattr(grid.store, "find", broken)
    answer = await ann.ask(ShowJobs(1, ("j-abc",)))
    assert isinstance(answer, Failed) and (answer.code, answer.why) == ("unavailable", "disk I/O error")
    monkeypatch.undo()
    assert isinstance(await ann.ask(GetStatus(2)), Status)
    await ann.close()
