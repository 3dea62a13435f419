"""Signals to `grid run-shared` do what they would do to the command itself, and nothing is left when they say so."""

import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests import forked
from tests.grid_fixture import GRID, Grid, running_grid, until

SHARED = ("run-shared", "-t", "cpu", "-a", "1", "--no-ship")


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with running_grid(tmp_path_factory.mktemp("grid")) as made:
        yield made


def running(grid: Grid, name: str, script: str, *flags: str) -> subprocess.Popen[bytes] | forked.Command:
    """A job of this name, begun and past its first line of output."""
    process = grid.begin(*SHARED, *flags, "--name", name, "sh", "-c", f"echo begun; {script}")
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    return process


def test_one_interrupt_reaches_the_job_and_its_exit_code_comes_back(grid: Grid) -> None:
    process = running(grid, "polite", "trap 'echo bye; exit 42' INT; while :; do sleep 0.05; done")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (42, b"bye\n")


def test_one_interrupt_ends_a_job_that_does_not_care_with_130(grid: Grid) -> None:
    process = running(grid, "plain", "exec sleep 600")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"signal 2 (SIGINT)" in err


def test_two_interrupts_leave_nothing_of_a_stubborn_job(grid: Grid) -> None:
    word = f"stubborn-{os.getpid()}"
    # It ignores what can be ignored, and leaves a daemon in a session of its own.
    script = (
        f"(trap '' INT TERM; setsid sh -c 'trap \"\" INT TERM; while :; do sleep 0.1; done' {word} &) ; "
        f"trap 'echo no' INT; trap '' TERM; echo daemon; while :; do sleep 0.1; done # {word}"
    )
    process = running(grid, "stubborn", script)
    assert process.stdout is not None and process.stdout.readline() == b"daemon\n"
    until(lambda: len(grid.processes_with(word)) >= 2, "its daemon runs")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"no\n"
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 137
    assert grid.processes_with(word) == []
    assert grid.job("stubborn")["outcome"]["cause"] == "cancelled"


def test_three_interrupts_leave_the_client_at_once(grid: Grid) -> None:
    process = running(grid, "thrice", "trap 'echo no' INT; trap '' TERM; while :; do sleep 0.1; done")
    assert process.stdout is not None and process.stderr is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"no\n"
    grid.kill("n1", signal.SIGSTOP)  # the job does not end before we have left
    try:
        process.send_signal(signal.SIGINT)
        while b"ending the job" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        grid.kill("n1", signal.SIGCONT)
    assert process.returncode == 130 and b"grid attach" in err  # not 137: the job was not waited for
    grid.run("job", "wait", "thrice")


def test_an_interrupt_of_a_waiting_job_cancels_it(grid: Grid) -> None:
    cores = len(grid.json("nodes")["nodes"][0]["cores"])
    holder = grid.run("run-shared", "-t", "cpu", "-a", str(cores), "--no-ship", "-d", "sleep", "600").stdout.strip()
    try:
        process = grid.begin(*SHARED, "--name", "queued", "true")
        until(lambda: "queued" in grid.run("jobs").stdout, "it is queued")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130 and b"cancelled before it ran" in err
    finally:
        grid.run("cancel", "--force", holder)
        grid.run("job", "wait", holder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_ending_the_client_cancels_its_job(grid: Grid, number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("these tests were started so that hang-ups are ignored (nohup), and a client heeds that")
    name = f"ended-{number.name}"
    process = running(grid, name, "exec sleep 600")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert grid.job(name)["outcome"]["cause"] == "cancelled"


def test_with_on_exit_keep_the_job_goes_on(grid: Grid) -> None:
    gate = grid.here / "left"
    process = running(grid, "kept", f"until [ -e {gate} ]; do sleep 0.05; done; echo still here", "--on-exit", "keep")
    process.terminate()
    _, err = process.communicate(timeout=60)
    gate.touch()
    assert process.returncode == 143 and b"grid attach" in err
    done = grid.run("attach", "kept")
    assert (done.returncode, done.stdout) == (0, "begun\nstill here\n")


def test_ending_attach_leaves_the_job_running(grid: Grid) -> None:
    ident = grid.run(*SHARED, "-d", "sh", "-c", "echo begun; exec sleep 600").stdout.strip()
    process = grid.begin("attach", ident)
    assert process.stdout is not None and process.stdout.readline() == b"begun\n"
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert grid.job(ident)["state"] == "running"
    assert grid.run("cancel", "--force", ident).returncode == 0
    assert grid.run("job", "wait", ident).returncode == 137


def test_a_client_that_loses_the_coordinator_resumes(grid: Grid) -> None:
    gate = grid.here / "gate"
    script = f"i=0; while [ ! -e {gate} ]; do echo $i; i=$((i+1)); sleep 0.02; done; echo end; exit 9"
    process = running(grid, "resumed", script)
    grid.kill("coordinator")
    time.sleep(0.2)
    grid.start_coordinator()
    until(lambda: grid.job("resumed")["state"] == "running", "the agent is back")
    gate.touch()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 9
    lines = out.decode().splitlines()
    assert lines == [*map(str, range(len(lines) - 1)), "end"]
    assert err.count(b"connection lost") == 1 and b"connected again" in err and b"websocket" not in err


def test_on_a_terminal_a_waiting_job_says_why_in_one_line(grid: Grid) -> None:
    cores = len(grid.json("nodes")["nodes"][0]["cores"])
    holder = grid.run("run-shared", "-t", "cpu", "-a", str(cores), "--no-ship", "-d", "sleep", "600").stdout.strip()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*GRID, *SHARED, "echo", "at", "last"],
        env=grid.environment, cwd=grid.here, stdout=subprocess.PIPE, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    try:
        while b"waiting: " not in seen:
            seen += os.read(ours, 4096)
    finally:
        grid.run("cancel", "--force", holder)
    out, _ = process.communicate(timeout=60)
    try:
        while piece := os.read(ours, 4096):
            seen += piece
    except OSError:  # the terminal is gone with its last user
        pass
    os.close(ours)
    assert (process.returncode, out) == (0, b"at last\n")
    lines = seen.decode().replace("\r\n", "\n").split("\n")
    assert "waiting: " in lines[0] and "\r\x1b[K" in lines[0]
    assert "running on n1" in lines[0].rpartition("\r\x1b[K")[2] and lines[1:] == [""]


def test_a_piped_waiting_job_says_once_why_and_then_that_it_runs(grid: Grid) -> None:
    cores = len(grid.json("nodes")["nodes"][0]["cores"])
    holder = grid.run("run-shared", "-t", "cpu", "-a", str(cores), "--no-ship", "-d", "sleep", "600").stdout.strip()
    process = subprocess.Popen(
        [*GRID, *SHARED, "echo", "at", "last"],
        env=grid.environment, cwd=grid.here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    waits = process.stderr.readline()
    grid.run("cancel", "--force", holder)
    out, rest = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "at last\n")
    assert re.fullmatch(r"grid: (j-\w+) waits: Resources – .* \(grid why \1\)\n", waits), waits
    assert re.fullmatch(r"grid: j-\w+ running on n1 .*\n", rest), rest
