"""What all tests share: a marked test runs where the machine has what it needs, and else says what is missing."""

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    # Without bytecode on disk each process of pytest's rewrites the assertions of all that it collects: for 3,800 tests
    # 10 s of CPU time, and else 3. `make test` does not hand the variable on either. This comes before hypothesis is
    # imported: that is a plugin of pytest's, whose 80 modules are rewritten as well.
    sys.dont_write_bytecode = False

import hypothesis
import pytest
import structlog
from hypothesis.internal.conjecture import providers

from distributed_grid.runtime import beneath
from tests.depth import DEEP, tries
from tests.side_by_side import (  # noqa: F401 (hooks)
    pytest_cmdline_main,
    pytest_collection,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_runtest_protocol,
    pytest_unconfigure,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
    pytest_xdist_setupnodes,
)
from tests.slurm import daemons
from tests.systemd import booted

ROOT = Path(__file__).parents[1]

hypothesis.settings.register_profile(
    "grid",
    # Examples that are drawn anew in each run turn away a change that has nothing to do with them: `make deep` looks
    # for new ones, and the suite tries the same ones in each run.
    derandomize=not DEEP,
    # Where a test says nothing else.
    max_examples=tries(100, 40),
    # Else an example that takes more than 200 ms fails, and so does a machine that is busy while they are made up.
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("grid")

if not DEEP:
    # Hypothesis also tries numbers and strings that are in modules of ours: in those that are imported by then, which
    # differ with the tests that ran before, and so would the examples. To look for them takes each process 3 s.
    pytest.MonkeyPatch().setattr(providers, "_get_local_constants", lambda: providers._local_constants, raising=False)

for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    # A run under nohup, or behind `&` of a shell, ignores these, and so would all that tests start and signal: who
    # has a handler ignores them just as well, and its children begin without one.
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)

os.umask(0o022)
"""Tests look at the permissions that files get, and a configuration that all can write is refused: with the umask of
whoever runs them (0, or 077) they would fail."""

os.environ["GRID_AGENT__NICE"] = "0"
"""Jobs give way to all else on the machine, and what that does is no part of a test's scene: here they are equals."""


@functools.cache
def lacks(marker: str) -> str | None:
    """Say what this machine lacks for tests with that marker; None where nothing is missing."""
    if marker in ("root", "netns") and os.geteuid() != 0:
        return "needs to be root"
    if marker == "netns" and shutil.which("ip") is None:
        return "needs the ip program (Debian: iproute2)"
    if marker == "netns" and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
        return "needs network namespaces, which this kernel or container refuses"
    if marker == "ray" and importlib.util.find_spec("ray") is None:
        return "needs the ray package"
    if marker == "long_ray" and not (DEEP or os.environ.get("GRID_RAY")):
        return "takes minutes: make ray runs it"
    if marker == "gpu" and not Path("/dev/nvidiactl").exists():
        return "needs an NVIDIA GPU"
    if marker == "kernel" and shutil.which("linux.uml") is None:
        return "needs a kernel to start (Debian: user-mode-linux)"
    if marker == "systemd":
        return booted.lacking() or None
    if marker == "slurm":
        return daemons.missing() or (None if os.environ.get("GRID_SLURM") else "takes minutes: make slurm runs it")
    return None


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel, built once for all tests that install it."""
    return booted.built(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with our wheel in it, which borrows only its dependencies from the one that runs the tests. Nobody
    changes it."""
    return booted.installed(wheel, tmp_path_factory.mktemp("installed") / "home")


@pytest.fixture
def few_inodes() -> Iterator[Callable[[Path, int], Path]]:
    """Return a function that mounts a disk with this many inodes over a directory (the root counts), and returns
    that."""
    made: list[Path] = []

    def mount(place: Path, inodes: int) -> Path:
        place.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size=1m,nr_inodes={inodes}", "none", str(place)]
        if os.geteuid() or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a file system needs root")
        made.append(place)
        return place

    yield mount
    for place in made:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Path]:
    """A file that never ends, as /dev/zero: a pipe with 2,000 bytes in it that is never closed. Reading more waits for
    ever."""
    os.mkfifo(place := tmp_path / "endless.yaml")
    writer = os.open(place, os.O_RDWR)
    os.write(writer, b"\n" * 2000)
    yield place
    os.close(writer)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers():
        if (why := lacks(mark.name)) is not None:
            pytest.skip(why)


_left = pytest.StashKey[float]()
"""Seconds of the time limit that a test had left when a part of it was over."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The time limit stands still while it is told how a part of a test ended, until the next part begins: where its
    alarm came then, on a busy machine, it was an error of pytest itself, and ended the whole run."""
    item.stash[_left], _ = signal.setitimer(signal.ITIMER_REAL, 0)
    return (yield)


def _goes_on(item: pytest.Item) -> None:
    if left := item.stash.get(_left, 0.0):
        signal.setitimer(signal.ITIMER_REAL, left)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    _goes_on(item)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """A service that a test ran in this process said how it logs; the next test may look for what is logged. Not a
    fixture: one for each test takes 0.2 ms."""
    _goes_on(item)
    try:
        return (yield)
    finally:
        if structlog.get_config() != _plain_logs:
            _log_plainly()


@pytest.fixture(params=["openat2", "steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to open a path below a directory: by the kernel, and as on a kernel that cannot."""
    if request.param == "openat2" and not beneath.openat2_works():
        pytest.skip("this kernel has no openat2, or a seccomp filter refuses it")
    monkeypatch.setattr(beneath, "_has_openat2", request.param == "openat2")
    return str(request.param)


*_before, _ = structlog.get_config()["processors"]
_plain = [*_before, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]


def _log_plainly() -> None:
    """Log as structlog does by itself, but for tracebacks: with each local variable of each frame, as rich has them,
    one takes a second of CPU time."""
    structlog.reset_defaults()
    structlog.configure(processors=[*_plain])  # a list that captures what is logged is changed in place


_log_plainly()
_plain_logs = structlog.get_config() | {"processors": _plain}
