"""The trees of the grid's own processes: what they spend is told to the tick, by the job that they are of."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from distributed_grid.agent.sampling.trees import Trees, children, sibling_roots
from tests.agent.sampling.processes import BURN, probe, start, wait_for
from tests.agent.sampling.processes import processes as processes


def test_the_usage_of_each_job_is_told_by_the_pid_of_its_top(processes: list[subprocess.Popen[bytes]]) -> None:
    up = f"print('up', flush=True)\n{BURN}"
    processes.append(start(f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {up!r}])"))
    top = processes[0].pid
    assert processes[0].stdout is not None and processes[0].stdout.readline() == b"up\n"  # it grows no more
    wait_for(lambda: len(children(top)) == 1)
    measure = probe(own=(os.getpid(),))
    time.sleep(0.3)
    sample = measure.sample()

    def busy() -> bool:
        nonlocal sample
        sample = measure.sample()
        return measure.usage()[top].cpu > 0.05

    wait_for(busy)
    usage = measure.usage()[top]
    resident = sum(psutil.Process(pid).memory_info().rss for pid in (top, *children(top)))
    assert usage.processes == 2
    assert usage.rss == pytest.approx(resident, rel=0.1)
    assert sample.memory_own >= 0.9 * resident


def test_memory_counts_also_where_the_first_thread_has_ended(processes: list[subprocess.Popen[bytes]]) -> None:
    hold = "def hold():\n x = bytearray(50 << 20)\n print(flush=True)\n time.sleep(600)\n"
    end = "threading.Thread(target=hold).start()\nctypes.CDLL(None).pthread_exit(None)"
    processes.append(start(f"import ctypes, threading, time\n{hold}{end}"))
    assert processes[0].stdout is not None and processes[0].stdout.readline()
    wait_for(lambda: psutil.Process(processes[0].pid).status() == psutil.STATUS_ZOMBIE)
    trees = Trees(lambda: (os.getpid(),))
    trees.walk()
    assert trees.usage()[processes[0].pid].rss > 50 << 20


def test_memory_on_gpus_is_of_the_job_whose_processes_have_it(processes: list[subprocess.Popen[bytes]]) -> None:
    up = "print('up', flush=True); import time; time.sleep(600)"
    processes.append(start(f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {up!r}])"))
    processes.append(start(up))
    first, second = (one.pid for one in processes)
    wait_for(lambda: len(children(first)) == 1)
    trees = Trees(lambda: (os.getpid(),))
    trees.walk()
    child = children(first)[0]
    on_gpus = {"GPU-0": {first: 10, child: 20, second: 7, 1: 500}, "GPU-1": {child: 25, second: 9}}
    found = trees.usage(on_gpus)
    assert found[first].gpus == (("GPU-0", 30), ("GPU-1", 25)), "of all its processes"
    assert (found[first].gpu_memory, found[second].gpu_memory) == (30, 9), "where it has most"
    assert trees.usage()[first].gpu_memory == 0


def test_a_daemon_stays_with_the_job_it_was_seen_in() -> None:
    # The job's shell ends and leaves its child to this process, a subreaper as the supervisor is.
    import ctypes

    libc = ctypes.CDLL(None)
    assert libc.prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {BURN!r}]); sys.stdin.read()"
    job = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE)
    daemon = 0
    try:
        wait_for(lambda: len(children(job.pid)) == 1)
        daemon = children(job.pid)[0]
        measure = probe(own=(os.getpid(),))
        measure.sample()
        job.communicate(b"")
        wait_for(lambda: daemon in children(os.getpid()))
        measure.sample()
        assert measure.usage()[job.pid].processes == 1
        assert daemon not in measure.usage()
    finally:
        job.kill()
        job.wait()
        if daemon:
            os.kill(daemon, 9)
            os.waitpid(daemon, 0)
        libc.prctl(36, 0, 0, 0, 0)


def test_pid_files_of_kin_name_the_living_only(tmp_path: Path) -> None:
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    for name, start_ticks in (("a", started), ("b", started + 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "agent.pid").write_text(json.dumps({"pid": os.getpid(), "start": start_ticks}))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "supervisor.pid").write_text("{")
    assert sibling_roots(tmp_path) == [os.getpid()]
