"""A job reads its standard input from a pipe, whose end it sees when all is in it, and not when one of our processes
dies."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.agent.data.inputs import Inputs
from distributed_grid.agent.launch import workdir
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.walls import pipes
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import InputTaken, PutInput, Stop
from tests.agent.conftest import Bench, runs
from tests.agent.scene import open_gate


class Sender:
    """The agent's end of the inputs of a bench."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.stops: list[Stop] = []
        self.begin()

    def begin(self) -> None:
        """An agent begins, and knows of nothing."""
        self.inputs = Inputs(self.bench.dir, self.stops.append, lambda key: self.bench.launcher.end_input(key))

    def launch(self, *argv: str) -> str:
        job = self.bench.launch(*argv, stdin=True)
        self.inputs.expect(job)
        return job

    async def put(self, job: str, offset: int, data: bytes = b"", end: bool = False) -> InputTaken:
        return await self.inputs.put(PutInput(1, job, offset, data, end=end, wait=60.0))


@pytest.fixture
async def sender(bench: Bench) -> AsyncIterator[Sender]:
    made = Sender(bench)
    yield made
    made.inputs.close()


def pipe(bench: Bench, job: str) -> Path:
    return workdir.folder(bench.dir, job) / "stdin"


async def test_a_job_reads_what_is_sent_and_its_end(bench: Bench, sender: Sender) -> None:
    job = sender.launch("sh", "-c", "test -p /dev/stdin && cat")
    await bench.started(job)
    await sender.put(job, 0, b"one\n")
    assert await bench.wrote(job) == ["one"]
    await sender.put(job, 4, b"two\n")
    assert (await sender.put(job, 8, end=True)).over
    assert (await bench.ended(job)).code == 0
    assert bench.read(job) == b"one\ntwo\n"
    assert not pipe(bench, job).exists()


async def test_a_job_that_asks_for_no_input_gets_an_empty_one(bench: Bench) -> None:
    job = bench.launch("wc", "-c")
    assert (await bench.ended(job)).code == 0
    assert bench.read(job).split() == [b"0"]
    assert not pipe(bench, job).exists()


async def test_a_job_that_ends_without_reading_leaves_no_pipe(bench: Bench, sender: Sender) -> None:
    for command, cause in (("true", Cause.EXITED), ("no-such-program-here", Cause.NOT_FOUND)):
        job = sender.launch(command)
        assert (await bench.ended(job)).cause is cause
        assert not pipe(bench, job).exists()


@pytest.mark.parametrize("killed", [False, True])
async def test_a_job_that_opens_it_by_its_name_after_its_end_reads_all_of_it_too(
    bench: Bench, sender: Sender, tmp_path: Path, killed: bool
) -> None:
    """As `cat /dev/stdin` does: who opens a FIFO waits until somebody opens it for writing."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    job = sender.launch("sh", "-c", f"read -r _ < {gate}; exec cat /dev/stdin")
    await bench.started(job)
    await sender.put(job, 0, b"all\n")
    assert (await sender.put(job, 4, end=True)).over
    await bench.until(lambda: not pipe(bench, job).exists())
    if killed:
        await bench.kill_supervisor()
    await open_gate(gate)
    assert (await bench.ended(job)).code == 0
    assert bench.read(job) == b"all\n"


def test_who_finds_a_pipe_by_its_name_finds_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = tmp_path / "stdin", os.open

    def opened_at_once(*how: Any) -> int:
        with suppress(FileNotFoundError):
            os.close(opened(path, os.O_WRONLY | os.O_NONBLOCK))
        return opened(*how)

    monkeypatch.setattr(os, "open", opened_at_once)
    ends = pipes.make(str(path), shared=False)
    monkeypatch.undo()
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    for end in ends:
        os.close(end)
    assert os.listdir(tmp_path) == ["stdin"]


async def test_input_goes_on_after_the_supervisor_was_killed(bench: Bench, sender: Sender) -> None:
    job = sender.launch("cat")
    await bench.started(job)
    await sender.put(job, 0, b"before\n")
    assert await bench.wrote(job) == ["before"]
    await bench.kill_supervisor()
    await sender.put(job, 7, b"after\n")
    assert await bench.wrote(job, 2) == ["before", "after"]
    assert (await sender.put(job, 13, end=True)).over
    outcome = await bench.ended(job)
    assert (outcome.cause, outcome.code) == (Cause.EXITED, 0)


async def test_an_end_that_a_killed_supervisor_did_not_hear_is_told_to_the_next(bench: Bench, sender: Sender) -> None:
    job = sender.launch("cat")
    await bench.started(job)
    os.kill(bench.launcher.supervisor_pid, signal.SIGSTOP)
    await sender.put(job, 0, b"all\n")
    assert (await sender.put(job, 4, end=True)).over
    await asyncio.sleep(0)
    await bench.kill_supervisor()
    assert (await bench.ended(job)).code == 0
    assert bench.read(job) == b"all\n"


async def test_a_job_sees_no_end_while_supervisor_and_agent_are_both_dead(bench: Bench, sender: Sender) -> None:
    job = sender.launch("cat")
    pid = await bench.started(job)
    await sender.put(job, 0, b"half\n")
    assert await bench.wrote(job) == ["half"]
    sender.inputs.close()
    await bench.launcher.close()
    os.kill(bench.launcher.supervisor_pid, signal.SIGKILL)
    await bench.until(lambda: not runs(bench.launcher.supervisor_pid))
    await bench.until(lambda: (seen := procs.stat(pid)) is not None and seen.state == "S")  # it waits for more
    await bench.restart()
    sender.begin()
    sender.inputs.resume(job)
    await sender.put(job, 5, b"whole\n")
    assert (await sender.put(job, 11, end=True)).over
    assert (await bench.ended(job)).code == 0
    assert bench.read(job) == b"half\nwhole\n"


async def test_a_job_whose_spawner_is_killed_sees_no_end_either(bench: Bench, sender: Sender) -> None:
    job = sender.launch("cat")
    pid = await bench.started(job)
    await sender.put(job, 0, b"half\n")
    assert await bench.wrote(job) == ["half"]
    spawner = procs.stat(pid)
    assert spawner is not None
    sender.inputs.close()  # the agent is away: the supervisor alone holds the pipe open
    os.kill(spawner.parent, signal.SIGKILL)
    await bench.until(lambda: (seen := procs.stat(pid)) is not None and seen.parent != spawner.parent)
    sender.begin()
    sender.inputs.resume(job)
    await sender.put(job, 5, b"whole\n")
    assert (await sender.put(job, 11, end=True)).over
    assert (await bench.ended(job)).code == 0
    assert bench.read(job) == b"half\nwhole\n"
