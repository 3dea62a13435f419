"""The supervisor is started by its path, finds our files without our package, and is the only one of its directory."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distributed_grid.agent.supervisor import main, procs
from tests.grid_fixture import until

COMMAND = [sys.executable, "-I", "-S", main.__file__]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir()
    return path


@pytest.fixture
def supervisor(state: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([*COMMAND, str(state)], stdin=subprocess.DEVNULL, umask=0o077)
    try:
        until(lambda: (state / "supervisor.sock").exists(), "it listens")
        yield process
    finally:
        process.kill()
        process.wait()


def test_it_makes_its_directories_for_whom_they_are_whatever_the_umask(
    state: Path, supervisor: "subprocess.Popen[bytes]"
) -> None:
    modes = {name: (state / name).stat().st_mode & 0o777 for name in ("allocs", "spawners", "jobs", "recalls")}
    assert modes == {"allocs": 0o700, "spawners": 0o700, "jobs": 0o711, "recalls": 0o711}


def test_it_says_who_it_is_so_that_its_pid_is_not_mistaken(state: Path, supervisor: "subprocess.Popen[bytes]") -> None:
    seen = procs.stat(supervisor.pid)
    assert seen is not None
    assert json.loads((state / "supervisor.pid").read_text()) == {"pid": supervisor.pid, "start": seen.start}


def test_a_second_one_leaves_the_directory_to_the_first(state: Path, supervisor: "subprocess.Popen[bytes]") -> None:
    before = (state / "supervisor.pid").read_bytes()
    second = subprocess.run([*COMMAND, str(state)], capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 75 and "another supervisor has" in second.stderr
    assert (state / "supervisor.pid").read_bytes() == before and supervisor.poll() is None


def test_one_whose_disk_has_no_inode_left_says_so_and_leaves(
    state: Path, few_inodes: Callable[[Path, int], Path]
) -> None:
    few_inodes(state, 6)  # of which its directories and its lock take five
    done = subprocess.run([*COMMAND, str(state)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 75 and "Traceback" not in done.stderr
    assert done.stderr.endswith(f"{state} cannot be written (No space left on device): the supervisor does not start\n")


LOADED = """
import runpy, sys
sys.argv = [sys.argv[1]]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except IndexError:  # nobody said where its state is: it has imported all by then
    print(*sys.modules)
"""


def test_it_loads_nothing_that_takes_long_and_it_can_do_without() -> None:
    done = subprocess.run([*COMMAND[:-1], "-c", LOADED, main.__file__], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"distributed_grid.agent.supervisor.loop", "distributed_grid.agent.walls.files_socket"} <= loaded
    slow = {"asyncio", "dataclasses", "inspect", "ipaddress", "pathlib", "subprocess", "tempfile", "urllib.parse"}
    assert not slow & loaded
