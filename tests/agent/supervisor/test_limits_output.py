"""The bound on outputs: when a stream is looked at, what is cut, and that a job which writes as fast as it can keeps to
it."""

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from distributed_grid.agent.launch import workdir
from distributed_grid.agent.supervisor import limits
from distributed_grid.agent.supervisor.job import NEVER, READER, Job
from distributed_grid.agent.supervisor.limits import KEPT_FIRST, MOST_READERS, READER_SECONDS, RUNAWAY, Outputs
from distributed_grid.protocol.resources import Grant
from tests.agent.conftest import Bench

MIB = 1 << 20


def job(folder: Path, stdout: int) -> Path:
    """A job that has written so many bytes."""
    (folder / "j").mkdir(exist_ok=True)
    path = folder / "j" / "stdout"
    path.write_bytes(b"x" * stdout)
    return path


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_quiet_streams_are_looked_at_some_25_times_a_second_and_many_at_once(tmp_path: Path) -> None:
    outputs = Outputs(str(tmp_path), 256 * MIB, print)
    assert outputs.due == float("inf")
    for number in range(100):
        outputs.watch(Job(f"j{number}"), 100.0 + number * 0.001)
    looks = 0
    while outputs.due < 110.0:
        looks += 1
        outputs.poll(outputs.due)
    assert 200 < looks < 300


def test_a_stream_that_grows_fast_is_looked_at_before_it_takes_half_as_much_again_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, speed = 4 * MIB, 4 * MIB  # bytes, bytes a second
    monkeypatch.setattr(limits, "_FAST", 1 * MIB)  # faster than any stream is taken for before it is seen
    outputs = Outputs(str(tmp_path), limit, print)
    path = job(tmp_path, 0)
    now = most = 0.0
    outputs.watch(Job("j"), now)
    while now < 3.0:
        now = outputs.due
        with path.open("ab") as file:
            file.write(b"x" * (int(now * speed) - path.stat().st_size))
        most = max(most, on_disk(path))
        outputs.poll(now)
    assert limit < most <= 1.5 * limit
    assert on_disk(path) <= 1.5 * limit


def test_what_a_job_wrote_last_is_cut_when_it_leaves(tmp_path: Path) -> None:
    outputs = Outputs(str(tmp_path), 4 * MIB, print)
    path = job(tmp_path, 0)
    outputs.watch(Job("j"), 0.0)
    outputs.poll(outputs.due)
    job(tmp_path, 20 * MIB)
    outputs.leave("j")
    assert on_disk(path) <= 4 * MIB
    assert (tmp_path / "j" / "stdout.gap").read_text() == f"{KEPT_FIRST} {18 * MIB}\n"
    assert path.stat().st_size == 20 * MIB
    outputs.leave("j")


def test_what_cannot_be_cut_is_told_once_and_tried_again_without_haste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    outputs = Outputs(str(tmp_path), 4 * MIB, said.append)
    path = job(tmp_path, 20 * MIB)
    tries = []

    def full(stream: object, end: int) -> None:
        tries.append(stream)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(limits, "_cut", full)
        outputs.watch(Job("j"), 0.0)
        while outputs.due < 10.0:
            outputs.poll(outputs.due)
    assert said == [f"{path} takes more than {4 * MIB} bytes and cannot be cut (No space left on device)"]
    assert 9 <= len(tries) <= 21
    while outputs.due < 12.0:
        outputs.poll(outputs.due)
    assert on_disk(path) <= 4 * MIB


@pytest.mark.parametrize("name", ["stdout.gap", "stdout.gap.new"])
@pytest.mark.parametrize("what", ["fifo", "link", "directory"])
def test_what_a_job_puts_in_the_place_of_the_note_is_not_followed_and_not_waited_for(
    tmp_path: Path, name: str, what: str
) -> None:
    (tmp_path / "own.crt").write_text("certificate")
    outputs = Outputs(str(tmp_path), 4 * MIB, print)
    path = job(tmp_path, 20 * MIB)
    outputs.watch(Job("j"), 0.0)
    match what:
        case "fifo":
            os.mkfifo(tmp_path / "j" / name)
        case "link":
            (tmp_path / "j" / name).symlink_to("../own.crt")
        case "directory":
            (tmp_path / "j" / name).mkdir()
    outputs.leave("j")
    assert on_disk(path) <= 4 * MIB
    assert (tmp_path / "j" / "stdout.gap").read_text() == f"{KEPT_FIRST} {18 * MIB}\n"
    assert (tmp_path / "own.crt").read_text() == "certificate"


