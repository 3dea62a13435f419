"""How the tests run in several processes at once (`pytest -n auto`, by pytest-xdist): what shares a scene, or must not
share the machine, stays together, what takes longest begins first, and a test that measures how busy the machine is has
it to itself.

Most tests wait for something more than they compute, so that three processes keep two cores busy.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

TOGETHER = {
    "Ray": ("tests/ray/",),
    "machines": ("tests/systemd/", "tests/test_packaging.py"),
    "groups": ("tests/agent/cgroups/", "tests/e2e/test_limits.py"),
    "sieges": ("tests/abuse/", "tests/chaos/", "tests/e2e/test_siege.py", "tests/e2e/test_abuse.py"),
}
"""Folders and files that one process takes one after another: their tests share a Ray cluster or a wheel, or they want
so much of the machine that two at once would measure each other. Everywhere else no scene is shared between files."""

FIRST = (
    *(path for paths in TOGETHER.values() for path in paths),
    "tests/e2e/test_faults.py",
    "tests/push/",
    "tests/agent/supervisor/",
    "tests/simulator/",
    "tests/e2e/",
)
"""What takes long as a whole: begun last, one process would still be at it when the others are done."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Processes for `-n auto`: as most tests wait, half as many again as there are cores."""
    if config.option.numprocesses != "auto":
        return None
    cores = len(os.sched_getaffinity(0))
    return cores + (cores + 1) // 2


def together(nodeid: str) -> str:
    """What is run with this test in one process: its group, or its file."""
    for group, paths in TOGETHER.items():
        if nodeid.startswith(paths):
            return group
    return nodeid.partition("::")[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(
            key=lambda item: next((n for n, path in enumerate(FIRST) if item.nodeid.startswith(path)), len(FIRST))
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        """Hands out file by file, in the order in which they were collected."""

        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    config.option.loadscopereorder = False
    return ByFile(config, log)


ROOM = "TESTS_TAKE_TURNS_IN"
"""Where the locks are by which the processes take turns; not there if there is only one."""


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ[ROOM] = tempfile.mkdtemp(prefix="grid-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and (room := os.environ.pop(ROOM, "")):
        shutil.rmtree(room, ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the time limit: who waits for its turn does nothing wrong
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """One marked `alone` waits until no other test runs, and holds up those to come; the others run side by side."""
    if ROOM not in os.environ:
        return (yield)
    alone = item.get_closest_marker("alone") is not None
    with _locked("gate") as gate, _locked("room", fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
        if not alone:
            fcntl.flock(gate, fcntl.LOCK_UN)  # else nobody is let in after it before it is done
        return (yield)


@contextlib.contextmanager
def _locked(name: str, how: int = fcntl.LOCK_EX) -> Iterator[IO[str]]:
    with open(Path(os.environ[ROOM], name), "w") as file:
        fcntl.flock(file, how)
        try:
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing does not do it while a child that was forked has it open
