"""Limits that bite where no cgroup helps: real processes that take more than they may, and some that only seem to."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from distributed_grid.agent.cgroups.groups import Cgroups, Refused, SlotGroups
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import Job
from distributed_grid.agent.supervisor.limits import Limits
from distributed_grid.agent.supervisor.tree import Tree
from distributed_grid.protocol.jobs import Cause, JobLimits, exit_status
from distributed_grid.protocol.resources import MIB, Grant
from tests.agent.conftest import Bench

HOLDS = "import sys, time; x = bytearray({mib} << 20); print('full', flush=True); time.sleep({stay})"

FORKS = "for i in $(seq 20); do sleep 1000 & done; wait"


def holding(mib: int, stay: float = 1000) -> tuple[str, str, str]:
    return sys.executable, "-c", HOLDS.format(mib=mib, stay=stay)


# --- memory ----------------------------------------------------------------------------------------------------------


async def test_a_job_that_takes_more_memory_than_granted_is_ended_with_limit_and_peak(bench: Bench) -> None:
    other = bench.launch(*holding(150), grant=Grant(memory=300 * MIB))
    outcome = await bench.run(*holding(200), grant=Grant(memory=100 * MIB))
    assert (outcome.cause, outcome.signal, exit_status(outcome)) == (Cause.OUT_OF_MEMORY, 9, 137)
    assert outcome.peak_memory > 100 * MIB
    assert outcome.text.startswith("used more memory than its limit of 100M (peak ")
    assert len(bench.alive(other)) == 1


async def test_memory_counts_for_all_processes_of_a_job_together(bench: Bench) -> None:
    hold = shlex.join(("exec", *holding(70)))
    id = bench.launch("sh", "-c", f"({hold}) & ({hold}) & wait", grant=Grant(memory=100 * MIB))
    outcome = await bench.ended(id)
    assert (outcome.cause, exit_status(outcome)) == (Cause.OUT_OF_MEMORY, 137)
    assert bench.alive(id) == []


async def test_memory_counts_also_where_a_jobs_first_thread_has_ended(bench: Bench) -> None:
    code = f"""
import ctypes, pathlib, threading
def hold():
    while ") Z " not in pathlib.Path("/proc/self/stat").read_text():
        pass
    {HOLDS.format(mib=200, stay=1000)}
threading.Thread(target=hold).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    outcome = await bench.run(sys.executable, "-c", code, grant=Grant(memory=100 * MIB))
    assert (outcome.cause, exit_status(outcome)) == (Cause.OUT_OF_MEMORY, 137)


async def test_memory_that_forks_share_counts_once(bench: Bench) -> None:
    code = """
import os, time
x = os.urandom(1 << 20) * 100
for _ in range(3):
    if os.fork() == 0:
        time.sleep(0.9)
        os._exit(0)
for _ in range(3):
    os.wait()
"""
    outcome = await bench.run(sys.executable, "-c", code, grant=Grant(memory=200 * MIB))
    assert (outcome.cause, outcome.code) == (Cause.EXITED, 0)
    assert 100 * MIB < outcome.peak_memory < 200 * MIB


async def test_a_file_that_is_mapped_is_not_the_jobs_memory(bench: Bench) -> None:
    (bench.dir / "data").write_bytes(bytes(150 * MIB))
    code = "import mmap, sys, time; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)"
    code += "; assert m.find(b'x') == -1; time.sleep(0.9)"
    outcome = await bench.run(sys.executable, "-c", code, str(bench.dir / "data"), grant=Grant(memory=100 * MIB))
    assert (outcome.cause, outcome.code) == (Cause.EXITED, 0)


async def test_a_job_that_did_not_ask_for_memory_has_no_limit(bench: Bench) -> None:
    outcome = await bench.run(*holding(100, stay=0.9))
    assert (outcome.cause, outcome.code) == (Cause.EXITED, 0)
    assert outcome.peak_memory > 100 * MIB


