"""What ended jobs leave on a node goes by age, count and size; what lives stays. No clock that people set counts."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from distributed_grid.agent.data import disk
from distributed_grid.agent.data.disk import Bounds, Retention
from distributed_grid.agent.data.job_files import JobFiles
from distributed_grid.agent.launch import workdir
from distributed_grid.agent.launch.workdir import Place, SlotIndex
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import Stop
from distributed_grid.runtime.unix import boot_clock

KIB = 1 << 10
MUCH = 1 << 40


def keeper(state_dir: Path, bounds: Bounds, clock: Callable[[], float] = boot_clock) -> Retention:
    """What keeps the disk of this state directory bounded."""
    return Retention(state_dir, bounds, SlotIndex(state_dir), JobFiles(state_dir), clock)


def made(state_dir: Path, name: str) -> Path:
    """A working directory as agents before this one made it, in the folder of the allocation."""
    (path := workdir.folder(state_dir, name) / "workdir").mkdir(parents=True)
    return path


class Clock:
    """Seconds since boot, as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def leave(state_dir: Path, *names: str, size: int = 0, touched: float = 0.0) -> None:
    """What jobs of these ids leave: output of so many bytes."""
    for name in names:
        folder = made(state_dir, name).parent
        (folder / "stdout").write_bytes(b"x" * size)
        for path in (folder / "stdout", folder):
            os.utime(path, (touched, touched))


def of_users(state_dir: Path, *names: str) -> None:
    """These are of the users that their ids begin with."""
    index = SlotIndex(state_dir)
    for name in names:
        index.note(name, Place("", name.partition(".")[0]))
    index.close()


def left(state_dir: Path) -> list[str]:
    return sorted(os.listdir(state_dir / "allocs"))


async def test_without_any_job_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert await keeper(tmp_path, Bounds()).sweep(()) == 0


async def test_an_age_counts_from_when_the_end_was_seen_whatever_the_wall_clock_says(
    tmp_path: Path, clock: Clock
) -> None:
    kept = keeper(tmp_path, Bounds(days=1.0), clock)
    leave(tmp_path, "past.1", touched=0.0)
    leave(tmp_path, "future.1", touched=4e9)
    assert await kept.sweep(["future.1"]) == 0
    clock.now += 86000
    assert await kept.sweep(()) == 0
    clock.now += 401
    assert await kept.sweep(()) == 1
    assert left(tmp_path) == ["future.1"]
    clock.now += 86000
    assert await kept.sweep(()) == 1


async def test_the_oldest_beyond_the_count_go_and_living_ones_are_not_counted(tmp_path: Path, clock: Clock) -> None:
    kept = keeper(tmp_path, Bounds(jobs=2), clock)
    for age, name in enumerate(("a.1", "b.1", "c.1", "d.1")):
        leave(tmp_path, name, touched=1000.0 - age)
    assert await kept.sweep(["d.1"]) == 1
    assert left(tmp_path) == ["a.1", "b.1", "d.1"]
    leave(tmp_path, "e.1", touched=1.0)  # seen last, so it counts as the newest, though its time is an old one
    assert await kept.sweep(["d.1"]) == 1
    assert left(tmp_path) == ["a.1", "d.1", "e.1"]


async def test_the_oldest_beyond_the_size_go_until_the_rest_fits(tmp_path: Path, clock: Clock) -> None:
    kept = keeper(tmp_path, Bounds(size=500 * KIB), clock)
    for age, name in enumerate(("a.1", "b.1", "c.1", "d.1")):
        leave(tmp_path, name, size=200 * KIB, touched=1000.0 - age)
    await kept.sweep(["d.1"])
    assert left(tmp_path) == ["a.1", "b.1", "d.1"]
    (tmp_path / "allocs" / "d.1" / "workdir" / "deep").mkdir()
    (tmp_path / "allocs" / "d.1" / "workdir" / "deep" / "f").write_bytes(b"x" * 400 * KIB)
    await kept.sweep(())
    assert left(tmp_path) == []  # the newest alone is beyond it


