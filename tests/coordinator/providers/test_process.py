"""Machines as processes: created once however often, listed, ended with all that is theirs. Real processes, without a
coordinator: they do not join."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.scaling.state import Answer
from distributed_grid.coordinator.providers.base import ProviderRefused
from distributed_grid.coordinator.providers.process import PID_FILE, ProcessProvider, _lives, _processes
from tests.coordinator.providers.leaks import leak_free
from tests.coordinator.providers.scene import LONGEST, SPEC
from tests.depth import tries
from tests.grid_fixture import until


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[ProcessProvider]:
    one = ProcessProvider("g1", {"directory": str(tmp_path)})
    try:
        yield one
    finally:
        for found in one.list_workers():
            one.terminate_worker(found.name)


SLOW = replace(SPEC, url="ws://127.0.0.1:9", ends_by=time.time() + 3600, born=5.0, type="x")


def test_it_is_created_once_and_ended_whole(provider: ProcessProvider, tmp_path: Path) -> None:
    assert provider.create_worker(SLOW) == provider.create_worker(SLOW) == "a-1-1"
    assert [(one.name, one.pool, one.type, one.born) for one in provider.list_workers()] == [("a-1-1", "a", "x", 5.0)]
    assert provider.terminate_worker("a-1-1") is True
    assert _processes(tmp_path / "g1" / "a-1-1") == [] and provider.list_workers() == []


def test_the_longest_name_of_a_machine_is_that_of_its_directory(provider: ProcessProvider) -> None:
    """Sockets of its agent lie in there, whose paths may not be as long."""
    provider.create_worker(replace(SLOW, name=LONGEST))
    assert [one.name for one in provider.list_workers()] == [LONGEST]
    assert provider.terminate_worker(LONGEST) is True and provider.list_workers() == []


def test_one_that_was_ended_is_not_created_by_a_late_call(provider: ProcessProvider) -> None:
    assert provider.terminate_worker("a-1-1") is False
    with pytest.raises(ProviderRefused, match="has ended") as refused:
        provider.create_worker(SLOW)
    assert refused.value.answer is Answer.REFUSED and provider.list_workers() == []


def test_what_a_killed_machine_leaves_is_listed_and_ended(provider: ProcessProvider, tmp_path: Path) -> None:
    provider.create_worker(SLOW)
    folder = tmp_path / "g1" / "a-1-1"
    os.kill(int((folder / "ready").read_text()), signal.SIGKILL)
    provider.terminate_worker("a-1-1")
    assert _processes(folder) == []


def test_a_killed_machine_that_had_jobs_is_told_as_failed_until_they_are_ended(
    provider: ProcessProvider, tmp_path: Path
) -> None:
    provider.create_worker(SLOW)
    folder = tmp_path / "g1" / "a-1-1"
    (folder / "agent").mkdir(exist_ok=True)
    (folder / "agent" / PID_FILE).touch()
    assert [one.failed for one in provider.list_workers()] == [False]

    def killed() -> bool:
        for pid in (left := _processes(folder)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left and not _lives(folder)  # one that is being killed has lost its words, and not yet its lock

    until(killed, "all of it is gone")
    assert [(one.failed, one.why) for one in provider.list_workers()] == [(True, "its processes were killed")]
    (folder / "gone").touch()
    assert provider.list_workers() == []


def test_what_only_names_a_file_of_a_machine_is_no_part_of_it(provider: ProcessProvider, tmp_path: Path) -> None:
    provider.create_worker(SLOW)
    folder = tmp_path / "g1" / "a-1-1"
    with subprocess.Popen(["tail", "-f", str(folder / "log")], stdout=subprocess.DEVNULL) as reader:
        try:
            assert reader.pid not in _processes(folder)
            assert provider.terminate_worker("a-1-1") is True
            assert reader.poll() is None, "whoever reads its log is left alone"
        finally:
            reader.kill()


def test_a_name_cannot_leave_the_directory(provider: ProcessProvider) -> None:
    for name in ("../g2/a-1-1", "", "."):
        with pytest.raises(ProviderRefused, match="cannot be called"):
            provider.terminate_worker(name)


def test_two_grids_in_one_directory_never_touch_each_others_machines(tmp_path: Path) -> None:
    mine, other = (ProcessProvider(grid, {"directory": str(tmp_path)}) for grid in ("g1", "g2"))
    try:
        mine.create_worker(SLOW)
        assert other.list_workers() == [] and other.terminate_worker(SLOW.name) is False
        assert other.get_worker_status(SLOW.name) == "gone"
        assert [one.name for one in mine.list_workers()] == [SLOW.name], "it still runs"
    finally:
        assert mine.terminate_worker(SLOW.name) is True


@pytest.mark.parametrize("seed", range(tries(2, 1)))
async def test_no_machine_is_lost_or_made_twice_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    grid = tmp_path / f"g{seed}"

    def there() -> list[str]:
        return sorted(one.name for one in grid.iterdir() if _processes(one)) if grid.exists() else []

    try:
        await leak_free("process", {"directory": str(tmp_path)}, there, seed)
    finally:
        provider = ProcessProvider(grid.name, {"directory": str(tmp_path)})
        for found in provider.list_workers():
            provider.terminate_worker(found.name)
    assert there() == []
