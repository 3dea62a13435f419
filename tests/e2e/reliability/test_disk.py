"""The coordinator's disk fills up, fails, or becomes read-only while jobs run, on real disks: new jobs are refused at
once and in words, what runs goes on, results are not lost, and it is over without a restart."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from distributed_grid.coordinator.client import GridClient, RequestRefused, ShippingError
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import Status
from tests.e2e.scenes import Scene
from tests.grid_fixture import GRID

MIB = 1 << 20
RUNNING = 3


def command(*words: str) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs the program {words[0]}")
    subprocess.run(words, check=True, capture_output=True, timeout=60)


@contextmanager
def mounted(place: Path, *words: str) -> Iterator[Path]:
    """Mount a separate disk at `place`."""
    place.mkdir(exist_ok=True)
    try:
        command("mount", *words, str(place))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine lets nobody mount a disk: {error.stderr.decode().strip()}")
    try:
        yield place
    finally:
        # A mount namespace that another test made meanwhile has the disk, too: to wait for its end would take long.
        command("umount", "--lazy", str(place))


def fill(place: Path, size: int = 1 << 40) -> Path:
    """Use up the free space, or `size` bytes."""
    file = place / f"fill{len(list(place.glob('fill*')))}"
    with suppress(OSError), file.open("wb", buffering=0) as out:
        for step in (MIB, 4096, 1):
            with suppress(OSError):
                while out.tell() < size:
                    out.write(bytes(step))
    return file


@asynccontextmanager
async def at_work(place: Path) -> AsyncIterator[tuple[Scene, GridClient]]:
    """A grid whose coordinator keeps its state on the disk that is mounted there; its node has room for three jobs."""
    grid = Scene(place)
    try:
        await grid.coordinator()
        await grid.agent("n1", cores=list(range(RUNNING)), virtual=True)
        async with GridClient(grid.url) as client:
            yield grid, client
        assert "Traceback" not in (place / "coordinator.log").read_text()
    finally:
        grid.end()


@pytest.fixture
def place() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="grid-"))
    yield made
    shutil.rmtree(made)


class Jobs:
    """Jobs that note their start, run until they are let go, and exit with a code of their own; some more wait."""

    def __init__(self, grid: Scene, client: GridClient) -> None:
        self.grid, self.client = grid, client
        self.ids: list[str] = []

    async def submit(self, count: int) -> None:
        for number in range(len(self.ids), len(self.ids) + count):
            go, start = self.grid.place / f"go{number}", self.grid.place / f"start{number}"
            script = f"echo start >> {start}; while [ ! -e {go} ]; do sleep 0.05; done; exit {number + 10}"
            self.ids.append(await self.client.submit(["sh", "-c", script]))

    async def run(self, running: int, waiting: int) -> None:
        """Let this many jobs run and this many wait, until that is on disk."""

        async def are_running() -> bool:
            return len(await self.client.jobs(states=[State.RUNNING])) == running

        await self.submit(running)
        await self.grid.until(are_running, f"{running} jobs run")
        # That a job runs is told a moment before it is stored; what is submitted then is acknowledged after both are.
        await self.submit(waiting)

    def let_go(self, *numbers: int) -> None:
        for number in numbers:
            (self.grid.place / f"go{number}").touch()

    async def all_end_well(self) -> None:
        for number, job in enumerate(self.ids):
            view = await asyncio.wait_for(self.client.wait(job), 60)
            assert view.outcome is not None and view.outcome.code == number + 10, view
            assert (self.grid.place / f"start{number}").read_text() == "start\n"


async def trouble(client: GridClient) -> str:
    status: Status = await client.status()
    return status.trouble


async def in_trouble(grid: Scene, client: GridClient) -> str:
    said: str = await grid.until(lambda: trouble(client), "the trouble is seen")
    return said


async def well_again(grid: Scene, client: GridClient) -> None:
    async def over() -> bool:
        return not await trouble(client)

    await grid.until(over, "the trouble is over")


async def orders_are_refused(grid: Scene, client: GridClient, job: str, words: str) -> None:
    """Check the refusal to the client, and to the command, which does not wait for recovery."""
    with pytest.raises(RequestRefused) as caught:
        await client.submit(["true"])
    assert caught.value.code == "unavailable" and words in caught.value.why
    with pytest.raises(RequestRefused):
        await client.cancel(job)
    with pytest.raises(ShippingError) as unshipped:
        await client.ship(grid.place / "here")
    assert "no new jobs" in unshipped.value.why and "changing" not in unshipped.value.why
    environment = os.environ | {"GRID_COORDINATOR": grid.url}
    run = subprocess.run(
        [*GRID, "run-shared", "--no-ship", "true"], capture_output=True, text=True, env=environment, timeout=60
    )
    assert (run.returncode, run.stdout) == (125, "")
    lines = run.stderr.splitlines()
    assert [line.split(":")[0].strip() for line in lines] == ["error", "why", "try"] and words in lines[1]
    status = subprocess.run([*GRID, "status"], capture_output=True, text=True, env=environment, timeout=60)
    assert status.returncode == 0 and "! no new jobs are taken" in status.stdout and words in status.stdout


def shipped(place: Path) -> None:
    (place / "here").mkdir()
    (place / "here" / "file").write_bytes(os.urandom(100_000))


@pytest.mark.root
async def test_a_full_disk_stops_new_jobs_and_nothing_else(place: Path) -> None:
    shipped(place)
    with mounted(place / "coordinator", "-t", "tmpfs", "-o", "size=48m", "none") as disk:
        async with at_work(place) as (grid, client):
            jobs = Jobs(grid, client)
            await jobs.run(RUNNING, waiting=2)
            fill(disk)
            with pytest.raises(ShippingError) as unshipped:
                await client.ship(place / "here")
            assert "No space left on device" in unshipped.value.why
            assert list((disk / "blobs" / "arriving").iterdir()) == []
            jobs.let_go(0)
            assert "no space left" in await in_trouble(grid, client)
            view = await asyncio.wait_for(client.wait(jobs.ids[0]), 60)
            assert view.outcome is not None and view.outcome.code == 10, "the reserve is there for results"
            await orders_are_refused(grid, client, jobs.ids[1], "no space left")
            fill(disk)
            jobs.let_go(1)
            await grid.until(lambda: exited(grid, 1), "the second job is over")
            assert (await client.show(jobs.ids[1])).state is State.RUNNING, "what is not on disk is not told"
            assert (await client.show(jobs.ids[4])).state is State.WAITING, "nothing new is started"
            for file in disk.glob("fill*"):
                file.unlink()
            await well_again(grid, client)
            jobs.let_go(*range(RUNNING + 2))
            await jobs.all_end_well()
            bundle = await client.ship(place / "here")
            assert len((await client.run(["cat", "file"], bundle=bundle)).stdout_bytes) == 100_000
            assert (await client.status()).epoch == 1, "it was not restarted"


@pytest.mark.root
async def test_a_coordinator_that_is_killed_on_a_full_disk_comes_back_and_takes_the_results(place: Path) -> None:
    with mounted(place / "coordinator", "-t", "tmpfs", "-o", "size=48m", "none") as disk:
        async with at_work(place) as (grid, client):
            jobs = Jobs(grid, client)
            await jobs.run(RUNNING, waiting=1)
            file = fill(disk)
            grid.kill("coordinator")
            jobs.let_go(0)
            await grid.coordinator()
            assert "are needed for new jobs" in await in_trouble(grid, client)
            view = await asyncio.wait_for(client.wait(jobs.ids[0]), 60)
            assert view.outcome is not None and view.outcome.code == 10
            with pytest.raises(RequestRefused):
                await client.submit(["true"])
            assert (await client.show(jobs.ids[RUNNING])).state is State.WAITING
            file.unlink()
            await well_again(grid, client)
            jobs.let_go(*range(RUNNING + 1))
            await jobs.all_end_well()


def exited(grid: Scene, number: int) -> bool:
    """Whether no process of this job is left."""
    word = f"go{number}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if f"{grid.place}/".encode() + word in (entry / "cmdline").read_bytes():
                    return False
    return True


@contextmanager
def thin(place: Path) -> Iterator[Callable[[], None]]:
    """A disk at `place`/coordinator that has promised more room than there is below it: once that is used up, syncs
    fail as on a broken device. What is yielded gives it room."""
    with mounted(place / "below", "-t", "tmpfs", "-o", "size=72m", "none") as below:
        image = below / "image"
        with image.open("wb") as file:
            file.truncate(64 * MIB)
        # Without a journal, and going on after errors: otherwise it is read-only until it is mounted again.
        command("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(image))
        with mounted(place / "coordinator", "-o", "loop,errors=continue", str(image)):

            def give_room() -> None:
                for file in below.glob("fill*"):
                    file.unlink()

            yield give_room


@pytest.mark.root
async def test_a_failing_disk_is_tried_until_it_takes_everything(place: Path) -> None:
    shipped(place)
    with thin(place) as mend:
        async with at_work(place) as (grid, client):
            jobs = Jobs(grid, client)
            await jobs.run(RUNNING, waiting=2)
            fill(place / "below")
            jobs.let_go(0, 1)
            assert "the disk fails" in await in_trouble(grid, client)
            await orders_are_refused(grid, client, jobs.ids[2], "the disk fails")
            started = len(list(place.glob("start*")))
            jobs.let_go(2)
            await grid.until(lambda: exited(grid, 2), "the third job is over")
            assert (await client.show(jobs.ids[2])).state is State.RUNNING, "what is not on disk is not told"
            assert len(list(place.glob("start*"))) == started, "nothing new is started"
            mend()
            await well_again(grid, client)
            jobs.let_go(*range(RUNNING + 2))
            await jobs.all_end_well()
            assert (await client.status()).epoch == 1, "it was not restarted"


@pytest.mark.root
async def test_a_store_that_may_not_be_written_for_a_while_is_waited_for(place: Path) -> None:
    shipped(place)
    image = place / "image"
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    command("mkfs.ext4", "-q", "-m", "0", str(image))
    with mounted(place / "coordinator", "-o", "loop", str(image)) as disk:
        files = [str(disk / name) for name in ("grid.db", "grid.db-wal")]
        async with at_work(place) as (grid, client):
            jobs = Jobs(grid, client)
            await jobs.run(RUNNING, waiting=2)
            command("chattr", "+i", *files)  # a disk that is in use is not made read-only but by its own failure
            try:
                jobs.let_go(0, 1)
                await grid.until(lambda: says(client, "cannot be written"), "that is seen")
                await orders_are_refused(grid, client, jobs.ids[2], "readonly")
            finally:
                command("chattr", "-i", *files)
            await well_again(grid, client)
            jobs.let_go(*range(RUNNING + 2))
            await jobs.all_end_well()
            assert (await client.status()).epoch == 1, "it was not restarted"


async def says(client: GridClient, words: str) -> bool:
    return words in await trouble(client)


# Alone: jobs of other tests would keep the disk mounted in namespaces of theirs, where mounts are private.
@pytest.mark.root
async def test_a_disk_that_its_errors_made_read_only_loses_nothing_until_it_is_mended(place: Path) -> None:
    image = place / "image"
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    command("mkfs.ext4", "-q", "-m", "0", str(image))
    disk = place / "coordinator"
    grid = Scene(place)
    try:
        with mounted(disk, "-o", "loop,errors=remount-ro", str(image)):
            switch = Path("/sys/fs/ext4", device(disk), "trigger_fs_error")
            if not switch.exists():
                pytest.skip("this kernel cannot be told that a disk has failed")
            await grid.coordinator()
            await grid.agent("n1", cores=list(range(RUNNING)), virtual=True)
            async with GridClient(grid.url) as client:
                jobs = Jobs(grid, client)
                await jobs.run(RUNNING, waiting=2)
                switch.write_text("1")
                jobs.let_go(0, 1)
                await in_trouble(grid, client)
                with pytest.raises(RequestRefused):
                    await client.submit(["true"])
                grid.parts["coordinator"].terminate()
                assert await asyncio.to_thread(grid.parts["coordinator"].wait, 30) == 1
                assert "cannot be written" in (place / "coordinator.log").read_text().splitlines()[-3]
        mended = subprocess.run(["fsck.ext4", "-fy", str(image)], capture_output=True, timeout=60)
        assert mended.returncode in (0, 1)
        with mounted(disk, "-o", "loop", str(image)):
            await grid.coordinator()
            async with GridClient(grid.url) as client:
                jobs.client = client
                jobs.let_go(*range(RUNNING + 2))
                await jobs.all_end_well()
            grid.kill("coordinator")
    finally:
        grid.end()


def device(place: Path) -> str:
    number = os.stat(place).st_dev
    return Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name


@pytest.mark.root
def test_a_start_on_a_full_or_read_only_disk_ends_with_the_reason(place: Path) -> None:
    def start() -> "subprocess.CompletedProcess[str]":
        words = [*GRID, "coordinator", "run", "--port", "0", "--state-dir", str(place / "coordinator" / "state")]
        return subprocess.run(words, capture_output=True, text=True, timeout=60)

    with mounted(place / "coordinator", "-t", "tmpfs", "-o", "size=1m", "none") as disk:
        fill(disk)
        failed = start()
        assert failed.returncode == 1 and failed.stderr.startswith("error: ") and "Traceback" not in failed.stderr
        assert "no space left" in failed.stderr.lower() and "try: " in failed.stderr
        command("mount", "-o", "remount,ro", str(disk))
        failed = start()
        assert failed.returncode == 1 and "Read-only file system" in failed.stderr and "try: " in failed.stderr
        assert len(failed.stderr.splitlines()) == 3
