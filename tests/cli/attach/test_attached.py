"""Following a job in this process, against a real coordinator in a thread: its output is ours, and its end, too."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from structlog.testing import capture_logs

from distributed_grid.cli.attach.attached import FDS, Attached
from distributed_grid.cli.context import Invocation, client
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.coordinator.client.submission import describe_job
from distributed_grid.coordinator.net import listener
from distributed_grid.protocol.jobs import Cause, Outcome
from tests.coordinator.client.test_aio import ends_with
from tests.coordinator.ends import agent, coordinator

ENDED = Outcome(Cause.EXITED, code=7, stdout_size=4, stdout_tail=b"out\n", stderr_size=4, stderr_tail=b"err\n")


@contextmanager
def grid_aside(tmp_path: Path, **plays: Any) -> Iterator[str]:
    """The address of a coordinator with one agent, in a thread."""
    ready, urls, over = threading.Event(), list[str](), list[Any]()

    async def serve() -> None:
        # stdout is the job's. Commands leave their connections to the end of their process, which here is ours: that no
        # answer comes when the coordinator closes them need not be waited for.
        with capture_logs(), mock.patch.object(listener, "CLOSE_SECONDS", 0.1):
            await played()

    async def played() -> None:
        async with coordinator(tmp_path) as grid:
            worker = await agent(grid.url, **plays)
            end = asyncio.Event()
            urls.append(grid.url)
            over.extend((asyncio.get_running_loop(), end))
            ready.set()
            await end.wait()
            await worker.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    try:
        yield urls[0]
    finally:
        over[0].call_soon_threadsafe(over[1].set)
        thread.join()


def test_the_output_and_the_exit_code_of_a_job_are_ours(tmp_path: Path, capfdbinary: Any) -> None:
    with grid_aside(tmp_path, runs=ends_with(ENDED)) as url:
        attached = Attached(Invocation(), client(url).connect(), submission=describe_job("make"))
        assert attached.run() == 7
        assert capfdbinary.readouterr() == (b"out\n", b"err\n")


def test_a_job_that_nobody_knows_is_no_job_to_follow(tmp_path: Path) -> None:
    with grid_aside(tmp_path) as url, pytest.raises(RequestRefused, match="no job"):
        Attached(Invocation(), client(url).connect(), job="nobody").run()


def test_output_that_finds_a_full_disk_is_a_failure_of_the_grid_also_of_a_job_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    outcome = Outcome(Cause.EXITED, stdout_size=4, stdout_tail=b"out\n")
    with grid_aside(tmp_path, runs=ends_with(outcome)) as url, open("/dev/full", "wb") as full:
        monkeypatch.setenv("GRID_EXIT_ERROR", "99")
        monkeypatch.setitem(FDS, "stdout", full.fileno())
        attached = Attached(Invocation(), client(url).connect(), submission=describe_job("make"))
        assert attached.run() == 99
        assert f"the stdout of {attached.job} cannot be written: No space left on device" in capfd.readouterr().err
