"""How the tests run in several processes at once (`pytest -n auto`, by pytest-xdist): what shares a scene, or must not
share the machine, stays together, what takes longest begins first, and a test that measures how busy the machine is has
it to itself.

Most tests wait for something more than they compute, so that five processes keep two cores busy: 95 % of both, but for
the seconds in which the first one collects for all (forked_workers.py).
"""

import contextlib
import fcntl
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from tests import forked_workers
from tests.depth import DEEP

ALONE = "alone"
TOGETHER = {
    ALONE: (
        "tests/agent/sampling/test_probe.py::test_a_busy_job_of_ours",
        "tests/agent/sampling/test_probe.py::test_jobs_of_kin",
        "tests/agent/sampling/test_probe.py::test_samples_in_a_burst",
        "tests/agent/sampling/test_probe.py::test_virtual_cores",
        "tests/agent/supervisor/test_spawners_nice.py::test_beside_a_job_on_the_same_core",
        "tests/agent/supervisor/test_rounds.py",
        "tests/e2e/reliability/test_disk.py::test_a_disk_that_its_errors_made_read_only",
        "tests/e2e/sharing/test_the_owner.py::test_a_foreign_busy_process",
        "tests/e2e/sharing/test_the_owner.py::test_our_own_busy_job",
        "tests/e2e/service/test_tour.py::test_the_part_with_ray",
    ),
    "guarded": (
        "tests/ray/test_taken_back.py",
        "tests/ray/test_gpu_boosts.py",
        "tests/ray/test_ray_token.py",
        "tests/ray/test_the_head.py",
    ),
    "heads": (
        "tests/ray/test_rebalancing.py",
        "tests/ray/test_placing.py",
    ),
    "Ray": (
        # With the boost that is left of the first one.
        "tests/ray/test_waiting_boosts.py::test_one_that_waits",
        "tests/ray/test_status.py::test_cluster_status_marks",
        "tests/ray/test_status.py::test_boost_status",
        "tests/ray/test_status.py::test_a_viewer",
        "tests/ray/test_validate.py::test_a_cluster",
        "tests/ray/test_waiting_boosts.py",
        "tests/ray/",
    ),
    "machines": ("tests/systemd/", "tests/test_packaging.py"),
    "groups": ("tests/agent/cgroups/", "tests/e2e/sharing/test_limits.py"),
    "sieges": ("tests/abuse/", "tests/chaos/", "tests/e2e/security/test_siege.py", "tests/e2e/security/test_abuse.py"),
}
"""Folders, files and tests that one process takes one after another, by the first that fits: their tests share a Ray
cluster or a wheel, or they want so much of the machine that two at once would measure each other. Ray's are in three
parts by the clusters that they share: one after another they would take longer than all else. Everywhere else no scene
is shared between files.

Those that are alone are about the machine as a whole (how busy it is, what is mounted), end fork bombs, which took
12 s alone and 15 minutes beside four others, who got no further meanwhile, or have a raylet on the one core of a page
for readers, which did not join within 60 s beside others: no other test runs beside them.
They come last, in one stretch, since each time that one begins the others' tests have to end first."""

FIRST = (
    *(path for group, paths in TOGETHER.items() if group != ALONE for path in paths),
    "tests/e2e/reliability/test_faults.py",
    "tests/push/",
    "tests/agent/supervisor/",
    "tests/simulator/",
    "tests/e2e/",
    "tests/agent/",
    "tests/test_tried_again.py",
    "tests/test_layout.py",
    "tests/test_anywhere.py",
    "tests/test_docs.py",
    "tests/test_intelligent_resource_sharing.py",
    "tests/test_time_limit.py",
    "tests/coordinator/",
    "tests/runtime/",
)
"""What takes long, as a whole or in one file: begun last, one process would still be at it when the others are done.
What is left then are files of a second or two."""


PURE = ("tests/protocol", "tests/coordinator/core", "tests/agent/core", "tests/simulator")
"""Rooms whose tests only compute: more processes than there are cores would only import them all once more."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Processes for `-n auto`: as most tests wait, more than twice as many as there are cores; one for each core where
    none of them does."""
    if config.option.numprocesses != "auto":
        return None
    cores = len(os.sched_getaffinity(0))
    asked = [Path(config.invocation_params.dir, one.partition("::")[0]) for one in config.args]
    pure = all(any(path.is_relative_to(config.rootpath / room) for room in PURE) for path in asked)
    return cores if pure else 2 * cores + 1


