"""The command of `grid run-shared` reads what is written to our standard input: all of it, once, and its end."""

import fcntl
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from distributed_grid.agent.data.inputs import WINDOW
from distributed_grid.agent.walls.pipes import PIPE_BYTES
from distributed_grid.coordinator.client import GridClient as AsyncClient
from distributed_grid.coordinator.client.input import Source
from distributed_grid.protocol.errors import BadValue
from distributed_grid.sync import GridClient
from tests.grid_fixture import GRID, Grid, running_grid, until

WORDS = ("run-shared", "-t", "cpu", "-a", "1", "--no-ship")


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with running_grid(tmp_path_factory.mktemp("grid")) as made:
        yield made


def piped(grid: Grid, data: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    """A command on one borrowed core, with this standard input."""
    return subprocess.run(
        [*GRID, *WORDS, *words], input=data, env=grid.environment, cwd=grid.here, capture_output=True, timeout=120
    )


def test_a_command_reads_what_is_piped_in(grid: Grid) -> None:
    done = piped(grid, b"hi\n", "cat")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hi\n", b"")


def test_it_arrives_byte_by_byte_whatever_it_is_and_however_much(grid: Grid) -> None:
    data = os.urandom(9 << 20)
    assert piped(grid, data, "cat").stdout == data


def test_an_empty_input_ends_at_once(grid: Grid) -> None:
    assert piped(grid, b"", "wc", "-c").stdout.split() == [b"0"]


def test_a_file_is_read_as_a_pipe(grid: Grid) -> None:
    (grid.here / "in").write_bytes(b"of a file")
    with (grid.here / "in").open("rb") as file:
        done = grid.run(*WORDS, "sh", "-c", "test -p /dev/stdin && cat /dev/stdin", stdin=file)
    assert (done.returncode, done.stdout) == (0, "of a file"), done.stderr


def test_a_command_sees_each_line_when_it_is_written(grid: Grid) -> None:
    running = grid.begin(*WORDS, "sh", "-c", 'while read -r line; do echo "got $line"; done', stdin=subprocess.PIPE)
    assert running.stdin is not None and running.stdout is not None
    for word in (b"one", b"two"):
        running.stdin.write(word + b"\n")
        assert running.stdout.readline() == b"got " + word + b"\n"
    running.stdin.close()
    assert running.wait(60) == 0


def test_a_command_that_reads_a_part_ends_as_in_a_pipe(grid: Grid) -> None:
    writer = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
    done = grid.run(*WORDS, "head", "-n", "2", stdin=writer.stdout)
    assert (done.returncode, done.stdout, done.stderr) == (0, "y\ny\n", "")
    assert writer.stdout is not None
    writer.stdout.close()
    assert writer.wait(60) == -signal.SIGPIPE


def test_an_open_pipe_that_nobody_writes_to_keeps_no_command_waiting(grid: Grid) -> None:
    begin, end = os.pipe()
    try:
        done = grid.run(*WORDS, "echo", "done", stdin=begin)
        assert (done.returncode, done.stdout) == (0, "done\n")
    finally:
        os.close(begin)
        os.close(end)


def test_no_more_is_read_of_it_than_the_command_takes(grid: Grid) -> None:
    begin, end = os.pipe()
    os.set_blocking(end, False)
    ours = fcntl.fcntl(end, fcntl.F_GETPIPE_SZ)
    running = grid.begin(*WORDS, "--name", "takes-nothing", "sleep", "600", stdin=begin)
    os.close(begin)
    written = 0

    def full() -> bool:
        nonlocal written
        with suppress(BlockingIOError):
            while written < 4 << 20:
                written += os.write(end, b"x" * 4096)
        return written >= PIPE_BYTES + WINDOW + ours

    try:
        until(full, "its pipe, the node's window and our pipe are full")
        for _ in range(10):  # each asks the coordinator, by which all of it goes
            assert grid.job("takes-nothing")["state"] == "running" and full()
        assert written == PIPE_BYTES + WINDOW + ours
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
        os.close(end)


def test_a_loop_that_reads_a_file_keeps_its_lines_with_no_stdin(grid: Grid) -> None:
    command = shlex.join(GRID)
    (grid.here / "list").write_text("a\nb\n")
    for flag, seen in (("--no-stdin", "a\nb\n"), ("", "a\n")):
        script = f"while read -r one; do echo $one; {command} {' '.join(WORDS)} {flag} cat > /dev/null; done < list"
        done = subprocess.run(
            ["sh", "-c", script], env=grid.environment, cwd=grid.here, capture_output=True, text=True, timeout=120
        )
        assert done.stdout == seen, done.stderr


def test_a_detached_job_and_an_array_have_an_empty_input(grid: Grid) -> None:
    job = grid.run(*WORDS, "-d", "cat", input="lost?").stdout.strip()
    assert grid.run("job", "wait", job).returncode == 0
    assert grid.run("logs", job).stdout == ""
    assert grid.run(*WORDS, "--array", "0-1", "cat", input="whose?").stdout == ""


def test_another_attempt_reads_it_from_the_beginning(grid: Grid) -> None:
    flag = grid.here / "second"
    script = f"if [ -e {flag} ]; then cat; else touch {flag}; head -c 3 > /dev/null; exit 1; fi"
    done = piped(grid, b"all of it", "--retry-on", "failed", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, b"all of it"), done.stderr


def test_another_attempt_without_its_input_fails_and_says_why(grid: Grid) -> None:
    flag = grid.here / "third"
    script = f"if [ -e {flag} ]; then cat; else touch {flag}; cat > /dev/null; exit 1; fi"
    done = piped(grid, bytes(12 << 20), "--retry-on", "failed", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"went to an earlier attempt" in done.stderr


def test_a_client_that_leaves_ends_a_job_that_waits_for_its_input(grid: Grid) -> None:
    running = grid.begin(*WORDS, "--on-exit", "keep", "--name", "left", "cat", stdin=subprocess.PIPE)
    assert running.stdin is not None and running.stdout is not None
    running.stdin.write(b"half\n")
    assert running.stdout.readline() == b"half\n"
    running.terminate()
    _, said = running.communicate(timeout=60)
    assert b"it is ended, as its standard input is not whole" in said
    until(lambda: grid.job("left")["state"] == "ended", "the job has ended")
    outcome = grid.job("left")["outcome"]
    assert outcome["cause"] == "input-lost" and "its client left" in outcome["text"]


def test_a_job_that_is_kept_goes_on_with_an_empty_input_if_nothing_came_of_it(grid: Grid) -> None:
    begin, end = os.pipe()
    running = grid.begin(*WORDS, "--on-exit", "keep", "--name", "kept", "sh", "-c", "echo up; wc -c", stdin=begin)
    os.close(begin)
    assert running.stdout is not None
    assert running.stdout.readline() == b"up\n"
    running.terminate()
    _, said = running.communicate(timeout=60)
    os.close(end)
    assert b"the job goes on: grid attach " in said and b"its standard input is empty" in said
    assert grid.run("attach", "kept").stdout.split() == ["up", "0"]


def test_input_goes_on_when_the_nodes_agent_is_killed(tmp_path: Path) -> None:
    """It has all that it takes: a part is in the job's pipe, and a part is lost with the agent, and sent again."""
    core = ("--cores", str(min(os.sched_getaffinity(0))))
    with running_grid(tmp_path, flags=[core]) as own:
        data, gate = os.urandom(4 << 20), tmp_path / "gate"
        script = f"while [ ! -e {gate} ]; do sleep 0.05; done; exec cat"
        running = own.begin(*WORDS, "sh", "-c", script, stdin=subprocess.PIPE)
        written = [0]

        def write() -> None:
            assert running.stdin is not None
            with suppress(BrokenPipeError):  # where it failed, its exit code says so
                for at in range(0, len(data), 1 << 14):
                    running.stdin.write(data[at : at + (1 << 14)])
                    written[0] = at
                running.stdin.close()

        writer = threading.Thread(target=write)
        writer.start()
        assert running.stdin is not None
        most = PIPE_BYTES + WINDOW + fcntl.fcntl(running.stdin, fcntl.F_GETPIPE_SZ)
        until(lambda: written[0] + (1 << 14) == most, "the node has all that it takes, and our pipe is full")
        own.kill("n1")
        own.start_agent("n1", *core)
        gate.touch()
        assert running.stdout is not None and running.stderr is not None
        got = running.stdout.read()
        said = running.stderr.read()
        assert running.wait(120) == 0, said
        writer.join(60)
        assert got == data


@pytest.mark.parametrize("source", ["bytes", "file", "iterator"])
def test_a_program_gives_a_job_its_input(grid: Grid, source: str) -> None:
    data = os.urandom(1 << 20)
    (grid.here / "data").write_bytes(data)
    given: dict[str, Source] = {"bytes": data, "iterator": iter([data[:7], b"", data[7:]])}
    if source == "file":
        given["file"] = (grid.here / "data").open("rb")
    with GridClient(grid.url) as client:
        assert client.run("cat", stdin=given[source]).stdout_bytes == data


async def test_an_asyncio_program_gives_a_job_its_input(grid: Grid) -> None:
    data = os.urandom(1 << 20)

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(data), 100_000):
            yield data[at : at + 100_000]

    async with AsyncClient(grid.url) as client:
        assert (await client.run("cat", stdin=pieces())).stdout_bytes == data
        assert (await client.run("cat", stdin=data)).stdout_bytes == data


async def test_a_file_that_nobody_writes_to_keeps_no_program_waiting(grid: Grid) -> None:
    begin, end = os.pipe()
    with open(begin, "rb") as never:
        async with AsyncClient(grid.url) as client:
            assert (await client.run(["echo", "done"], stdin=never)).stdout == "done\n"
        os.close(end)


async def test_a_source_that_fails_ends_the_job_and_is_raised(grid: Grid) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise OSError("the disk is gone")

    def broken_too() -> Iterator[bytes]:
        yield b"half"
        raise OSError("the disk is gone")

    async with AsyncClient(grid.url) as client:
        with pytest.raises(OSError, match="the disk is gone"):
            await client.run("cat", stdin=broken(), name="broken")
        with pytest.raises(BadValue, match="standard input cannot be str"):
            await client.run("cat", stdin=["text"])  # type: ignore[list-item]
    with GridClient(grid.url) as blocking, pytest.raises(OSError, match="the disk is gone"):
        blocking.run("cat", stdin=broken_too(), name="broken-too")
    for name in ("broken", "broken-too"):
        assert grid.job(name)["outcome"]["cause"] == "input-lost"
