"""Limits that bite, as a user sees them: through a real coordinator and a real agent."""

import asyncio
import signal
import subprocess
import sys

import msgspec
import pytest

from distributed_grid.coordinator.client import GridClient, RequestRefused, describe_job
from distributed_grid.protocol.jobs import JobLimits
from distributed_grid.protocol.resources import MIB
from tests.e2e.scenes import Scene, scene

HOLDS = """
import os, time
x = bytearray(150 << 20)
print("full", flush=True)
if os.environ["GRID_ALLOCATION_ID"].endswith(".1"):
    time.sleep(600)
"""
"""Holds more than its limit until that is noticed; as a second attempt it is done at once."""
CATCHES = "trap 'echo saved; exit 3' USR1; echo ready; while :; do sleep 0.05; done"


async def shared(on: Scene, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "distributed_grid.cli.main", "--coordinator", on.url, "run-shared", "--no-ship"]
    run = subprocess.run
    return await asyncio.to_thread(run, [*command, *words], capture_output=True, text=True, timeout=60, cwd=on.place)


async def test_a_job_that_goes_over_a_limit_ends_by_it_and_its_owner_is_told_which_it_was() -> None:
    async with scene() as on:
        await on.agent("n1", cores=[0, 1], virtual=True)
        greedy = [sys.executable, "-c", HOLDS]
        once = await shared(on, "--mem", "100M", *greedy)
        assert once.returncode == 137
        assert "ran out of memory: used more memory than its limit of 100M (peak" in once.stderr
        again = await shared(on, "--mem", "100M", "--retry-memory", "2x", *greedy)
        assert (again.returncode, again.stdout[-5:]) == (0, "full\n"), again.stderr
        async with GridClient(on.url) as client:
            view = await client.show("last")
            assert (view.retried, view.request.resources.memory) == (1, 200 * MIB)
            assert any("with 200M of memory (1 of 1)" in step.text for step in view.story)
            with pytest.raises(RequestRefused, match="more memory than what"):
                await client.submit(["true"], retry_memory=2)

            warned = await client.run(["sh", "-c", CATCHES], time_limit=600, warn_signal="USR1@595")
            assert (warned.stdout, warned.exit_code) == ("ready\nsaved\n", 3)
            odd = describe_job(["true"], time_limit=30)
            limits = JobLimits(warn_signal=signal.SIGKILL, warn_before=1.0)
            odd = msgspec.structs.replace(odd, spec=msgspec.structs.replace(odd.spec, limits=limits))
            with pytest.raises(RequestRefused, match="signal 9 cannot be a warning"):
                await client.submit_many([odd])