def together(nodeid: str) -> str:
    """What is run with this test in one process: its group, or its file. With forty times as much to try one file would
    keep a process busy long after the others are done: then each test is handed out by itself."""
    for group, paths in TOGETHER.items():
        if nodeid.startswith(paths):
            return group
    return nodeid if DEEP else nodeid.partition("::")[0]


def turn(nodeid: str) -> int:
    """Whose turn comes earlier has the lower number."""
    if together(nodeid) == ALONE:
        return len(FIRST) + 1
    return next((n for n, path in enumerate(FIRST) if nodeid.startswith(path)), len(FIRST))


def pytest_collection(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        gc.disable()  # until all is collected, as nearly all that is made meanwhile stays: an eighth of the time


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: turn(item.nodeid))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # what was collected stays to the end: nobody looks through it again and again for what may go
    forked_workers.fork(session.config)
    gc.set_threshold(10_000, 20, 10)  # by default every 700 new objects, which takes 2 % of the CPU time
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    if not config.pluginmanager.hasplugin("_cov"):  # which measures all of a process
        forked_workers.start(specs, Path(os.environ[ROOM], "workers"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Iterator[None]:
    try:
        return (yield)
    finally:
        forked_workers.over()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        """Hands out file by file, in the order in which they were collected."""

        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            """Forget a file that is over: else those that each process has done are all counted through again after
            each message."""
            super().mark_test_complete(node, item_index, duration)
            scope = together(self.registered_collections[node][item_index])
            if False not in self.assigned_work[node][scope].values():
                del self.assigned_work[node][scope]

    config.option.loadscopereorder = False
    return ByFile(config, log)


ROOM = "TESTS_TAKE_TURNS_IN"
"""Where the locks are by which the processes take turns; not there if there is only one."""


def tell_less(send: Callable[..., None]) -> Callable[..., None]:
    """How a process sends only what is shown: to send and to read all six messages about a test that passed takes
    longer than most tests, 2 ms."""

    def send_what_is_shown(name: str, **values: Any) -> None:
        if name in ("logstart", "logfinish"):
            return
        if name == "testreport" and (report := values["data"])["outcome"] == "passed":
            if report["when"] != "call" and not report["sections"]:
                return
            report["keywords"] = {}  # a dozen for each test, which nothing looks at if it was not skipped
        send(name, **values)

    return send_what_is_shown


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        asked = config.option
        if asked.verbose <= 0 and asked.durations is None and asked.xmlpath is None:
            for plugin in config.pluginmanager.get_plugins():
                if type(plugin).__name__ == "WorkerInteractor":
                    plugin.sendevent = tell_less(plugin.sendevent)
        return
    if config.getoption("numprocesses", None):
        os.environ[ROOM] = tempfile.mkdtemp(prefix="grid-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and (room := os.environ.pop(ROOM, "")):
        shutil.rmtree(room, ignore_errors=True)


_machine: list[contextlib.ExitStack] = []
"""What this process holds as long as its tests are alone: nothing or the one lock of the machine."""


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the time limit: who waits for its turn does nothing wrong
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """One that is alone waits until no other test runs, and holds up those to come until the last of its group is over;
    the others run side by side."""
    if ROOM not in os.environ:
        return (yield)
    if together(item.nodeid) != ALONE:
        with contextlib.ExitStack() as room:
            with _locked("gate"):  # is shut as long as somebody is alone, or waits to be
                room.enter_context(_locked("room", fcntl.LOCK_SH))
            return (yield)
    if not _machine:
        machine = contextlib.ExitStack()
        machine.enter_context(_locked("gate"))
        machine.enter_context(_locked("room"))
        _machine.append(machine)
    try:
        return (yield)
    finally:
        if nextitem is None or together(nextitem.nodeid) != ALONE:
            _machine.pop().close()


@contextlib.contextmanager
def _locked(name: str, how: int = fcntl.LOCK_EX) -> Iterator[IO[str]]:
    with open(Path(os.environ[ROOM], name), "w") as file:
        fcntl.flock(file, how)
        try:
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing does not do it while a child that was forked has it open