async def test_who_has_much_drives_out_nothing_of_who_has_little(tmp_path: Path, clock: Clock) -> None:
    of_users(tmp_path, "ann.1", *(f"mallory.{number}" for number in range(1, 7)))
    leave(tmp_path, "ann.1", size=100 * KIB, touched=1.0)  # the oldest
    for number in range(1, 6):
        leave(tmp_path, f"mallory.{number}", touched=1.0 + number)
    assert await keeper(tmp_path, Bounds(jobs=3), clock).sweep(()) == 3
    assert left(tmp_path) == ["ann.1", "mallory.4", "mallory.5"]
    leave(tmp_path, "mallory.6", size=300 * KIB, touched=9.0)
    assert await keeper(tmp_path, Bounds(size=200 * KIB), clock).sweep(()) == 3
    assert left(tmp_path) == ["ann.1"]


@pytest.mark.root
async def test_what_ended_jobs_left_goes_where_the_disk_is_full(tmp_path: Path, clock: Clock) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", tmp_path], check=True)
    try:
        of_users(tmp_path, "small.1", "big.1")
        leave(tmp_path, "small.1", size=100 * KIB)
        leave(tmp_path, "big.1", size=60 << 20)
        kept = keeper(tmp_path, Bounds(), clock)
        assert await kept.sweep(["big.1"]) == 0  # what runs fills the disk: who left little keeps it
        assert await kept.sweep(()) == 1
        assert left(tmp_path) == ["small.1"]
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


@pytest.mark.root
async def test_what_has_most_files_goes_where_no_more_can_be_made(tmp_path: Path, clock: Clock) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=4096", "none", tmp_path], check=True)
    try:
        of_users(tmp_path, "large.1", "many.1")
        leave(tmp_path, "large.1", size=8 << 20)
        leave(tmp_path, "many.1")
        made = 0
        with contextlib.suppress(OSError):
            for made in range(4096):
                (tmp_path / "allocs" / "many.1" / str(made)).touch()
        assert made > 3000
        kept = keeper(tmp_path, Bounds(), clock)
        assert await kept.sweep(["many.1"]) == 0
        assert await kept.sweep(()) == 1
        assert left(tmp_path) == ["large.1"]
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


@pytest.mark.root
async def test_what_a_later_job_adds_to_an_earlier_ones_files_counts_where_the_disk_is_full(
    tmp_path: Path, clock: Clock
) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", tmp_path], check=True)
    try:
        slot = in_slot(tmp_path, "s1", "j-old.1", "j-new.1")
        kept = keeper(tmp_path, Bounds(), clock)
        assert await kept.sweep(["j-new.1"]) == 0
        (slot / "j-old.1" / "added").write_bytes(b"x" * (60 << 20))
        assert await kept.sweep(["j-new.1"]) == 1
        assert (left(tmp_path), os.listdir(slot)) == (["j-new.1"], ["j-new.1"])
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


async def test_a_hole_in_an_output_takes_no_room(tmp_path: Path, clock: Clock) -> None:
    leave(tmp_path, "a.1")
    os.truncate(tmp_path / "allocs" / "a.1" / "stdout", 1 << 30)
    assert await keeper(tmp_path, Bounds(size=100 * KIB), clock).sweep(()) == 0


async def test_what_was_measured_is_not_walked_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keeper(tmp_path, Bounds(), clock)
    leave(tmp_path, "a.1")
    await kept.sweep(())
    walked: list[str] = []

    def walk(path: str, each: int) -> int:
        walked.append(path)
        return 0

    monkeypatch.setattr(disk, "_bytes", walk)
    leave(tmp_path, "b.1")
    await kept.sweep(())
    await kept.sweep(())
    assert walked == [str(tmp_path / "allocs" / "b.1")]


