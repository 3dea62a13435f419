"""Jobs give way to others' programs, whichever way the kernel shares its time out."""

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from distributed_grid.agent.supervisor import procs
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.resources import Grant, ResourceType
from tests.agent.conftest import Bench

BURN = (sys.executable, "-S", "-c", "while True: pass")
CORE = max(os.sched_getaffinity(0))


@contextmanager
def owners_program() -> Iterator[psutil.Process]:
    """Busy on one core, as his programs are."""
    process = subprocess.Popen(BURN)
    os.sched_setaffinity(process.pid, {CORE})
    try:
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def test_beside_a_job_on_the_same_core_the_owners_program_gets_nearly_all_of_it(
    make_bench: Callable[..., Awaitable[Bench]],
) -> None:
    bench = await make_bench(nice=15)
    # It begins first: a kernel may leave one that gives way so far waiting for a minute beside busy programs.
    job = psutil.Process(await bench.started(bench.launch(*BURN, grant=Grant(cores=(CORE,)))))
    await bench.until(lambda: job.nice() == 15)
    with owners_program() as program:
        before, job_before = spent(program), spent(job)
        await bench.until(lambda: spent(program) - before > 0.5)
        assert spent(job) - job_before < 0.25, "15 steps of niceness are a weight of 36 against 1024"


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel shares nothing out by sessions")
async def test_the_niceness_of_its_session_is_set_as_well(make_bench: Callable[..., Awaitable[Bench]]) -> None:
    bench = await make_bench(nice=15)
    pid = await bench.started(bench.launch("sh", "-c", "sleep 60 & wait"))
    await bench.until(lambda: Path(f"/proc/{pid}/autogroup").read_text().endswith("nice 15\n"))
    await bench.until(lambda: [child.nice() for child in psutil.Process(pid).children()] == [15])


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel shares nothing out by sessions")
async def test_so_is_that_of_each_session_which_the_job_makes(make_bench: Callable[..., Awaitable[Bench]]) -> None:
    bench = await make_bench(nice=15)
    id = bench.launch("sh", "-c", "setsid sleep 60 & setsid setsid -f sleep 60 & wait")
    await bench.until(lambda: len({at.session for pid in bench.alive(id) if (at := procs.stat(pid))}) == 3)
    await bench.until(lambda: of_sessions(bench, id) == {15})


async def test_without_it_a_job_is_as_good_as_anybody(bench: Bench) -> None:
    pid = await bench.started(bench.launch("sleep", "60"))
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, bench.launcher.supervisor_pid)
    assert procs.stat(pid) is not None


OWN = os.getpriority(os.PRIO_PROCESS, 0)
"""Ours, and so that of a supervisor of ours."""
BOOST = Boost("gpu-master", "192.0.2.1:6379", ResourceType.CPU, 1000)
WITH_A_THREAD = """
import subprocess, sys, threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


def niceness(bench: Bench, id: str) -> set[int]:
    """That of all threads of an allocation."""
    return {os.getpriority(os.PRIO_PROCESS, thread) for pid in bench.alive(id) for thread in procs.threads(pid)}


def of_sessions(bench: Bench, id: str) -> set[int]:
    return {nice for pid in bench.alive(id) if (nice := procs.session_niceness(pid)) is not None}


async def test_a_raylet_has_its_normal_weight_until_it_is_told_to_give_way_with_all_of_its_threads(
    make_bench: Callable[..., Awaitable[Bench]],
) -> None:
    bench = await make_bench(nice=15)
    ids = [bench.launch(sys.executable, "-S", "-c", WITH_A_THREAD, boost=BOOST) for _ in range(2)]
    for id in ids:
        await bench.wrote(id)
    assert [niceness(bench, id) for id in ids] == [{OWN}, {OWN}] and of_sessions(bench, ids[0]) in (set(), {0})
    bench.launcher.renice(ids[0])
    await bench.until(lambda: niceness(bench, ids[0]) == {15} and of_sessions(bench, ids[0]) in (set(), {15}))
    assert niceness(bench, ids[1]) == {OWN}


async def test_it_gives_way_by_itself_when_it_has_had_the_time_to_join(
    make_bench: Callable[..., Awaitable[Bench]],
) -> None:
    bench = await make_bench(nice=15)
    id = bench.launch("sleep", "600", boost=replace(BOOST, join_within=0.2))
    await bench.started(id)
    await bench.until(lambda: niceness(bench, id) == {15})


async def test_the_next_supervisor_knows_which_ones_are_to_give_way(
    make_bench: Callable[..., Awaitable[Bench]],
) -> None:
    bench = await make_bench(nice=15)
    ids = [bench.launch("sleep", "600", boost=BOOST) for _ in range(2)]
    for id in ids:
        await bench.started(id)
    bench.launcher.renice(ids[0])
    await bench.run("true")  # by its end, what was said before it is in the journal
    await bench.kill_supervisor()
    await bench.until(lambda: niceness(bench, ids[0]) == {15})
    assert niceness(bench, ids[1]) == {OWN}
    bench.launcher.renice(ids[1])
    await bench.until(lambda: niceness(bench, ids[1]) == {15})


async def test_the_next_raylet_begins_with_its_normal_weight_again(
    make_bench: Callable[..., Awaitable[Bench]],
) -> None:
    bench = await make_bench(nice=15)
    for _ in range(2):
        id = bench.launch("sleep", "600", boost=BOOST)
        await bench.started(id)
        assert niceness(bench, id) == {OWN} and of_sessions(bench, id) in (set(), {0})
        bench.launcher.renice(id)
        await bench.until(lambda id=id: niceness(bench, id) == {15} and of_sessions(bench, id) in (set(), {15}))  # type: ignore[misc]
        bench.stop(id)
        await bench.ended(id)
