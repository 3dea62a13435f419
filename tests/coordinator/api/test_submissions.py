"""A submission is made once, and one that cannot be is refused."""

import asyncio
import itertools
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.api import submissions
from distributed_grid.protocol.bundle import Entry, Manifest, blob_hash, encode_manifest
from distributed_grid.protocol.messages import (
    Done,
    Failed,
    ListJobs,
    PutBlob,
    Submit,
)
from distributed_grid.protocol.resources import LATEST
from tests.coordinator.ends import (
    agent,
    client,
    coordinator,
    job,
    node,
)


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


@pytest.mark.parametrize("ahead", [7200.0, -7200.0, 0.0])
async def test_a_time_of_day_is_one_of_the_wall_clock_whatever_grid_time_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    moment = time.time
    monkeypatch.setattr(submissions, "time", SimpleNamespace(time=lambda: moment() - ahead))
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        at = moment() - ahead + 3600.0
        (name,) = await ann.submit(replace(job("true"), begin=at))
        left = grid.ledger.state.jobs[name].begin - grid.clock()
        assert 3500.0 < left < 3601.0
        (late,) = await ann.submit(replace(job("true"), begin=LATEST))
        assert grid.ledger.state.jobs[late].begin <= LATEST
        await ann.close()


async def test_others_have_their_turn_between_the_manifests_of_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = itertools.count(0.0, 0.01)  # each manifest takes a hundredth of a second
    monkeypatch.setattr(submissions, "time", SimpleNamespace(thread_time=lambda: next(moments)))
    turns, seen = itertools.count(), []

    async def others() -> None:
        while True:
            others_had = next(turns)
            await asyncio.sleep(0)
            seen.append(others_had)

    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        files = [bytes([number]) for number in range(4)]
        manifests = [encode_manifest(Manifest((Entry("x", size=1, blob=blob_hash(one)),))) for one in files]
        for number, content in enumerate((*files, *manifests), 100):
            assert isinstance(await ann.ask(PutBlob(number, blob_hash(content), 0, content, end=True)), Done)
        counted: list[int] = []
        submits = grid.blobs.quota.submits

        async def counting(user: str, bundle: str) -> None:
            counted.append(len(seen))
            await submits(user, bundle)

        monkeypatch.setattr(grid.blobs.quota, "submits", counting)
        busy = asyncio.create_task(others())
        jobs = [job("true", key=f"k{number}", bundle=blob_hash(one)) for number, one in enumerate(manifests)]
        assert len(await ann.submit(*jobs, watch=False)) == 4
        busy.cancel()
        assert len(counted) == 4 and all(later > before for before, later in itertools.pairwise(counted))
        await ann.close()


async def test_jobs_of_one_call_start_in_its_order_also_after_a_restart(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        names = await ann.submit(*(job("true", key=f"k{number}") for number in range(30)), watch=False)
    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url, node(cores=1))
        await worker.until(lambda seen: getattr(seen, "allocations", ()) == (f"{names[-1]}.1",))
        assert [launch.job for launch in worker.launched] == list(names)


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
        (job("x" * (2 << 20)), "the command and its environment have 2097152 bytes"),
        (job("a", "b", "x" * (128 << 10)), "argument 2 of the command has 131072 bytes"),
        (job("a", env={"LONG": "\xe4" * (64 << 10)}), "the variable LONG of the command has 131077 bytes"),
        (job("a", *["x"] * 200_000), "200001 arguments and 0 variables, 2000010 bytes for the kernel"),
        (job("hold", hold=True), "a hold needs a time"),
        (job("hold", hold=True, time_limit=60.0, stdin=True), "in which nothing runs by itself"),
    ],
)
async def test_a_submission_that_cannot_be_is_refused_in_words(tmp_path: Path, bad: Any, says: str) -> None:
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        answer = await ann.ask(Submit(1, (job("fine"), bad)))
        assert isinstance(answer, Failed) and says in answer.what
        assert (await ann.ask(ListJobs(2))).jobs == ()  # all or none
        await ann.close()


def test_the_longest_command_that_is_taken_can_be_started_and_a_longer_one_cannot() -> None:
    def start(*words: str, **env: str) -> int:
        submissions.check(job("true", *words, env=env))
        return subprocess.run(["/bin/true", *words], env=env).returncode

    most = submissions.STRING_BYTES
    assert start("x" * most, LONG="x" * (most - len("LONG="))) == 0
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["/bin/true", "x" * (most + 1)])
    count = submissions.KERNEL_BYTES // (1 + submissions.EACH) - 2
    assert start(*["x"] * count) == 0
