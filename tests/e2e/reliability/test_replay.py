"""What a coordinator of a real grid decided is decided again from its event log: after kill -9, over files and starts,
with another order of hashes."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.client import GridClient
from distributed_grid.coordinator.eventlog.format import BadLog, Header, files, read
from tests.e2e import scenes
from tests.e2e.scenes import scene

PROGRAM = [sys.executable, "-m", "distributed_grid.cli.main", "replay"]
JOB = ["sh", "-c", "sleep 0.2; exit $0"]


def replayed(*words: str, seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Run `grid replay` as a separate process."""
    environment = os.environ | {"PYTHONHASHSEED": seed}
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, timeout=120, env=environment)


def answer(place: Path, seed: str) -> dict[str, Any]:
    done = replayed(str(place), "-o", "json", seed=seed)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


async def some_life(client: GridClient) -> list[str]:
    """Twenty jobs, half of which have ended, and one that was cancelled while it waited for all cores."""
    jobs = [await client.submit([*JOB, str(number % 3)], env={"PAD": "x" * 500}) for number in range(20)]
    waiting = await client.submit(["true"], cpus=8)
    for job in jobs[:10]:
        await client.wait(job)
    await client.cancel(waiting)
    return jobs


async def test_a_life_with_kills_is_decided_the_same_again() -> None:
    async with scene(coordinator={"event_log_size": 200_000}) as grid:
        events = grid.place / "coordinator" / "events"
        await grid.agent("n1", cores=list(range(8)), virtual=True)
        async with GridClient(grid.url) as client:
            jobs = await some_life(client)
            grid.kill("coordinator")
            await grid.coordinator()
            for job in jobs:
                await client.wait(job)
            grid.kill("n1")
            jobs = [await client.submit(["true"]) for _ in range(3)]
            await grid.start_agent("n1")
            for job in [*jobs, *await some_life(client)]:
                await client.wait(job)
            while turned_over(events) < 2:
                await client.run([*JOB, "0"], env={"PAD": "x" * 5000})
        grid.kill("coordinator")
        one, other = answer(events.parent, "1"), answer(events.parent, "2")
        assert one == other
        assert one["same"] and one["files"] == len(files(events)) >= 4 and one["decisions"] > 100
        asked = replayed(str(events), "--set", "lost_after=60", "--set", "weight.fit=0.4")
        assert asked.returncode == 0 and asked.stdout.rstrip().endswith("all the same"), asked.stdout
        told = replayed(str(events), "--job", jobs[-1])
        assert f"start {jobs[-1]}.1 on n1 with cores" in told.stdout and f"{jobs[-1]} has ended: exited" in told.stdout


def turned_over(events: Path) -> int:
    """Return how many files follow another one."""
    found = 0
    for path in files(events):
        with suppress(OSError, BadLog):  # it was deleted meanwhile, or is just being begun
            header = next(read(path))
            found += isinstance(header, Header) and header.follows
    return found


BROKEN = """
from distributed_grid.coordinator.core.queue import scheduler as serving
right = serving.match
def match(state):
    if any(job.spec.name == "poison" for job in state.jobs.values()):
        raise AssertionError("poison in the ledger")
    right(state)
serving.match = match
"""


async def test_a_coordinator_whose_ledger_broke_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "BEFORE", BROKEN)
    async with scene() as grid:
        state = grid.place / "coordinator"
        async with GridClient(grid.url, patience=5) as client:
            await client.submit(["true"], name="healthy")
            submitting = asyncio.create_task(client.submit(["true"], name="poison"))
            await grid.until(lambda: grid.parts["coordinator"].poll() is not None, "the coordinator has ended")
            submitting.cancel()
        log = (grid.place / "coordinator.log").read_text()
        assert f"grid replay {files(state / 'events')[0]}" in log and f"grid replay {state}" in log
        code = f"import sys; {BROKEN}\nfrom distributed_grid.cli.main import main\nmain(['replay', sys.argv[1]])"
        again = subprocess.run([sys.executable, "-c", code, str(state)], capture_output=True, text=True, timeout=60)
        assert again.returncode == 1 and "does so again: AssertionError: poison in the ledger" in again.stdout
        mended = replayed(str(state))
        assert mended.returncode == 0 and "does not any more: AssertionError: poison in the ledger" in mended.stdout
