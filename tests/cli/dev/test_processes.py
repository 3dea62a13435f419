"""A process is known by its pid and start time, so that no other one is ever signalled."""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from distributed_grid.cli.dev import processes
from distributed_grid.cli.dev.processes import Process
from tests.grid_fixture import until

SLEEP = ["sleep", "60"]


@pytest.fixture
def sleeper(tmp_path: Path) -> Process:
    return processes.start(SLEEP, os.environ, tmp_path, tmp_path / "log")


def test_a_process_is_ended_and_its_end_awaited(sleeper: Process) -> None:
    assert sleeper.alive and not sleeper.wait(0.0)
    sleeper.end(10.0)
    assert not sleeper.alive and sleeper.wait(0.0)


LEFT_TO_A_THREAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_its_end_is_that_of_its_last_thread(tmp_path: Path) -> None:
    process = processes.start([sys.executable, "-c", LEFT_TO_A_THREAD], os.environ, tmp_path, tmp_path / "log")
    until(lambda: not process.alive, "its first thread has ended")
    assert not process.wait(0.0)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(60.0)


def test_a_process_of_another_start_time_is_left_alone(sleeper: Process) -> None:
    other = Process(sleeper.pid, sleeper.start - 1)
    other.send(signal.SIGKILL)
    assert not other.alive and sleeper.alive
    sleeper.end(10.0)


def test_a_pid_file_names_a_living_process_or_none(sleeper: Process, tmp_path: Path) -> None:
    path = tmp_path / "agent.pid"
    assert processes.read(path) is None
    path.write_text("no json")
    assert processes.read(path) is None
    path.write_text(json.dumps({"pid": sleeper.pid, "start": sleeper.start}))
    assert processes.read(path) == sleeper
    sleeper.end(10.0)
    assert processes.read(path) is None


def test_all_that_is_below_a_process_ends_with_it(tmp_path: Path) -> None:
    shell = ["sh", "-c", "sleep 60 & echo $! > child; wait"]
    root = processes.start(shell, os.environ, tmp_path, tmp_path / "log")
    child = tmp_path / "child"
    subprocess.run(["sh", "-c", f"until [ -s {child} ]; do sleep 0.01; done"], check=True, timeout=30)
    processes.end_tree(root, 10.0)
    assert not root.alive and not Path(f"/proc/{child.read_text().strip()}/exe").exists()


def test_jobs_of_a_dev_grid_are_found_by_their_environment(tmp_path: Path) -> None:
    own = f"j-{uuid.uuid4().hex}.1"  # other tests on this machine have jobs, too
    (tmp_path / "node1" / "allocs" / own).mkdir(parents=True)
    mine = processes.start(SLEEP, {**os.environ, "GRID_ALLOCATION_ID": own}, tmp_path, tmp_path / "log")
    other = processes.start(SLEEP, {**os.environ, "GRID_ALLOCATION_ID": "j-2.1"}, tmp_path, tmp_path / "log")
    try:
        assert [one.pid for one in processes.jobs_under(tmp_path)] == [mine.pid]
    finally:
        mine.end(10.0)
        other.end(10.0)
