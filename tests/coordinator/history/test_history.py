"""History: buckets by grid time, gaps that stay gaps, clocks that jump, disks that refuse."""

import math
import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.history.history import TURNS, History
from distributed_grid.coordinator.history.series import Series, values
from distributed_grid.protocol.history.buckets import SECONDS, Bucket
from tests.coordinator.history.scene import START, Clock, bucket, numbers, told
from tests.depth import tries


class Scene:
    """A history under a clock that is moved, and what it acknowledged."""

    def __init__(self, path: Path, size: int = 1 << 30) -> None:
        self.clock = Clock()
        self.path = path
        self.size = size
        self.acknowledged: list[tuple[str, int]] = []
        self.begin()

    def begin(self) -> None:
        self.history = History(self.path, self.size, self.clock)
        self.history.kept = lambda node, through: self.acknowledged.append((node, through))

    async def again(self) -> None:
        """The coordinator is stopped and started."""
        await self.history.close()
        self.begin()

    def measure(self, count: int, foreign: float = 0.5, node: str = "lab1", boot: str = "b1") -> None:
        """So many buckets pass, each told as it ends."""
        for _ in range(count):
            self.clock.now += SECONDS
            (number,) = numbers(self.clock, 1)
            self.history.store(node, boot, told(self.clock, bucket(number, foreign)))

    async def written(self) -> None:
        """Every node had its turn."""
        for _ in range(TURNS):
            self.history.tick()
            if (writing := self.history._writing) is not None:
                await writing

    async def window(self, seconds: int, step: int = SECONDS, node: str = "lab1") -> list[float]:
        window = await self.history.window(node, seconds, step)
        return [round(one, 3) for one in values(window.codes[Series.FOREIGN_CPU], Series.FOREIGN_CPU)]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path / "history.db")
    yield made
    await made.history.close()


def there(found: list[float]) -> list[bool]:
    return [not math.isnan(one) for one in found]


async def test_a_window_ends_with_the_newest_bucket(scene: Scene) -> None:
    scene.measure(3, 0.25)
    scene.measure(2, 0.75)
    assert await scene.window(50) == [0.25, 0.25, 0.25, 0.75, 0.75]
    scene.clock.now += 5.0
    assert await scene.window(50) == [0.25, 0.25, 0.25, 0.75, 0.75]


async def test_a_cut_is_filled_by_the_node_itself(scene: Scene) -> None:
    scene.measure(2)
    scene.clock.now += 3000.0
    late = [bucket(number, 0.1) for number in numbers(scene.clock, 300)]
    scene.history.store("lab1", "b1", told(scene.clock, *late))
    assert await scene.window(3020) == [0.5] * 2 + [0.1] * 300


async def test_a_cut_of_an_hour_leaves_no_hole_in_memory_nor_in_the_database(scene: Scene) -> None:
    """What an agent keeps is told in one piece when it is back."""
    scene.measure(36, 0.5)
    scene.clock.now += 30.0
    await scene.written()
    scene.clock.now += 3570.0
    late = [bucket(number, 0.1) for number in numbers(scene.clock, 360)]
    scene.history.store("lab1", "b1", told(scene.clock, *late))
    assert await scene.window(3600) == [0.1] * 360
    scene.clock.now += 30.0
    await scene.written()
    minutes = await scene.window(3600 + 360, 60)
    assert all(there(minutes[:-1])), "the last one is under way"
    assert minutes[:5] == [0.5] * 5 and set(minutes[7:-1]) == {0.1}


async def test_what_was_not_measured_stays_a_gap_in_every_window(scene: Scene) -> None:
    scene.measure(12)
    scene.clock.now += 120.0
    scene.measure(12)
    assert there(await scene.window(360)) == [True] * 12 + [False] * 12 + [True] * 12
    await scene.written()
    assert there(await scene.window(360, 60)) == [True, True, False, False, True, True]


