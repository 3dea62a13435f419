"""An urgent job on a full grid, with real processes: how soon it starts, and what becomes of who gave way."""

import json
import subprocess
import time
from functools import partial
from typing import Any

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.jobs import Cause, State
from tests.e2e.scenes import Scene, scene

NOTICE, GRACE = 0.5, 1.0
RULES = {"min_hold": 0.0, "min_hold_most": 0.0, "notice": NOTICE, "grace_most": 10.0, "hold": 10.0}
STUBBORN = "trap '' TERM; sleep 600 & while :; do wait; done"


def grid(on: Scene, *words: str) -> "subprocess.CompletedProcess[str]":
    return on.command(*words)


def receipts(on: Scene, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(grid(on, "-o", "json", "receipts", *words).stdout)["receipts"]
    return found


def foreseen(on: Scene) -> dict[str, Any]:
    """Return what a dry run reports of an urgent request, the same to people and to programs."""
    done = grid(on, "-o", "json", "run-shared", "--dry-run", "--priority", "critical", "true")
    would: dict[str, Any] = json.loads(done.stdout)["preempts"]
    said = grid(on, "run-shared", "--dry-run", "--priority", "critical", "true")
    assert done.returncode == said.returncode == 75, "it would not start now"
    (row,) = [line.split() for line in said.stdout.splitlines() if line.startswith(would["victims"][0]["job"])]
    assert row[1:4] == [would["victims"][0]["user"], "low", "n1"] and row[-1] == "core-seconds"
    return would


async def is_in(client: GridClient, job: str, state: State) -> bool:
    return (await client.show(job)).state is state


async def test_an_urgent_job_starts_within_notice_and_grace_and_who_gave_way_finishes_later() -> None:
    async with scene(preemption=RULES) as on:
        await on.agent("n1", cores=[0, 1], virtual=True)
        async with GridClient(on.url) as client:
            kind = 'if [ "${GRID_ALLOCATION_ID##*.}" = 2 ]; then echo finished; else exec sleep 600; fi'
            old = await client.submit(["sh", "-c", STUBBORN], priority="medium", grace=GRACE)
            await on.until(lambda: is_in(client, old, State.RUNNING), "the stubborn one runs")
            victim = await client.submit(["sh", "-c", kind], priority="low", grace=GRACE)
            await on.until(lambda: is_in(client, victim, State.RUNNING), "the victim runs")
            would = foreseen(on)
            assert (would["node"], [one["job"] for one in would["victims"]]) == ("n1", [victim])
            assert would["within_seconds"] == NOTICE + GRACE and would["lost_core_seconds"] > 0
            began = time.monotonic()
            lasts = f"until [ -e {on.place}/seen ]; do sleep 0.05; done"
            urgent = await client.submit(["sh", "-c", lasts], priority="urgent")
            await on.until(lambda: is_in(client, urgent, State.RUNNING), "the urgent one runs")
            assert time.monotonic() - began < NOTICE + GRACE + 10.0, "for ever, if nobody had to give way"
            waiting = await client.show(victim)
            assert (waiting.state, waiting.evicted, waiting.attempt) == (State.WAITING, 1, 1)
            assert waiting.reason is not None and f"{urgent} (urgent" in waiting.reason.text
            (on.place / "seen").touch()
            result = await client.result(victim)
            assert (result.exit_code, result.stdout) == (0, "finished\n")
            assert (await client.show(old)).evicted == 0
            (told,) = await client.receipts(urgent)
            assert (told.result, [one.job for one in told.victims]) == ("started", [victim])
            assert told == (await client.receipts(victim))[0]
        on.kill("coordinator")
        await on.coordinator()
        (kept,) = receipts(on, "--node", "n1")
        assert kept["id"] == told.id and kept["seconds_until_start"] == told.waited
        refused = grid(on, "receipts", "--node", "elsewhere")
        assert refused.returncode == 2 and "unknown node 'elsewhere'" in refused.stderr and "n1" in refused.stderr


async def test_one_that_does_not_heed_its_notice_is_killed_and_a_restart_meanwhile_loses_no_plan() -> None:
    async with scene(preemption=RULES) as on:
        await on.agent("n1", cores=[0], virtual=True)
        async with GridClient(on.url) as client:
            victim = await client.submit(["sh", "-c", STUBBORN], priority="low", grace=6.0, requeue=False)
            await on.until(lambda: is_in(client, victim, State.RUNNING), "the victim runs")
            urgent = await client.submit(["true"], priority="urgent")
            await on.until(lambda: is_in(client, victim, State.STOPPING), "the victim is told")
        on.kill("coordinator")
        await on.coordinator()
        async with GridClient(on.url) as client:
            assert (await client.result(urgent)).exit_code == 0
            over = await client.show(victim)
            assert over.outcome is not None and (over.outcome.cause, over.outcome.signal) == (Cause.PREEMPTED, 9)
            (told,) = await client.receipts()
            assert (told.job, told.result) == (urgent, "started")


async def test_others_give_way_to_an_urgent_gang_on_all_its_nodes_and_finish_after_it() -> None:
    async with scene(preemption=RULES) as on:
        for name in ("n1", "n2"):
            await on.agent(name, cores=[0], virtual=True)
        async with GridClient(on.url) as client:
            kind = 'if [ "${GRID_ALLOCATION_ID##*.}" = 2 ]; then echo finished; else exec sleep 600; fi'
            low = [await client.submit(["sh", "-c", kind], priority="low", grace=GRACE) for _ in range(2)]
            for victim in low:
                await on.until(partial(is_in, client, victim, State.RUNNING), "the low ones run")
            words = ("run-shared", "--dry-run", "--nodes", "2", "--priority", "urgent", "true")
            would = json.loads(grid(on, "-o", "json", *words).stdout)["preempts"]
            assert {one["job"] for one in would["victims"]} == set(low)
            assert {one["node"] for one in would["victims"]} == {"n1", "n2"}
            assert "it would start on n1, n2 once 2 jobs have given way" in grid(on, *words).stdout
            gang = await client.submit(["sh", "-c", "echo $GRID_NODE_RANK of $GRID_NODES"], priority="urgent", nodes=2)
            results = [await client.result(f"{gang}_{rank}") for rank in (0, 1)]
            assert [one.stdout for one in results] == ["0 of n1,n2\n", "1 of n1,n2\n"]
            assert [(await client.result(victim)).stdout for victim in low] == ["finished\n", "finished\n"]
            (told,) = await client.receipts()
            assert (told.job, told.result, len(told.more)) == (f"{gang}_0", "started", 1)
        (row,) = [line for line in grid(on, "receipts").stdout.splitlines() if line.startswith(told.id)]
        assert "n1,n2" in row
        assert (
            [one["id"] for one in receipts(on, "--node", "n1")]
            == [told.id]
            == [one["id"] for one in receipts(on, "--node", "n2")]
        )