async def test_what_takes_long_to_measure_does_not_hold_up_what_is_removed_by_count(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "MEASURING", 0.01)
    kept = keeper(tmp_path, Bounds(jobs=2, size=MUCH), clock)
    walked: list[str] = []

    def walk(path: str, each: int) -> int:
        walked.append(Path(path).name)
        time.sleep(2 * disk.MEASURING)
        return MUCH

    monkeypatch.setattr(disk, "_bytes", walk)
    for number, name in enumerate(("a.1", "b.1", "c.1", "d.1")):
        leave(tmp_path, name, touched=1.0 + number)
    assert (await kept.sweep(()), walked, left(tmp_path)) == (2, ["a.1"], ["c.1", "d.1"])
    assert (await kept.sweep(()), walked) == (0, ["a.1", "c.1"])
    assert (await kept.sweep(()), walked, left(tmp_path)) == (1, ["a.1", "c.1", "d.1"], ["d.1"])


async def test_what_begins_to_live_while_it_is_measured_stays(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    live: set[str] = set()

    def walk(path: str, each: int) -> int:
        live.add("a.1")
        return MUCH

    monkeypatch.setattr(disk, "_bytes", walk)
    leave(tmp_path, "a.1")
    assert await keeper(tmp_path, Bounds(), clock).sweep(live) == 0
    assert left(tmp_path) == ["a.1"]


async def test_the_loop_turns_while_folders_are_removed(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path, "a.1")
    removing, go_on = threading.Event(), threading.Event()

    def slow(allocs: int, name: str) -> None:
        removing.set()
        go_on.wait(60)
        remove(allocs, name)

    remove = disk._remove
    monkeypatch.setattr(disk, "_remove", slow)
    sweep = asyncio.create_task(keeper(tmp_path, Bounds(jobs=0), clock).sweep(()))
    assert await asyncio.to_thread(removing.wait, 60)
    made(tmp_path, "a.1")  # the same id once more is in nobody's way
    go_on.set()
    assert await sweep == 1
    assert left(tmp_path) == ["a.1"]


async def test_what_a_killed_agent_had_begun_to_remove_goes_too(tmp_path: Path, clock: Clock) -> None:
    leave(tmp_path, "a.1", "b.1")
    os.rename(tmp_path / "allocs" / "a.1", tmp_path / "allocs" / ".gone-a.1")
    assert await keeper(tmp_path, Bounds(), clock).sweep(()) == 0
    assert left(tmp_path) == ["b.1"]


async def test_a_sweep_follows_no_link_and_opens_what_a_job_closed(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "f").write_bytes(b"x" * 400 * KIB)
    target = made(tmp_path, "a.1")
    os.symlink(tmp_path / "keep", target / "link")
    (target / "closed").mkdir()
    (target / "closed" / "f").touch()
    (target / "closed").chmod(0)
    assert await keeper(tmp_path, Bounds(size=300 * KIB), clock).sweep(()) == 0
    assert await keeper(tmp_path, Bounds(jobs=0), clock).sweep(()) == 1
    assert left(tmp_path) == []
    assert (tmp_path / "keep" / "f").exists()


def in_slot(state_dir: Path, slot: str, *names: str) -> Path:
    """What lies in this slot's directory, each with a file; what has a dot in its name is an allocation's."""
    (spawners := state_dir / "spawners" / slot).parent.mkdir(exist_ok=True)
    spawners.touch()
    index = SlotIndex(state_dir)
    for name in names:
        (state_dir / "jobs" / slot / name).mkdir(parents=True)
        (state_dir / "jobs" / slot / name / "data").write_bytes(b"x" * KIB)
        if name.partition(".")[0]:
            leave(state_dir, name)
            index.note(name, Place(slot))
    index.close()
    return state_dir / "jobs" / slot


async def test_what_a_job_leaves_beside_its_directory_goes_at_the_second_sweep(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "outside").mkdir()
    slot = in_slot(tmp_path, "s1", "j-a.1", "j-b.1")
    (slot / "moved" / "deep").mkdir(parents=True)
    (slot / "file").write_bytes(b"x" * KIB)
    (slot / os.fsdecode(b"\xff")).touch()
    os.symlink(tmp_path / "outside", slot / "link")
    sweeper = keeper(tmp_path, Bounds(), clock)
    assert await sweeper.sweep(["j-b.1"]) == 0
    assert len([*slot.iterdir()]) == 6, "it may have been made since the allocations were listed"
    assert await sweeper.sweep(["j-b.1"]) == 0
    assert sorted(os.listdir(slot)) == left(tmp_path) == ["j-a.1", "j-b.1"]
    assert (slot / "j-a.1" / "data").exists() and (tmp_path / "outside").exists()


async def test_what_is_unpacked_for_a_job_stays_before_it_has_a_folder(tmp_path: Path, clock: Clock) -> None:
    slot = in_slot(tmp_path, "s1", "j-a.1")
    (slot / "j-b.1").mkdir()
    sweeper = keeper(tmp_path, Bounds(), clock)
    for _ in range(3):
        await sweeper.sweep(["j-b.1"])
    assert sorted(os.listdir(slot)) == ["j-a.1", "j-b.1"]
    for _ in range(2):
        await sweeper.sweep(())
    assert os.listdir(slot) == ["j-a.1"]


async def test_a_directory_that_takes_the_name_of_another_slots_allocation_goes_too(
    tmp_path: Path, clock: Clock
) -> None:
    slot, other = in_slot(tmp_path, "s1", "j-a.1"), in_slot(tmp_path, "s2", "j-b.1")
    (slot / "j-b.1").mkdir()
    sweeper = keeper(tmp_path, Bounds(), clock)
    for _ in range(2):
        await sweeper.sweep(())
    assert (os.listdir(slot), os.listdir(other)) == (["j-a.1"], ["j-b.1"])


async def test_a_directory_whose_place_was_not_noted_stays(tmp_path: Path, clock: Clock) -> None:
    slot = in_slot(tmp_path, "s1", "j-a.1")
    (tmp_path / "slots").unlink()
    sweeper = keeper(tmp_path, Bounds(), clock)
    for _ in range(3):
        await sweeper.sweep(["j-a.1"])
    assert (slot / "j-a.1" / "data").exists()


async def test_the_own_tmp_of_a_private_slot_stays_and_of_no_other(tmp_path: Path, clock: Clock) -> None:
    private, other = (in_slot(tmp_path, slot, f"j-{slot}.1", ".tmp", ".vartmp") for slot in ("s1", "o2"))
    sweeper = Retention(
        tmp_path, Bounds(), SlotIndex(tmp_path), JobFiles(tmp_path), clock, private=lambda slot: slot == "s1"
    )
    for _ in range(2):
        await sweeper.sweep(())
    assert sorted(os.listdir(private)) == [".tmp", ".vartmp", "j-s1.1"]
    assert os.listdir(other) == ["j-o2.1"]


async def test_a_slot_in_which_nothing_changed_is_not_listed_again(tmp_path: Path, clock: Clock) -> None:
    slot = in_slot(tmp_path, "s1", "j-a.1")
    listed = []

    class Listing(JobFiles):
        def names(self, slot: str) -> list[str]:
            listed.append(slot)
            return super().names(slot)

    sweeper = Retention(tmp_path, Bounds(), SlotIndex(tmp_path), Listing(tmp_path), clock)
    for _ in range(3):
        await sweeper.sweep(())
    assert listed == ["s1"]
    os.utime(slot / "j-a.1", (0, 0))
    (slot / "stray").touch()
    for _ in range(3):
        await sweeper.sweep(())
    assert os.listdir(slot) == ["j-a.1"] and len(listed) == 4


async def test_a_notice_goes_with_the_allocation_it_is_for(tmp_path: Path, clock: Clock) -> None:
    leave(tmp_path, "a.1", "b.1")
    for name in ("a.1", "b.1"):
        workdir.write_recall(tmp_path, Stop(allocation=name, cause=Cause.RECALLED, grace=1.0), 1.0)
    assert await keeper(tmp_path, Bounds(jobs=0), clock).sweep(["b.1"]) == 1
    assert (left(tmp_path), os.listdir(tmp_path / "recalls")) == (["b.1"], ["b.1"])


async def test_a_tree_of_1500_directories_in_each_other_is_measured_and_removed(tmp_path: Path, clock: Clock) -> None:
    target = made(tmp_path, "a.1")
    here = os.open(target, os.O_PATH)
    try:
        for _ in range(1500):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_PATH, dir_fd=here)
            os.close(here)
            here = below
        with open("f", "wb", opener=lambda name, flags: os.open(name, flags, dir_fd=here)) as file:
            file.write(b"x" * 400 * KIB)
        assert disk._bytes(str(target), 0) >= 400 * KIB
        leave(tmp_path, "b.1")
        assert await keeper(tmp_path, Bounds(jobs=0), clock).sweep(()) == 2
        assert left(tmp_path) == []
    finally:
        os.close(here)
        subprocess.run(["rm", "-rf", tmp_path / "allocs"], check=True)  # pytest cannot


