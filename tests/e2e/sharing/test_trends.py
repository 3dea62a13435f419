"""What a node measures while no coordinator is there is in the trends when one is back."""

import json
import subprocess
import sys
from typing import Any

from distributed_grid.protocol.history.buckets import SECONDS, number_of
from distributed_grid.runtime.unix import boot_clock
from tests.e2e.scenes import Scene, scene


def told(grid: Scene, *words: str) -> dict[str, Any]:
    """Return the output of a command as JSON."""
    command = [sys.executable, "-m", "distributed_grid.cli.main", "--coordinator", grid.url, "-o", "json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


async def test_buckets_of_a_time_without_coordinator_are_told_by_the_node() -> None:
    async with scene() as grid:
        begun = number_of(boot_clock()) + 1  # else a bucket may end, and be told, before the first question
        await grid.until(lambda: number_of(boot_clock()) >= begun, "a bucket has begun")
        await grid.agent("n1", gpus=1)
        assert told(grid, "trends", "n1")["nodes"][0]["pressure"] is None
        grid.kill("coordinator")
        over = (number_of(boot_clock()) + 2) * SECONDS + 1.0
        await grid.until(lambda: boot_clock() > over, "a whole bucket has passed")
        await grid.coordinator()
        await grid.until(lambda: grid.offers("n1"), "the node is back")
        (node,) = told(grid, "trends", "n1")["nodes"]
        assert node["trends"]["cpu"]["buckets"] >= 1 and node["trends"]["gpu"]["buckets"] >= 1
        assert 0 < node["pressure"]["memory"] <= 1 and node["pressure"]["gpu"] == 0.0
        (ranked,) = told(grid, "top")["nodes"]
        assert ranked["node"] == "n1" and ranked["measured_ago"] < 60
        assert told(grid, "cluster", "summary")["busiest"] == "n1"
