"""Jobs give way to others' programs, whichever way the kernel shares its time out."""

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from distributed_grid.agent.supervisor import procs
from distributed_grid.protocol.resources import Grant
from tests.agent.conftest import Bench

BURN = (sys.executable, "-S", "-c", "while True: pass")
CORE = max(os.sched_getaffinity(0))


@pytest.fixture
def owners_program() -> Iterator[psutil.Process]:
    """Busy on one core, as his programs are."""
    process = subprocess.Popen(BURN)
    os.sched_setaffinity(process.pid, {CORE})
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@pytest.mark.alone
async def test_beside_a_job_on_the_same_core_the_owners_program_gets_nearly_all_of_it(
    make_bench: Callable[..., Awaitable[Bench]], owners_program: psutil.Process
) -> None:
    bench = await make_bench(nice=15)
    job = psutil.Process(await bench.started(bench.launch(*BURN, grant=Grant(cores=(CORE,)))))
    await bench.until(lambda: job.nice() == 15)
    before, job_before = spent(owners_program), spent(job)
    await bench.until(lambda: spent(owners_program) - before > 1.0)
    assert spent(job) - job_before < 0.5, "15 steps of niceness are a weight of 36 against 1024"


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel shares nothing out by sessions")
async def test_the_niceness_of_its_session_is_set_as_well(make_bench: Callable[..., Awaitable[Bench]]) -> None:
    bench = await make_bench(nice=15)
    pid = await bench.started(bench.launch("sh", "-c", "sleep 60 & wait"))
    await bench.until(lambda: Path(f"/proc/{pid}/autogroup").read_text().endswith("nice 15\n"))
    await bench.until(lambda: [child.nice() for child in psutil.Process(pid).children()] == [15])


async def test_without_it_a_job_is_as_good_as_anybody(bench: Bench) -> None:
    pid = await bench.started(bench.launch("sleep", "60"))
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, bench.launcher.supervisor_pid)
    assert procs.stat(pid) is not None
