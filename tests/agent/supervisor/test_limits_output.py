"""The bound on outputs: when a stream is looked at, what is cut, and that a job which writes as fast as it can keeps to
it."""

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from distributed_grid.agent.launch import workdir
from distributed_grid.agent.supervisor import limits
from distributed_grid.agent.supervisor.limits import KEPT_FIRST, Outputs
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


def test_quiet_streams_are_looked_at_some_ten_times_a_second_and_many_at_once(tmp_path: Path) -> None:
    outputs = Outputs(str(tmp_path), 256 * MIB, print)
    assert outputs.due == float("inf")
    for number in range(100):
        outputs.watch(f"j{number}", 100.0 + number * 0.001)
    looks = 0
    while outputs.due < 110.0:
        looks += 1
        outputs.look(outputs.due)
    assert 80 < looks < 250


def test_a_stream_that_grows_fast_is_looked_at_before_it_takes_half_as_much_again_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, speed = 4 * MIB, 4 * MIB  # bytes, bytes a second
    monkeypatch.setattr(limits, "_FAST", 1 * MIB)  # faster than any stream is taken for before it is seen
    outputs = Outputs(str(tmp_path), limit, print)
    path = job(tmp_path, 0)
    now = most = 0.0
    outputs.watch("j", now)
    while now < 3.0:
        now = outputs.due
        with path.open("ab") as file:
            file.write(b"x" * (int(now * speed) - path.stat().st_size))
        most = max(most, on_disk(path))
        outputs.look(now)
    assert limit < most <= 1.5 * limit
    assert on_disk(path) <= 1.5 * limit


def test_what_a_job_wrote_last_is_cut_when_it_leaves(tmp_path: Path) -> None:
    outputs = Outputs(str(tmp_path), 4 * MIB, print)
    path = job(tmp_path, 0)
    outputs.watch("j", 0.0)
    outputs.look(outputs.due)
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
        outputs.watch("j", 0.0)
        while outputs.due < 10.0:
            outputs.look(outputs.due)
    assert said == [f"{path} takes more than {4 * MIB} bytes and cannot be cut (No space left on device)"]
    assert 9 <= len(tries) <= 21
    while outputs.due < 12.0:
        outputs.look(outputs.due)
    assert on_disk(path) <= 4 * MIB


@pytest.mark.parametrize("name", ["stdout.gap", "stdout.gap.new"])
@pytest.mark.parametrize("what", ["fifo", "link", "directory"])
def test_what_a_job_puts_in_the_place_of_the_note_is_not_followed_and_not_waited_for(
    tmp_path: Path, name: str, what: str
) -> None:
    (tmp_path / "own.crt").write_text("certificate")
    outputs = Outputs(str(tmp_path), 4 * MIB, print)
    path = job(tmp_path, 20 * MIB)
    outputs.watch("j", 0.0)
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
    outputs.watch("j", 0.0)
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
    outputs.look(outputs.due)
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
