"""Output of jobs from outside: whole for who reads it as it is written, however slowly, and never short in silence."""

import functools
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.sync import GridClient
from tests import forked
from tests.grid_fixture import CONFIG, Grid, running_grid, until

MIB = 1 << 20
SIZE = 16_000_000
KEPT = CONFIG + "  keep_output: 4M\n"
NUMBERS = f"""
import sys
for begin in range(1_000_000, 1_000_000 + {SIZE // 8}, 8000):
    sys.stdout.buffer.write(b"%d\\n" * 8000 % tuple(range(begin, begin + 8000)))
"""
"""Eight bytes a line, so that what is missing or twice would be seen."""


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with running_grid(tmp_path_factory.mktemp("output"), config=KEPT) as one:
        yield one


@functools.cache
def expected() -> str:
    numbers = range(1_000_000, 1_000_000 + SIZE // 8)
    return hashlib.sha256("".join(f"{number}\n" for number in numbers).encode()).hexdigest()


def on_disk(grid: Grid) -> int:
    return sum(path.stat().st_blocks * 512 for path in grid.home.glob("*/allocs/*/stdout"))


def job_of(grid: Grid, name: str) -> dict[str, Any]:
    """The job, once it is submitted."""
    jobs: list[dict[str, Any]] = [one for one in grid.json("jobs", "-a")["jobs"] if one["name"] == name]
    return jobs[0] if jobs else {"awaits_reader": None, "state": ""}


def detached(grid: Grid, *words: str) -> str:
    return grid.run("run-shared", "-d", "--no-ship", *words).stdout.strip()


def test_a_slow_reader_gets_every_byte_and_the_job_waits_for_it(grid: Grid) -> None:
    before = on_disk(grid)
    reading = grid.begin("run-shared", "--no-ship", "--name", "slow", sys.executable, "-c", NUMBERS)
    assert reading.stdout is not None
    digest, got, most = hashlib.sha256(), 0, 0
    first = reading.stdout.read(MIB)
    until(lambda: job_of(grid, "slow")["awaits_reader"], "it waits for its reader")
    shown = grid.run("why", "slow").stdout
    assert "waits for the reader of its output (" in shown and "of stdout unread)" in shown
    size = [path.stat().st_size for path in grid.home.glob("*/allocs/*/stdout")]
    data = first
    while data:
        digest.update(data)
        got += len(data)
        time.sleep(0.02)
        most = max(most, on_disk(grid) - before)
        data = reading.stdout.read(MIB)
    assert reading.wait() == 0 and (got, digest.hexdigest()) == (SIZE, expected())
    assert max(size) < SIZE, "it did not run ahead"
    assert most < SIZE
    story = grid.run("job", "events", "slow").stdout
    assert story.count("waits for the reader of its output") == 1


def test_both_apis_get_every_byte_too(grid: Grid) -> None:
    with GridClient(grid.url) as client:
        job = client.submit([sys.executable, "-c", NUMBERS], attached=True)
        digest = hashlib.sha256()
        for number, (_, data) in enumerate(client.stream(job)):
            digest.update(data)
            if number % 20 == 0:
                time.sleep(0.02)
        assert digest.hexdigest() == expected()
    program = """
import asyncio, hashlib, sys
from distributed_grid.coordinator.client import GridClient
async def main():
    digest = hashlib.sha256()
    async with GridClient(sys.argv[1]) as grid:
        job = await grid.submit([sys.executable, "-c", sys.argv[2]], attached=True)
        async for _, data in grid.stream(job):
            digest.update(data)
            await asyncio.sleep(0.001)
    print(digest.hexdigest())
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program, grid.url, NUMBERS],
        env=grid.environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == expected(), done.stderr


def test_a_job_that_is_to_drop_output_does_not_wait_and_who_reads_it_is_told(grid: Grid) -> None:
    words = ("-q", "run-shared", "--no-ship", "--output-full", "drop", "--name", "drops", "head", "-c", str(SIZE))
    reading = grid.begin(*words, "/dev/zero")
    until(lambda: job_of(grid, "drops")["state"] == "ended", "it has ended, with nobody reading")
    out, err = reading.communicate(timeout=60)
    assert reading.returncode == 125 and len(out) < SIZE
    gone = SIZE - len(out)
    assert err.decode().startswith(f"error: {gone} bytes of stdout are gone: ")


def test_of_a_detached_job_head_and_tail_are_kept_and_every_reader_is_told_of_the_gap(grid: Grid) -> None:
    job = detached(grid, "head", "-c", str(SIZE), "/dev/zero")
    until(lambda: grid.job(job)["state"] == "ended", "nobody reads it, and it ends")
    for words in (("logs", job), ("attach", job), ("-q", "attach", job)):
        done = grid.run_bytes(*words)
        said = f"error: {SIZE - len(done.stdout)} bytes of stdout are gone: "
        assert (done.returncode, done.stderr.decode()[: len(said)]) == (125, said), words
    with GridClient(grid.url) as client:
        got = 0
        with pytest.raises(Exception, match="cannot be read") as error:
            for _, data in client.stream(job):
                got += len(data)
        assert f"{SIZE - got} bytes of stdout are gone" in str(error.value.__dict__)
        result = client.result(job)
        assert result.truncated and "bytes of stdout are gone" in result.output_error


def test_a_reader_that_leaves_holds_nobody(grid: Grid) -> None:
    with running_reader(grid, "left") as reading:
        until(lambda: job_of(grid, "left")["awaits_reader"], "it waits for its reader")
        reading.send_signal(15)
        reading.wait()
    until(lambda: job_of(grid, "left")["state"] == "ended", "it goes on by itself")
    assert job_of(grid, "left")["exit_code"] == 0


def test_a_job_whose_output_finds_a_full_disk_here_is_named_and_ended(grid: Grid) -> None:
    words = ("run-shared", "--no-ship", "--name", "lost", "sh", "-c", "echo hi; exec sleep 600")
    with open("/dev/full", "wb") as full:
        _, err = (reading := grid.begin(*words, stdout=full)).communicate(timeout=60)
    view = until(lambda: (found := job_of(grid, "lost"))["state"] == "ended" and found, "it is ended")
    said = f"error: the stdout of {view['id']} cannot be written: No space left on device\n"
    assert (reading.returncode, view["exit_code"]) == (125, 143) and said in err.decode()


@pytest.mark.parametrize(
    "words",
    [
        ("run-shared", "-d", "--no-ship", "--name", "untold", "true"),
        ("submit", "-f", "-"),
        ("hold", "request", "--name", "untold", "--time", "1m"),
    ],
    ids=lambda words: words[0],
)
def test_what_was_done_although_its_id_finds_a_full_disk_is_told(grid: Grid, words: tuple[str, ...]) -> None:
    file = b'{"name": "untold", "command": "true", "no_ship": true}'
    with open("/dev/full", "wb") as full:
        begun = grid.begin(*words, stdin=subprocess.PIPE, stdout=full)
        _, err = begun.communicate(file, timeout=60)
    error, _, told = err.decode().splitlines()
    assert error == "error: No space left on device" and begun.returncode in (70, 125)
    assert told.startswith("grid: already done: ") and job_of(grid, "untold")["id"] in told
    grid.run("cancel", "untold")


def test_a_second_reader_who_looks_neither_holds_the_job_nor_takes_anything_from_the_first(grid: Grid) -> None:
    with running_reader(grid, "looked-at") as reading:
        until(lambda: job_of(grid, "looked-at")["awaits_reader"], "it waits for its reader")
        looked = grid.run_bytes("logs", "looked-at")
        assert looked.returncode == 0 and job_of(grid, "looked-at")["awaits_reader"]
        out, _ = reading.communicate(timeout=60)
    assert (reading.returncode, len(out)) == (0, SIZE)


def test_a_job_that_waits_for_its_reader_can_be_ended(grid: Grid) -> None:
    with running_reader(grid, "ended") as reading:
        until(lambda: job_of(grid, "ended")["awaits_reader"], "it waits for its reader")
        assert grid.run("cancel", "ended").returncode == 0
        until(lambda: job_of(grid, "ended")["state"] == "ended", "it hears of it")
        reading.communicate(timeout=60)
        assert reading.returncode == 143


def test_waiting_for_the_reader_counts_against_the_time_limit(grid: Grid) -> None:
    with running_reader(grid, "limited", "--time", "2") as reading:
        until(lambda: job_of(grid, "limited")["state"] == "ended", "its time is over")
        reading.communicate(timeout=60)
        assert reading.returncode == 124


def test_the_reader_gets_every_byte_through_a_kill_of_agent_supervisor_and_coordinator(tmp_path: Path) -> None:
    with running_grid(tmp_path, config=KEPT) as grid, running_reader(grid, "killed") as reading:
        assert reading.stdout is not None
        until(lambda: job_of(grid, "killed")["awaits_reader"], "it waits for its reader")
        out = reading.stdout.read(100_000)
        grid.kill("n1")
        pid = json.loads((tmp_path / "n1" / "supervisor.pid").read_text())["pid"]
        subprocess.run(["kill", "-9", str(pid)], check=True)
        grid.kill("coordinator")
        grid.start_coordinator()
        grid.start_agent("n1")
        out += reading.stdout.read()
        assert reading.wait() == 0 and hashlib.sha256(out).hexdigest() == expected()


def running_reader(grid: Grid, name: str, *flags: str) -> subprocess.Popen[bytes] | forked.Command:
    words = ("run-shared", "--on-exit", "keep", "--no-ship", "--name", name, *flags)
    return grid.begin(*words, sys.executable, "-c", NUMBERS)


# --- attempts and members ---------------------------------------------------------------------------------------------


AGAIN = "echo attempt $GRID_ALLOCATION_ID; [ ${GRID_ALLOCATION_ID##*.} = 3 ]"


def test_earlier_attempts_can_be_read_also_where_their_node_is_away(tmp_path: Path) -> None:
    with running_grid(tmp_path) as grid:
        done = grid.run("run-shared", "--no-ship", "--retry-on", "failed", "--retries", "2", "sh", "-c", AGAIN)
        job = grid.job()["id"]
        each = [f"attempt {job}.{number}\n" for number in (1, 2, 3)]
        assert (done.returncode, done.stdout) == (0, "".join(each)), "attached, nothing of the others is lost either"
        for away in (False, True):
            if away:
                grid.kill("n1")
            assert grid.run("logs", job).stdout == each[2]
            assert grid.run("logs", f"{job}.1").stdout == each[0]
            assert grid.run("logs", job, "--attempt", "2").stdout == each[1]
            assert grid.run("logs", "--attempt", "all", job).stdout == "".join(each)
        missing = grid.run("logs", f"{job}.4")
        assert missing.returncode == 2 and "it has had 3" in missing.stderr


def test_an_array_is_printed_member_by_member_and_ends_with_its_highest_exit_code(grid: Grid) -> None:
    say = "echo $GRID_ARRAY_INDEX says; exit $GRID_ARRAY_INDEX"
    run = grid.run("run-shared", "--no-ship", "--cpus", "0.1", "--name", "many", "--array", "0-4", "sh", "-c", say)
    each = [f"[{index}] {index} says" for index in range(5)]
    assert (run.returncode, sorted(run.stdout.splitlines())) == (4, each), run.stderr
    for words, code in ((("attach",), 4), (("logs",), 0), (("logs", "-f"), 0)):
        done = grid.run(*words, "many")
        assert (done.returncode, sorted(done.stdout.splitlines())) == (code, each), (words, done.stderr)
    assert grid.run("job", "wait", "many").returncode == 4
    assert sorted(grid.run("logs", "--failed", "many").stdout.splitlines()) == each[1:]
    assert grid.run("logs", "many", "--member", "3").stdout == "3 says\n"


def test_an_array_that_is_left_by_an_interrupt_is_ended(grid: Grid) -> None:
    reading = grid.begin("run-shared", "--no-ship", "--cpus", "0.1", "--name", "cut", "--array", "0-2", "sleep", "600")
    assert reading.stderr is not None and reading.stderr.readline().endswith(b" is queued\n")
    until(lambda: grid.json("jobs")["arrays"] and grid.json("jobs")["arrays"][0]["states"].get("running"), "it runs")
    reading.send_signal(2)
    _, err = reading.communicate(timeout=60)
    assert reading.returncode in (130, 143) and b"grid: ending all of j-" in err