async def test_a_limit_outlives_the_agent_and_the_supervisor(bench: Bench) -> None:
    code = "import time, pathlib; print('up', flush=True)\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\n"
    code += HOLDS.format(mib=200, stay=1000)
    directory = bench.dir / "work"
    directory.mkdir()
    id = bench.launch(sys.executable, "-c", code, grant=Grant(memory=100 * MIB), directory=directory)
    await bench.wrote(id)
    await bench.kill_supervisor()
    await bench.restart()
    (directory / "go").touch()
    outcome = await bench.ended(id)
    assert (outcome.cause, exit_status(outcome)) == (Cause.OUT_OF_MEMORY, 137)


# --- processes --------------------------------------------------------------------------------------------------------


async def test_a_job_that_makes_too_many_processes_is_ended(bench: Bench) -> None:
    other = bench.launch("sh", "-c", FORKS, limits=JobLimits(pids=50))
    id = bench.launch("sh", "-c", FORKS, limits=JobLimits(pids=10))
    outcome = await bench.ended(id)
    assert (outcome.cause, exit_status(outcome)) == (Cause.TOO_MANY_PROCESSES, 137)
    assert re.match(r"had (1[1-9]|2[01]) processes and threads at once, and its limit is 10", outcome.text)
    assert bench.alive(id) == []
    await bench.until(lambda: len(bench.alive(other)) == 21)


async def test_threads_count_as_processes(bench: Bench) -> None:
    code = "import threading, time\nfor _ in range(20): threading.Thread(target=time.sleep, args=[1000]).start()"
    outcome = await bench.run(sys.executable, "-c", code, limits=JobLimits(pids=10))
    assert outcome.cause is Cause.TOO_MANY_PROCESSES


async def test_a_node_may_allow_less_than_the_job_does_itself(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "node", pids=10)
    bench.dir.mkdir(mode=0o700)
    await bench.start()
    try:
        for asked in (0, 50):
            outcome = await bench.run("sh", "-c", FORKS, limits=JobLimits(pids=asked))
            assert outcome.cause is Cause.TOO_MANY_PROCESSES
    finally:
        await bench.close()


# --- the kernel's own choice -----------------------------------------------------------------------------------------


@pytest.fixture
def limits() -> Limits:
    groups = Cgroups({}, lambda _: None)
    slots = SlotGroups(groups, "/", lambda _: None)
    tree = Tree(lambda _: None, lambda *_: None, lambda: (set(), False), lambda _: False, slots)
    return Limits(tree, groups, slots, lambda *_: None, lambda *_: None, 500)


def killed(memory: int = 0, peak: int = 50 * MIB, status: int = 9) -> Job:
    job = Job("j-a.1", limits={"memory": memory})
    job.status, job.peak = status, peak
    return job


