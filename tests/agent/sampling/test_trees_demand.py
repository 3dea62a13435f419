"""What a job wants: the CPU time that its processes use, and what their threads wait for on a core that others have."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from distributed_grid.agent.sampling import trees
from distributed_grid.agent.sampling.trees import Demand

BUSY = "while True: pass"


@pytest.fixture
def busy() -> Iterator[list[int]]:
    """Two processes that want a core each, both on the same one."""
    core = min(os.sched_getaffinity(0))
    made = [subprocess.Popen([sys.executable, "-c", BUSY], preexec_fn=lambda: os.sched_setaffinity(0, {core}))
            for _ in range(2)]  # fmt: skip
    yield [one.pid for one in made]
    for one in made:
        one.kill()
        one.wait()


def rate(demand: Demand, pid: int, seconds: float) -> float:
    """What it wants, in cores, over some time."""
    first, begun = demand.seconds(pid), time.monotonic()
    time.sleep(seconds)
    last = demand.seconds(pid)
    assert first is not None and last is not None
    return (last - first) / (time.monotonic() - begun)


def test_who_shares_a_core_wants_all_of_it(busy: list[int]) -> None:
    demand = Demand()
    demand.seconds(busy[0])
    assert 0.85 <= rate(demand, busy[0], 1.0) <= 1.1, "though it gets half"


def test_what_runs_below_it_counts_and_who_sleeps_wants_nothing() -> None:
    program = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {BUSY!r}]); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], process_group=0) as parent:
        try:
            demand, deadline = Demand(), time.monotonic() + 20
            while rate(demand, parent.pid, 0.3) < 0.5:
                assert time.monotonic() < deadline, "its child runs"
            assert rate(demand, parent.pid, 1.0) <= 1.2
        finally:
            os.killpg(parent.pid, 9)
    assert Demand().seconds(parent.pid) == 0.0, "it is gone"


def test_a_daemon_that_was_below_it_once_counts_when_it_has_another_parent() -> None:
    program = f"import os, sys\nif os.fork(): sys.stdin.read(); os._exit(0)\nprint(os.getpid(), flush=True)\n{BUSY}"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        daemon, demand = int(parent.stdout.readline()), Demand()
        try:
            demand.seconds(parent.pid)
            parent.stdin.close()
            parent.wait()
            assert rate(demand, parent.pid, 1.0) >= 0.7
        finally:
            os.kill(daemon, 9)


def test_a_job_of_too_many_threads_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    demand = Demand()
    assert demand.seconds(os.getpid()) is not None
    monkeypatch.setattr(trees, "MOST_THREADS", 0)
    assert demand.seconds(os.getpid()) is None


def test_a_process_that_is_gone_wants_nothing() -> None:
    demand = Demand()
    assert (demand.seconds(0), demand.seconds(1 << 22)) == (0.0, 0.0)
