"""A boost from a source whose owner's programs are busy on all cores, in a real Ray cluster."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.grid_fixture import until
from tests.ray.scene import CORES, Cluster, a_cluster, of_allocation

pytestmark = [pytest.mark.long_ray, pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]

BURN = "import os, time\nend = time.monotonic() + 180\nwhile time.monotonic() < end and os.getppid() != 1: pass"


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """So many programs of the owner's, on the cores that the source lends; none outlives three minutes."""
    began = [subprocess.Popen([sys.executable, "-S", "-c", BURN]) for _ in range(programs)]
    try:
        for one in began:
            os.sched_setaffinity(one.pid, set(CORES))
        yield
    finally:
        for one in began:
            one.kill()
            one.wait()


def niceness(allocation: str) -> set[int]:
    """That of the raylet's own processes; Ray gives its workers more."""
    found = set()
    for pid, words in of_allocation(allocation).items():
        if "ray::" in words or "default_worker" in words:
            continue
        with suppress(FileNotFoundError):  # it has ended since, or a thread of it
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(ProcessLookupError):
                    found.add(os.getpriority(os.PRIO_PROCESS, int(thread)))
    return found


def test_it_joins_beside_busy_programs_and_gives_way_then(tmp_path: Path) -> None:
    with a_cluster(tmp_path, nice=15) as cluster:
        with busy(4):  # twice the cores
            boost = cluster.boost("cpu", "1", "--duration", "30m")
            shown = cluster.master.job(boost)
            until(lambda: niceness(shown["allocation"]) == {15}, "it has given way", 60.0)
            assert [one["id"] for one in cluster.lent() or []] == [boost]
        joined = next(step["at"] for step in shown["events"] if "in Ray as node" in step["text"])
        assert shown["started"] == joined, "its duration counts from then"
        cluster.release(boost)


def test_it_joins_also_where_its_raylet_takes_longer_than_rays_own_30_seconds(cluster: Cluster) -> None:
    asked = cluster.master.begin("boost", "request", "gpu-master", "cpu", "1")
    boost = until(lambda: (found := cluster.lent()) and found[0]["allocation"] and found[0]["id"], "it is granted")
    allocation = cluster.master.job(boost)["allocation"]

    def raylet() -> int:
        return next((pid for pid, words in of_allocation(allocation).items() if "raylet/raylet" in words), 0)

    pid = until(raylet, "its raylet has begun")
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        until(lambda: time.monotonic() > began + 36.0, "it is late")
    finally:
        os.kill(pid, signal.SIGCONT)
    asked.communicate(timeout=60.0)
    assert asked.returncode == 0 and cluster.master.job(boost)["allocation"] == allocation
    cluster.release(boost)
