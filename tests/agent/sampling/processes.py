"""Real processes that spend what a test asks for, and probes that look at them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from distributed_grid.agent.gpus.backends import open_backend
from distributed_grid.agent.sampling import host
from distributed_grid.agent.sampling.probe import Probe

BURN = "while True: pass"


CORE = max(host.usable_cores())


def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for one in started:
        os.killpg(one.pid, signal.SIGKILL)
        one.communicate()


def probe(own: tuple[int, ...] = (), **more: Any) -> Probe:
    return Probe(None, 0, open_backend("none"), own_roots=lambda: own, **more)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.02)