async def test_minutes_that_are_written_are_acknowledged_once(scene: Scene) -> None:
    scene.measure(14)
    await scene.written()
    number = numbers(scene.clock, 14)[0]
    assert scene.acknowledged == [("lab1", number + 11)]
    scene.clock.now += 60.0
    await scene.written()
    await scene.written()
    assert scene.acknowledged == [("lab1", number + 11), ("lab1", number + 17)]


async def test_a_coordinator_that_starts_again_knows_the_hour_by_the_minute(scene: Scene) -> None:
    scene.measure(60, 0.25)
    scene.clock.now += 30.0
    await scene.written()
    scene.clock.now -= 30.0
    await scene.again()
    scene.measure(6, 0.75)
    assert await scene.window(660) == [0.25] * 60 + [0.75] * 6


async def test_without_a_database_the_hour_is_kept_and_acknowledged(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "history.db", size=0)
    scene.measure(30)
    scene.clock.now += 30.0
    await scene.written()
    assert len(scene.acknowledged) == 1 and there(await scene.window(300)).count(True) >= 27
    assert len(await scene.window(1200, 60)) == 20 and not (tmp_path / "history.db").exists()
    await scene.history.close()


async def test_a_disk_that_refuses_stops_history_alone_and_it_goes_on_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path / "none" / "history.db")
    scene.measure(30)
    scene.clock.now += 30.0
    await scene.written()
    scene.clock.now += 61.0
    await scene.written()
    assert "unable to open" in scene.history.trouble and scene.acknowledged == []
    assert there(await scene.window(400, 10)).count(True) == 30
    os.mkdir(tmp_path / "none")
    scene.clock.now += 61.0
    await scene.written()
    assert scene.history.trouble == "" and len(scene.acknowledged) == 1
    assert there(await scene.window(420, 60)).count(True) == 5
    await scene.history.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of one mebibyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"this machine lets nobody mount a disk: {mount.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [
        (["dd", "if=/dev/zero", "of={}/fill", "bs=4096"], ["rm", "{}/fill"], "full|disk I/O error"),
        (["mount", "-o", "remount,ro", "{}"], ["mount", "-o", "remount,rw", "{}"], "readonly|unable to open"),
    ],
    ids=["full", "read-only"],
)
async def test_on_a_disk_that_is_full_or_read_only_the_last_hour_is_kept_and_written_later(
    tmp_path: Path, disk: Path, begin: list[str], end: list[str], words: str
) -> None:
    """A real one, on which the file lies alone."""
    (tmp_path / "history.db").symlink_to(disk / "history.db")
    scene = Scene(tmp_path / "history.db")
    scene.measure(30, 0.25)
    scene.clock.now += 30.0
    await scene.written()
    assert scene.history.trouble == "" and len(scene.acknowledged) == 1
    await scene.again()
    subprocess.run([word.format(disk) for word in begin], capture_output=True)
    for _ in range(40):  # more than SQLite has pages left for
        scene.measure(6, 0.75)
        await scene.written()
    assert re.search(words, scene.history.trouble) and len(scene.acknowledged) < 40
    assert (await scene.window(600)).count(0.75) == 60, "what is not written is known all the same"
    subprocess.run([word.format(disk) for word in end], check=True)
    scene.clock.now += 61.0
    await scene.written()
    assert scene.history.trouble == "" and scene.acknowledged[-1][1] >= scene.acknowledged[0][1] + 200
    await scene.again()
    assert there(await scene.window(2400, 60)).count(True) >= 39, "nothing of it is missing in the database"
    await scene.history.close()


async def test_a_node_that_boots_anew_begins_where_the_grid_is(scene: Scene) -> None:
    scene.measure(3, 0.25)
    booted = scene.clock.now
    scene.clock.now += 20.0
    scene.history.store("lab1", "b2", told(scene.clock, bucket(0, 0.75), bucket(1, 0.75), booted=booted))
    assert await scene.window(50) == [0.25] * 3 + [0.75] * 2


