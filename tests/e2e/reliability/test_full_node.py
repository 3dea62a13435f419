"""One node of two has a full disk: all jobs run on the other, nothing fails, and `shared` says why. Once there is room
it lends again, without a restart."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributed_grid.coordinator.client import GridClient
from tests.e2e.reliability.test_disk import fill
from tests.e2e.scenes import Scene


@pytest.fixture
def grid() -> Iterator[Scene]:
    """Node n1 has a disk of its own, of 24 MiB."""
    place = Path(tempfile.mkdtemp(prefix="grid-"))
    (place / "n1").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(place / "n1")]
    try:
        if os.geteuid() or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a file system needs root")
        made = Scene(place)
        try:
            yield made
        finally:
            made.end()
            subprocess.run(["umount", "--lazy", str(place / "n1")], check=True)
    finally:
        shutil.rmtree(place)


async def test_jobs_go_to_the_other_node_until_there_is_room_again(grid: Scene) -> None:
    await grid.coordinator()
    await grid.agent("n1", cores=[0, 1, 2, 3], virtual=True)
    await grid.agent("n2", cores=[0], virtual=True)
    others = fill(grid.place / "n1")
    async with GridClient(grid.url) as client:
        jobs = [await client.submit(["sh", "-c", "exit 7", "x" * 5000]) for _ in range(8)]
        views = [await client.wait(job) for job in jobs]
        assert [(view.outcome.code, view.node) for view in views if view.outcome] == [(7, "n2")] * 8

        async def said() -> bool:
            withheld = (await client.shared("n1")).offers[0].withheld
            return [one.why.partition(":")[0] for one in withheld] == ["disk full"]

        await grid.until(said, "n1 says why it offers nothing")
        others.unlink()
        await grid.until(lambda: grid.offers("n1"), "n1 offers again")
        views = [await client.wait(await client.submit(["true"])) for _ in range(8)]
        assert {view.outcome.code for view in views if view.outcome} == {0}
    assert "Traceback" not in (grid.place / "n1.log").read_text()
