"""Worker processes of pytest-xdist that are forked from the first one."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOOKS = (
    "from tests.side_by_side import pytest_cmdline_main, pytest_collection_finish, pytest_configure, "
    "pytest_unconfigure, pytest_xdist_make_scheduler, pytest_xdist_setupnodes\n"
)
TESTS = """
import atexit
import os
import random
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent

def note(name, *words):
    with open(HERE / name, "a") as file:
        print(*words, file=file)

def together(name, *words):
    # Until each process has noted it: else one would run all files, and one after another.
    note(name, os.environ["PYTEST_XDIST_WORKER"], *words)
    while len({line.split()[0] for line in (HERE / name).read_text().splitlines()}) < 3:
        time.sleep(0.01)

note("collected", os.environ["PYTEST_XDIST_WORKER"])
atexit.register(lambda: note("ended", os.environ["PYTEST_XDIST_WORKER"]))

def test_first(tmp_path, capfd):
    print("captured")
    assert capfd.readouterr().out == "captured\\n"
    assert os.environ["PYTEST_XDIST_WORKER"] in tmp_path.parts[-2]
    together("begun", os.getpid(), os.getppid(), random.random())

def test_fails():
    print("said by", os.environ["PYTEST_XDIST_WORKER"])
    if "DIES" not in os.environ:
        together("failed")
    assert False

def test_dies():
    if "DIES" in os.environ and os.environ["PYTEST_XDIST_WORKER"] == os.environ["DIES"]:
        os._exit(1)
"""


def run(folder: Path, *words: str, conftest: str = "", **variables: str) -> str:
    """What a run of three files of tests in three processes prints."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(HOOKS + conftest)
    for name in "abc":
        (folder / f"test_{name}.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "no:cacheprovider", "-n", "3", *words]
    done = subprocess.run(command, cwd=folder, env=environment(variables), capture_output=True, text=True, timeout=100)
    return done.stdout + done.stderr


def environment(variables: dict[str, str]) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TESTS_"))}
    return ours | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | variables


def lines(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()]


@pytest.mark.parametrize("asked", [[], ["-v"]])
def test_one_process_collects_for_all_and_each_is_one_of_its_own(tmp_path: Path, asked: list[str]) -> None:
    said = run(tmp_path, *asked)
    assert " 3 failed, 6 passed in " in said, said
    assert lines(tmp_path / "collected") == [["gw0"]] * 3
    workers, pids, parents, numbers = (set(column) for column in zip(*lines(tmp_path / "begun"), strict=True))
    assert workers == {"gw0", "gw1", "gw2"}
    assert len(pids) == len(numbers) == 3 and not pids & parents
    outputs = re.findall(r"Captured stdout call -+\nsaid by (\w+)\n[_=]", said)
    assert sorted(outputs) == sorted(workers), said
    assert {worker for worker, *_ in lines(tmp_path / "ended")} == workers


@pytest.mark.parametrize("victim", ["gw0", "gw1"])
def test_a_process_that_dies_is_replaced_by_one_that_collects_itself(tmp_path: Path, victim: str) -> None:
    said = run(tmp_path, DIES=victim)
    assert f"worker '{victim}' crashed while running" in said, said
    assert Counter(word for (word,) in lines(tmp_path / "collected")) == {"gw0": 3, "gw3": 3}
    assert " 4 failed, " in said, said


FIRST_FAILS = """
import os

def pytest_collection():
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0":
        {fails}
"""


def test_where_the_first_dies_before_it_has_collected_the_others_collect(tmp_path: Path) -> None:
    said = run(tmp_path, conftest=FIRST_FAILS.format(fails="os._exit(1)"))
    assert " 3 failed, 6 passed in " in said, said
    assert {word for (word,) in lines(tmp_path / "collected")} == {"gw1", "gw2", "gw3"}


def test_where_the_first_cannot_collect_nobody_waits_for_it(tmp_path: Path) -> None:
    said = run(tmp_path, conftest=FIRST_FAILS.format(fails="raise OSError('it broke')"))
    assert "INTERNALERROR>" in said and "no tests ran" in said, said


def test_where_coverage_is_measured_each_process_collects(tmp_path: Path) -> None:
    said = run(tmp_path, "-p", "pytest_cov", "--cov", "test_a", "--cov-report", "term")
    assert " 3 failed, 6 passed in " in said, said
    assert {word for (word,) in lines(tmp_path / "collected")} == {"gw0", "gw1", "gw2"}


def test_a_run_that_is_interrupted_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(HOOKS)
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(
            "import os, signal, time\n\n"
            "def test_it():\n"
            "    if 'c' in __name__:\n"
            "        os.killpg(0, signal.SIGINT)\n"
            "    time.sleep(100)\n"
        )
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "no:cacheprovider", "-n", "3"]
    began = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment({}),
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said, _ = began.communicate(timeout=60)  # all of them have this pipe as their errors, and closed it
    assert "KeyboardInterrupt" in said and began.returncode == 2, said
