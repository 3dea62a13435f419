"""A node whose disk is full or read-only, on a real one: it declines jobs and offers nothing, what runs goes on and its
end is told, and it takes jobs again by itself once it can write."""

import errno
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from distributed_grid.agent.data import disk
from distributed_grid.agent.data.disk import Disk
from distributed_grid.protocol.messages import Exited, Offer, Stale, Started
from tests.agent.scene import Coordinator, Node, clean, coordinator, ended, launch, open_gate, start

__all__ = ["coordinator"]

MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(place)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a file system needs root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_filesystem_with_any_number_of_inodes_or_of_unknown_size_is_not_full(small: Path) -> None:
    """That of btrfs and many in FUSE is 0, of which 0 are free."""
    subprocess.run(["mount", "-o", "remount,nr_inodes=0", str(small)], check=True)
    seen = os.statvfs(small)
    assert (seen.f_files, seen.f_favail) == (0, 0)
    assert disk._free(small) == seen.f_bavail * seen.f_frsize > disk.LEAST_FREE
    assert os.statvfs("/proc").f_blocks == 0
    assert disk._free(Path("/proc")) >= disk.LEAST_FREE


def fill(place: Path) -> Path:
    """Use up what is free to the last byte."""
    file = place / "others"
    with file.open("wb", buffering=0) as out:
        for step in (MIB, 4096):
            with suppress(OSError):
                while True:
                    out.write(bytes(step))
    return file


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """Lay the same disk over itself, read-only: what is open stays, as when a file system fails."""
    subprocess.run(["mount", "--bind", str(place), str(place)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
async def node(coordinator: Coordinator, small: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(disk, "CHECK_INTERVAL", 0.2)
    monkeypatch.setattr(disk, "RETRY_INTERVAL", 0.2)
    one = Node(small, f"ws://127.0.0.1:{coordinator.port}")
    await coordinator.connected()
    yield one
    await one.stop()
    await clean(small)


async def withheld(coordinator: Coordinator) -> str:
    """Why the node offers nothing, once it does not."""

    def why() -> str:
        offer = coordinator.all(Offer)[-1]
        return "" if offer.resources or not offer.withheld else offer.withheld[0].why

    await coordinator.until(lambda: why().startswith("disk"))
    return why()


async def offered(coordinator: Coordinator) -> None:
    await coordinator.until(lambda: bool(coordinator.all(Offer)[-1].resources))


async def test_a_full_disk_declines_jobs_keeps_what_runs_and_takes_jobs_again_when_there_is_room(
    coordinator: Coordinator, node: Node, small: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    await coordinator.say(launch("j0.1", "sh", "-c", f"read x < {gate}; exit 6"))
    await coordinator.hears(Started, "j0.1")
    await offered(coordinator)
    others = fill(small)
    assert (await withheld(coordinator)).startswith("disk full: No space left on device")
    await coordinator.say(launch("j1.1"))
    assert "disk full" in (await coordinator.hears(Stale, "j1.1")).reason
    await open_gate(gate)
    assert (await coordinator.hears(Exited, "j0.1")).outcome.code == 6
    others.unlink()
    await offered(coordinator)
    await coordinator.say(launch("j1.1"), launch("j2.1"))
    assert (await coordinator.hears(Exited, "j2.1")).outcome.code == 0
    assert not coordinator.all(Exited, "j1.1")  # by now it may run elsewhere


async def test_a_disk_that_becomes_read_only_declines_jobs_until_it_is_not(
    coordinator: Coordinator, node: Node, small: Path
) -> None:
    await offered(coordinator)
    with read_only(small):
        assert (await withheld(coordinator)).startswith("disk read-only")
        await coordinator.say(launch("j0.1"))
        assert "disk read-only" in (await coordinator.hears(Stale, "j0.1")).reason
    await offered(coordinator)
    await coordinator.say(launch("j1.1"))
    assert (await coordinator.hears(Exited, "j1.1")).outcome.code == 0


async def test_a_job_that_finds_the_disk_full_first_is_declined_and_not_failed(
    coordinator: Coordinator, node: Node, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await offered(coordinator)
    monkeypatch.setattr(node.runtime._disk, "_try", lambda: None)  # it is seen by nobody else
    others = fill(small)
    await coordinator.say(launch("j0.1", "true", "x" * 5000))
    assert "disk full" in (await coordinator.hears(Stale, "j0.1")).reason
    others.unlink()
    await coordinator.until(lambda: not node.runtime._disk.trouble)
    await coordinator.say(launch("j1.1"))
    assert (await coordinator.hears(Exited, "j1.1")).outcome.code == 0


async def test_trouble_is_told_once_and_its_end_too(tmp_path: Path) -> None:
    told: list[str] = []
    one = Disk(tmp_path / "gone", lambda: told.append(one.trouble))
    await one.check()
    await one.check()
    (tmp_path / "gone").mkdir()
    await one.check()
    assert told == [f"disk failing: No such file or directory in {tmp_path / 'gone'}", ""]
    assert one.failed(OSError(errno.EIO, "Input/output error")).startswith("disk failing: Input/output error")
    assert not os.listdir(tmp_path / "gone")


@pytest.mark.parametrize("trouble", ["full", "read-only"])
async def test_an_agent_that_is_started_on_such_a_disk_says_so_in_three_lines(small: Path, trouble: str) -> None:
    fill(small)
    with read_only(small) if trouble == "read-only" else nullcontext():
        code, errors = await ended(start(small, "ws://127.0.0.1:1"))
    lines = errors.splitlines()
    assert code == 1 and lines[0] == f"error: the state directory {small} cannot be written"
    assert len(lines) == 3 and ("No space" in lines[1] or "Read-only" in lines[1])