@pytest.mark.parametrize("what", ["fifo", "link", "hard link", "another file"])
def test_only_the_file_that_was_made_at_the_start_is_ever_cut(tmp_path: Path, what: str) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x" * 20 * MIB)
    outputs = Outputs(str(tmp_path), 4 * MIB, print)
    path = job(tmp_path, 0)
    outputs.watch(Job("j"), 0.0)
    path.rename(tmp_path / "moved")
    match what:
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to(other)
        case "hard link":
            path.hardlink_to(other)
        case "another file":
            job(tmp_path, 20 * MIB)
    outputs.poll(outputs.due)
    outputs.leave("j")
    assert other.read_bytes() == b"x" * 20 * MIB
    assert not (tmp_path / "j" / "stdout.gap").exists()


@pytest.mark.timeout(300)
async def test_a_job_that_writes_as_fast_as_it_can_keeps_to_its_share(
    make_bench: Callable[..., Awaitable[Bench]],
) -> None:
    limit, whole = 256 * MIB, 2048 * MIB
    bench = await make_bench(limit=limit)
    # Behind the supervisor, on one core with it: so that others on this machine hold up both of them or none.
    core = max(os.sched_getaffinity(0))
    code = f"""
import os
os.nice(10)
part = b"x" * {MIB}
for _ in range({whole // MIB}): os.write(1, part)
"""
    id = bench.launch(sys.executable, "-c", code, grant=Grant(cores=(core,)))
    path = workdir.folder(bench.dir, id) / "stdout"
    most = 0
    await bench.started(id)
    os.sched_setaffinity(bench.launcher.supervisor_pid, {core})

    def over() -> bool:
        nonlocal most
        if path.exists():
            most = max(most, on_disk(path))
        return bool(bench.outcomes(id))

    await bench.until(over, 240.0)
    outcome = bench.outcomes(id)[0]
    assert (outcome.code, outcome.stdout_size) == (0, whole)
    assert limit < most <= 1.5 * limit, f"{most / limit:.2f} times its share"
    assert on_disk(path) <= limit
    with path.open("rb") as file:
        file.seek(-limit // 2, os.SEEK_END)
        assert file.read(MIB) == b"x" * MIB  # the newest part stays


# --- an attached reader -----------------------------------------------------------------------------------------------


class Reading:
    """A job that runs and is read, and whose freezes are as they are asked for."""

    def __init__(self, folder: Path, limit: int = 4 * MIB, attached: bool = True) -> None:
        self.folder, self.limit = folder, limit
        self.path = job(folder, 0)
        self.log: list[str] = []
        self.now = 100.0
        self.job = Job("j", limits={"attached": attached})
        self.job.runs(7)
        self.outputs = Outputs(str(folder), limit, self.log.append, self._freeze, self._thaw)
        self.outputs.watch(self.job, self.now)

    def _freeze(self, job: Job, why: str) -> None:
        if READER not in job.freezes:
            job.freeze(self.now, why, READER)

    def _thaw(self, job: Job) -> None:
        job.thaw(0.0, READER)

    def writes(self, count: int) -> None:
        """So many bytes, and it is looked at."""
        with self.path.open("ab") as file:
            file.write(b"x" * count)
        self.passes(1.1)

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.outputs.poll(self.now)

    def reads(self, offset: int, who: str = "ann") -> None:
        self.outputs.read("j", who, "stdout", offset, self.now)

    @property
    def waits(self) -> str:
        return self.job.freezes.get(READER, (0.0, ""))[1]

    def note(self) -> str:
        note = self.folder / "j" / "stdout.gap"
        return note.read_text() if note.exists() else ""


def test_a_job_whose_reader_is_far_behind_waits_and_nothing_unread_is_cut(tmp_path: Path) -> None:
    scene = Reading(tmp_path)
    scene.reads(0)
    scene.writes(4 * MIB)
    assert not scene.waits
    scene.writes(1 * MIB)
    assert (scene.waits, scene.note()) == ("5M of stdout unread", "")
    scene.reads(2 * MIB)
    assert scene.waits, "it goes on once only half of that is left, and not for every piece"
    scene.passes(1.1)
    scene.reads(3 * MIB)
    assert not scene.waits
    assert scene.outputs.due <= scene.now + 0.02, "it may write at once, and is looked at soon"
    scene.writes(3 * MIB)
    assert scene.note() == f"{KEPT_FIRST} {3 * MIB}\n", "what was read makes room"
    assert on_disk(scene.path) <= 1.5 * scene.limit


def test_a_reader_who_keeps_up_never_has_the_job_wait_and_the_disk_is_bounded(tmp_path: Path) -> None:
    scene = Reading(tmp_path)
    for count in range(1, 40):
        scene.writes(MIB)
        scene.reads(count * MIB - 1000)
        assert not scene.waits
        assert on_disk(scene.path) <= 1.25 * scene.limit


def test_a_reader_who_is_silent_for_too_long_is_gone_and_the_job_goes_on_without_it(tmp_path: Path) -> None:
    scene = Reading(tmp_path)
    scene.reads(0)
    scene.writes(6 * MIB)
    scene.passes(READER_SECONDS - 2.0)
    assert scene.waits and not scene.note()
    scene.passes(2.0)
    assert not scene.waits and scene.note() == f"{KEPT_FIRST} {4 * MIB}\n"


def test_an_attached_job_waits_for_the_reader_that_is_on_its_way_and_another_does_not(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    attached, detached = Reading(tmp_path / "one"), Reading(tmp_path / "two", attached=False)
    attached.writes(6 * MIB)
    detached.writes(6 * MIB)
    assert attached.waits and not attached.note()
    assert not detached.waits and detached.note()


def test_of_two_readers_the_slower_one_counts(tmp_path: Path) -> None:
    scene = Reading(tmp_path)
    scene.reads(0, "ann")
    scene.reads(0, "bob")
    scene.writes(6 * MIB)
    scene.reads(6 * MIB, "ann")
    assert scene.waits and not scene.note()
    scene.reads(1 << 60, "bob")  # it leaves
    assert not scene.waits


def test_there_are_only_so_many_readers(tmp_path: Path) -> None:
    scene = Reading(tmp_path)
    for number in range(10 * MOST_READERS):
        scene.now += 0.1
        scene.reads(0, f"reader {number}")
    assert len(scene.outputs._outputs["j"].readers) == MOST_READERS


def test_a_job_that_is_being_ended_is_not_held_and_its_disk_stays_bounded(tmp_path: Path) -> None:
    scene = Reading(tmp_path)
    scene.reads(0)
    scene.writes(6 * MIB)
    scene.job.thaw(0.0, READER)
    scene.job.stop("recalled", "the owner is back")
    scene.writes(1 * MIB)
    assert not scene.note(), "a little is kept still"
    scene.writes(3 * MIB)
    assert scene.note() and on_disk(scene.path) <= 1.25 * scene.limit
    assert [line.partition(" takes ")[2] for line in scene.log] == [
        f"{on_disk(scene.path) + 7 * MIB} bytes, so its reader loses some: the job is not to be stopped"
    ]


def test_a_job_that_cannot_be_stopped_does_not_fill_the_disk(tmp_path: Path) -> None:
    scene = Reading(tmp_path)
    scene.reads(0)
    scene.writes(6 * MIB)
    with scene.path.open("r+b") as file:  # what a process has written that evades the freezer
        os.posix_fallocate(file.fileno(), 0, 4 * MIB)
        os.truncate(file.fileno(), RUNAWAY)
    output = scene.outputs._outputs["j"]
    assert not scene.outputs._too_much(output, output.streams["stdout"], scene.limit + RUNAWAY)
    assert scene.outputs._too_much(output, output.streams["stdout"], scene.limit + RUNAWAY + 1)


def test_the_next_supervisor_expects_the_reader_again(tmp_path: Path) -> None:
    scene = Reading(tmp_path, attached=False)
    scene.reads(0)
    scene.writes(6 * MIB)
    following = Outputs(str(tmp_path), 4 * MIB, scene.log.append, scene._freeze, scene._thaw)
    scene.job.adopted = True
    following.watch(scene.job, scene.now)
    following.poll(scene.now + 1.1)
    assert scene.waits and not scene.note()
    following.poll(scene.now + READER_SECONDS)
    assert not scene.waits and scene.note()
    assert following.due < NEVER


def test_what_is_left_of_an_ended_job_is_kept_for_its_reader(tmp_path: Path) -> None:
    scene = Reading(tmp_path)
    scene.reads(0)
    scene.writes(6 * MIB)
    scene.job.main_ended(0)
    scene.job.end({"cause": "exited"})
    scene.outputs.leave("j")
    assert not scene.note()