# Until it is told to stop it makes directories in the newest directory there is, and says once that it began.
MAKER = """
import os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
number = 0
while True:
    number += 1
    try:
        os.makedirs(f"{number % 9}/{number}")
        open(f"{number % 9}/{number}/f", "w").close()
    except OSError:
        pass
"""


async def test_a_process_that_makes_files_all_the_time_does_not_hold_up_the_rest(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "PATIENCE", 0.5)
    target = made(tmp_path, "a.1")
    leave(tmp_path, "b.1")
    with subprocess.Popen([sys.executable, "-c", MAKER, target], stdout=subprocess.PIPE) as maker:
        try:
            assert maker.stdout is not None
            maker.stdout.readline()
            async with asyncio.timeout(20):
                assert await keeper(tmp_path, Bounds(jobs=0), clock).sweep(()) == 2
            assert set(left(tmp_path)) <= {".gone-a.1"}
        finally:
            maker.kill()
    monkeypatch.setattr(disk, "PATIENCE", 60.0)
    await keeper(tmp_path, Bounds(jobs=0), clock).sweep(())
    assert left(tmp_path) == []


@pytest.mark.parametrize("name", ["supervisor.log", "agent.log"])
async def test_the_logs_beside_the_state_and_damaged_journals_are_bounded(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(disk, "LOG_BYTES", 10)
    with open(tmp_path / name, "a") as log:
        for number in range(1, 13):
            (tmp_path / f"journal.corrupt-{number}").touch()
        kept = keeper(tmp_path, Bounds(), clock)
        print("of long ago", file=log, flush=True)
        await kept.sweep(())
        print("new", file=log, flush=True)
        await kept.sweep(())
    assert (tmp_path / name).read_text() == "new\n"
    assert (tmp_path / f"{name}.1").read_text() == "of long ago\n"
    assert sorted(path.name for path in tmp_path.glob("journal.*")) == [f"journal.corrupt-{n}" for n in (1, 2, 3)]


@pytest.mark.parametrize("live", [["a.1"], ["a.1", "b.1"]])
async def test_bounds_of_nothing_keep_only_what_lives(tmp_path: Path, clock: Clock, live: Collection[str]) -> None:
    leave(tmp_path, "a.1", "b.1")
    await keeper(tmp_path, Bounds(days=0.0, jobs=0, size=0), clock).sweep(live)
    assert left(tmp_path) == sorted(live)