def test_a_job_that_the_kernel_took_below_its_limit_fell_to_its_neighbours(
    limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    rose = procs.oom_kills() + 1
    monkeypatch.setattr(procs, "oom_kills", lambda: rose)
    for status in (9, 137 << 8):  # itself, or a part of it under a shell
        job = killed(100 * MIB, status=status)
        limits.judge(job)
        assert job.cause == "node-out-of-memory"
        assert "below its own limit of 100M (peak 50M)" in job.text
    unlimited = killed()
    limits.judge(unlimited)
    assert "has no limit of its own (peak 50M)" in unlimited.text
    over = killed(40 * MIB)
    limits.judge(over)
    assert over.cause == "out-of-memory"


def test_a_job_that_the_kernel_took_a_part_of_had_all_of_its_limit(
    limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ends = Job("j-a.1", limits={"memory": 100 * MIB}), []
    monkeypatch.setattr(limits._tree, "members", lambda _: {})
    monkeypatch.setattr(limits._cgroups, "refused", lambda _: Refused(oom_kills=1))
    monkeypatch.setattr(limits, "_end", lambda _, cause, text, grace: ends.append((cause, text)))
    limits.watch(job, procs.now())
    limits.poll(procs.now() + 60.0)
    assert ends == [("out-of-memory", "used more memory than its limit of 100M (peak 100M)")]


def test_a_kill_by_anybody_else_is_not_taken_for_want_of_memory(
    limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand = killed()
    limits.judge(by_hand)
    assert by_hand.cause == ""  # the kernel's count stands where it stood
    rose = procs.oom_kills() + 1
    monkeypatch.setattr(procs, "oom_kills", lambda: rose)
    for job in (killed(status=0), killed(status=15), killed(status=1 << 8)):
        limits.judge(job)
        assert job.cause == ""
    cancelled = killed()
    cancelled.cause = "cancelled"
    limits.judge(cancelled)
    assert cancelled.cause == "cancelled"


def test_the_kernels_count_of_those_it_killed_is_read() -> None:
    lines = Path("/proc/vmstat").read_text().splitlines()
    assert procs.oom_kills() == int(next(line for line in lines if line.startswith("oom_kill ")).split()[1])


# --- cores -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
async def test_a_job_that_leaves_its_cores_is_put_back(bench: Bench) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    code = f"""
import os, threading, time
def leave():
    os.sched_setaffinity(0, [{second}])
    print('left', flush=True)
    time.sleep(1000)
threading.Thread(target=leave, daemon=True).start()
leave()
"""
    told: list[tuple[str, str]] = []
    bench.launcher.noted = lambda *said: told.append(said)
    other = bench.launch("sleep", "1000", grant=Grant(cores=(second,)))
    id = bench.launch(sys.executable, "-c", code, grant=Grant(cores=(first,)))
    pid = await bench.started(id)
    await bench.wrote(id, lines=2)
    threads = procs.threads(pid)
    assert len(threads) == 2
    await bench.until(lambda: all(os.sched_getaffinity(one) == {first} for one in threads))
    assert os.sched_getaffinity(await bench.started(other)) == {second}
    await bench.until(lambda: told)
    assert [key for key, _ in told] == [id] and "had left the job's cores and is put back" in told[0][1]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
async def test_a_job_may_choose_among_its_own_cores(bench: Bench) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    code = f"import os, time; os.sched_setaffinity(0, [{first}]); print('chose', flush=True); time.sleep(0.7)"
    code += "; print(os.sched_getaffinity(0))"
    id = bench.launch(sys.executable, "-c", code, grant=Grant(cores=(first, second)))
    assert await bench.wrote(id, lines=2) == ["chose", str({first})]


# --- the warning before the time limit -------------------------------------------------------------------------------

CATCHES = "trap 'echo warned' USR1; echo ready; while :; do sleep 0.05; done"  # a shell is ready before it is warned


async def test_a_job_is_told_that_its_time_will_be_up(bench: Bench) -> None:
    warning = JobLimits(warn_signal=signal.SIGUSR1, warn_before=1.5)
    id = bench.launch("sh", "-c", CATCHES, time_limit=3.5, limits=warning, grace=0.2)
    outcome = await bench.ended(id)
    assert outcome.cause is Cause.TIME_LIMIT
    assert bench.read(id).decode().splitlines() == ["ready", "warned"]


async def test_a_job_is_warned_once_also_over_a_killed_supervisor(bench: Bench) -> None:
    warning = JobLimits(warn_signal=signal.SIGUSR1, warn_before=1.5)
    id = bench.launch("sh", "-c", CATCHES, time_limit=3.5, limits=warning, grace=0.2)
    await bench.wrote(id, lines=2)
    await bench.kill_supervisor()
    assert (await bench.ended(id)).cause is Cause.TIME_LIMIT
    assert bench.read(id).decode().splitlines() == ["ready", "warned"]


# --- what it used ----------------------------------------------------------------------------------------------------


async def test_what_a_job_used_that_ended_with_its_spawner_is_known_as_last_seen(
    make_bench: Callable[..., Awaitable[Bench]],
) -> None:
    bench = await make_bench(walls="namespace")
    id = bench.launch("sh", "-c", "while :; do :; done")
    pid = await bench.started(id)
    spawner, begun = await bench.spawner(id), procs.stat(pid)
    assert begun is not None
    await bench.until(lambda: procs.cpu_seconds(pid, begun.start) > 1.5)
    used = procs.cpu_seconds(pid, begun.start)
    os.kill(spawner, signal.SIGKILL)
    outcome = await bench.ended(id)
    assert outcome.started and 0.2 < outcome.cpu_seconds <= used + 1
