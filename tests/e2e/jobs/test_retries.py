"""A job is run again only where its owner said so, and only when nothing of the attempt before can run any more."""

import asyncio
import signal
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from distributed_grid.coordinator.client import GridClient, RequestRefused, describe_job
from distributed_grid.protocol.jobs import Cause, State
from tests.e2e.scenes import Scene, scene

# The first attempt says when it lives, as long as it does; any other one says so once and is done.
LIVES = """
while :; do
    read up _ < /proc/uptime
    echo "$GRID_ALLOCATION_ID $GRID_NODE $up" >> {told}
    case $GRID_ALLOCATION_ID in *.1) sleep 0.05;; *) exit 0;; esac
done
"""


def lives(told: Path) -> dict[str, list[float]]:
    """Return when each allocation was seen alive, in seconds since boot."""
    seen = defaultdict(list)
    for line in told.read_text().splitlines() if told.exists() else ():
        allocation, _, up = line.split()
        seen[allocation].append(float(up))
    return dict(seen)


def grid(on: Scene, *words: str) -> "subprocess.CompletedProcess[str]":
    return on.command(*words)


async def test_a_job_on_a_node_that_is_lost_runs_again_after_it_has_ended_there_and_only_if_it_may() -> None:
    async with scene(coordinator={"lost_after": 2.0}) as on:
        await on.agent("n1", cores=[0, 1], virtual=True)
        await on.agent("n2", cores=[0, 1], virtual=True)
        again, never = on.place / "again", on.place / "never"
        async with GridClient(on.url) as client:
            retried, plain = await client.submit_many(
                [
                    describe_job(["sh", "-c", LIVES.format(told=again)], nodes=["n1"], retry_on=["lost"], retries=2),
                    describe_job(["sh", "-c", LIVES.format(told=never)], nodes=["n1"]),
                ]
            )
            await on.until(lambda: lives(again) and lives(never), "both run")
            on.kill("n1")  # the supervisor lives and has nobody to hear from
            view = await client.wait(retried)
            ended = await client.wait(plain)
        assert view.outcome is not None and view.outcome.cause is Cause.EXITED and view.outcome.code == 0
        assert (view.node, view.retried, view.allocation) == ("n2", 1, f"{retried}.2")
        assert any("lease has run out" in step.text for step in view.story)
        first, second = lives(again)[f"{retried}.1"], lives(again)[f"{retried}.2"]
        assert max(first) < min(second), "two attempts were alive at the same time"
        assert ended.outcome is not None and ended.outcome.cause is Cause.NODE_LOST and ended.retried == 0
        ran = len(lives(never)[f"{plain}.1"])
        await on.until(lambda: len(lives(never)[f"{plain}.1"]) > ran, "what is not leased runs on")
        assert [*lives(never)] == [f"{plain}.1"]


async def test_a_cut_that_heals_in_time_costs_a_leased_job_nothing() -> None:
    async with scene(coordinator={"lost_after": 30.0}) as on:
        await on.agent("n1", cores=[0], virtual=True)
        told = on.place / "told"
        async with GridClient(on.url) as client:
            job = await client.submit(["sh", "-c", LIVES.format(told=told)], retry_on=["lost"], retries=1)
            await on.until(lambda: lives(told), "it runs")
            on.kill("coordinator")
            await on.coordinator()
            on.kill("n1")
            await on.start_agent("n1")
            ran = len(lives(told)[f"{job}.1"])
            await on.until(lambda: len(lives(told)[f"{job}.1"]) > ran, "it goes on")
            view = await client.show(job)
            assert (view.state, view.retried, view.allocation) == (State.RUNNING, 0, f"{job}.1")
            await client.cancel(job)
            view = await client.wait(job)
        assert view.outcome is not None and view.outcome.cause is Cause.CANCELLED and view.retried == 0


async def test_a_failing_job_runs_as_often_as_its_owner_allows_and_all_it_writes_is_seen() -> None:
    async with scene() as on:
        await on.agent("n1", cores=[0], virtual=True)
        script = f"echo run $GRID_ALLOCATION_ID; echo x >> {on.place}/runs; exit 3"
        done = await asyncio.to_thread(
            grid, on, "run-shared", "--no-ship", "--retry-on", "failed,oom", "--retries", "2", "sh", "-c", script
        )
        runs = done.stdout.splitlines()
        assert done.returncode == 3, done.stderr
        assert [line.rpartition(".")[2] for line in runs] == ["1", "2", "3"]
        assert "exited with code 3; to be run again (1 of 2)" in done.stderr and "(2 of 2)" in done.stderr
        assert (on.place / "runs").read_text() == "x\nx\nx\n"
        async with GridClient(on.url) as client:
            wait = f"until [ -e {on.place}/seen ]; do sleep 0.05; done"
            script = f"echo $GRID_ALLOCATION_ID; {wait}; kill -9 $$"
            job = await client.submit(["sh", "-c", script], retry_on=["failed"])
            pieces = []
            async for _, data in client.stream(job):
                pieces.append(data)
                (on.place / "seen").touch()
            view = await client.wait(job)
            assert b"".join(pieces).decode().split() == [f"{job}.1", f"{job}.2"]
            assert view.outcome is not None and view.outcome.signal == signal.SIGKILL
            fine = await client.submit(["true"], retry_on=["failed", "lost"], retries=5)
            assert (await client.wait(fine)).retried == 0
            lost_only = await client.submit(["false"], retry_on=["lost"], retries=5)
            assert (await client.wait(lost_only)).retried == 0


async def test_a_retry_that_is_asked_for_wrongly_is_refused_in_words() -> None:
    async with scene() as on:
        for words, said in (
            (["--retry-on", "faild"], "did you mean failed?"),
            (["--retries", "2"], "--retry-on"),
            (["--retry-on", "lost", "--retries", "0"], "1 to 100"),
            (["--retry-on", "lost", "--retries", "101"], "1 to 100"),
        ):
            done = await asyncio.to_thread(grid, on, "run-shared", *words, "true")
            assert done.returncode in (2, 125) and said in done.stderr and "Traceback" not in done.stderr, done.stderr


async def test_a_key_stands_for_one_job_for_ever_whoever_says_it_when() -> None:
    async with scene() as on:
        await on.agent("n1", cores=[0], virtual=True)
        runs = on.place / "runs"
        one = describe_job(["sh", "-c", f"echo x >> {runs}"], key="mine")
        async with GridClient(on.url) as client:
            first = await client.submit_many([one])
            assert await client.submit_many([one, one]) == first * 2
            await client.wait(first[0])
            on.kill("coordinator")
            await on.coordinator()
            assert await client.submit_many([one]) == first
            with pytest.raises(RequestRefused, match="used for another command"):
                await client.submit_many([describe_job(["true"], key="mine")])
            last = await client.submit(["true"])
            await client.wait(last)
        assert runs.read_text() == "x\n"