async def test_a_clock_that_jumps_moves_what_comes_after_it_and_nothing_before(scene: Scene) -> None:
    scene.measure(12, 0.25)
    scene.clock.now += 10.0
    booted = START - 700.0  # the node's clock is 300 s behind from now on
    (number,) = numbers(scene.clock, 1, booted)
    scene.history.store("lab1", "b1", told(scene.clock, bucket(number, 0.75), booted=booted))
    assert await scene.window(130) == [0.25] * 12 + [0.75]


async def test_a_node_that_is_gone_is_forgotten_after_an_hour_and_read_from_the_database(scene: Scene) -> None:
    scene.measure(30)
    scene.clock.now += 30.0
    await scene.written()
    scene.clock.now += 3700.0
    await scene.written()
    assert scene.history._nodes == {}
    assert there(await scene.window(7200, 60)).count(True) == 5
    assert not any(there(await scene.window(300)))


async def test_a_node_that_is_renamed_begins_anew_and_its_old_name_keeps_what_it_had(scene: Scene) -> None:
    """The same machine, in the same boot, tells its last bucket once more by its new name."""
    scene.measure(30, 0.25)
    scene.measure(1, 0.25, node="lab9")
    scene.measure(5, 0.75, node="lab9")
    assert await scene.window(60, node="lab9") == [0.25] + [0.75] * 5
    assert there(await scene.window(3600, node="lab9")).count(True) == 6, "nothing of the old name is its own"
    assert there(await scene.window(400)).count(True) == 30 and scene.history.newest("lab1") is not None
    scene.clock.now += 30.0
    await scene.written()
    scene.clock.now += 3700.0
    await scene.written()
    assert scene.history._nodes == {} and await scene.history.names() == ["lab1", "lab9"]
    assert there(await scene.window(7200, 60)).count(True) == 5
    assert there(await scene.window(7200, 60, node="lab9")).count(True) == 1


async def test_an_unknown_node_has_no_values(scene: Scene) -> None:
    assert not any(there(await scene.window(3600, node="nobody")))
    assert scene.history.newest("nobody") is None


async def test_a_bucket_of_the_future_is_not_taken(scene: Scene) -> None:
    scene.measure(1)
    (number,) = numbers(scene.clock, 1)
    scene.history.store("lab1", "b1", told(scene.clock, bucket(number + 500, 0.9)))
    assert scene.history.newest("lab1") == (bucket(number), START + 10.0)


async def test_closing_writes_also_the_minute_that_is_under_way(scene: Scene) -> None:
    scene.measure(8)
    await scene.again()
    assert there(await scene.window(120, 60)).count(True) == 1
    scene.clock.now += 60.0
    assert there(await scene.window(120, 60)) == [True, True]


@settings(max_examples=tries(50), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("measure"), st.integers(1, 8)),
            st.tuples(st.just("wait"), st.integers(1, 5000)),
            st.tuples(st.just("clock"), st.integers(-4000, 4000)),
            st.tuples(st.just("boot"), st.integers(0, 3)),
        ),
        max_size=12,
    )
)
async def test_whatever_clocks_do_nothing_breaks_and_nothing_is_made_up(steps: list[tuple[str, int]]) -> None:
    scene = Scene(Path("/nowhere"), size=0)
    measured, boot, skew = 0, 0, 0.0
    for what, count in steps:
        if what == "wait":
            scene.clock.now += count
        elif what == "clock":
            skew += count
        elif what == "boot":
            boot = count
        for _ in range(count if what == "measure" else 0):
            scene.clock.now += SECONDS
            made = told(scene.clock, *made_by_node(scene.clock, skew), booted=START - 100_000.0 - skew)
            scene.history.store("lab1", f"b{boot}", made)
            measured += 1
        found = await scene.window(3600)
        assert len(found) == 360 and there(found).count(True) <= measured
        assert {one for one in found if not math.isnan(one)} <= {0.5}
    newest = scene.history.newest("lab1")
    assert newest is None or newest[1] <= scene.clock.now + 2 * SECONDS
    await scene.history.close()


def made_by_node(clock: Clock, skew: float) -> list[Bucket]:
    return [bucket(number) for number in numbers(clock, 1, START - 100_000.0 - skew)]
