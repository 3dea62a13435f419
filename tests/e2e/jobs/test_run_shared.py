"""`grid run-shared` is like running the command here: its exit code, its bytes, its words when it fails."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grid_fixture import GRID, Grid, running_grid


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with running_grid(tmp_path_factory.mktemp("grid")) as made:
        yield made


# --- exit codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 7, 125, 255])
def test_the_exit_code_is_the_jobs_own(grid: Grid, code: int) -> None:
    done = grid.shared("sh", "-c", f"exit {code}")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_job_killed_by_signal_9_exits_with_137_and_says_so(grid: Grid) -> None:
    done = grid.shared("sh", "-c", "kill -9 $$")
    assert done.returncode == 137
    assert "killed by signal 9 (SIGKILL)" in done.stderr


def test_a_missing_program_is_127(grid: Grid) -> None:
    done = grid.shared("no-such-program-anywhere")
    assert done.returncode == 127
    assert "no-such-program-anywhere" in done.stderr and "not found" in done.stderr


def test_a_program_that_is_not_executable_is_126(grid: Grid) -> None:
    path = grid.here / "plain.txt"
    path.write_text("words")
    done = grid.shared(str(path))
    assert done.returncode == 126
    assert str(path) in done.stderr


def test_the_time_limit_is_124(grid: Grid) -> None:
    done = grid.run("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "--time", "0.5", "sleep", "600")
    assert done.returncode == 124
    assert "time limit" in done.stderr


def test_an_unreachable_coordinator_is_125_with_what_why_and_try(grid: Grid) -> None:
    done = grid.run("--coordinator", "ws://127.0.0.1:9", "run-shared", "-t", "cpu", "-a", "1", "--no-ship", "true")
    assert done.returncode == 125
    lines = done.stderr.splitlines()
    assert lines[0] == "error: cannot reach the coordinator at ws://127.0.0.1:9"
    assert lines[1].startswith("  why: connection refused")
    assert lines[2].startswith("  try: ")


def test_immediate_is_75_when_nothing_is_free(grid: Grid) -> None:
    cores = len(grid.json("nodes")["nodes"][0]["cores"])
    words = ("run-shared", "-t", "cpu", "-a", str(cores), "--no-ship")
    holder = grid.run(*words, "-d", "sleep", "600").stdout.strip()
    try:
        done = grid.run(*words, "--immediate", "true")
        assert done.returncode == 75, done.stderr
        assert "was not placed" in done.stderr
        assert grid.run(*words, "--dry-run", "true").returncode == 75
    finally:
        assert grid.run("cancel", holder).returncode == 0
        grid.run("job", "wait", holder)


# --- output -----------------------------------------------------------------------------------------------------------


PROGRAM = """
import hashlib, os, sys
def noise(seed, size):
    return b"".join(hashlib.sha256(b"%d %d" % (seed, n)).digest() for n in range(size // 32))
{writes}
"""


def noise(seed: int, size: int) -> bytes:
    return b"".join(hashlib.sha256(b"%d %d" % (seed, n)).digest() for n in range(size // 32))


def write(grid: Grid, writes: str) -> subprocess.CompletedProcess[bytes]:
    path = grid.here / "write.py"
    path.write_text(PROGRAM.format(writes=writes))
    return grid.run_bytes("run-shared", "-t", "cpu", "-a", "1", "--no-ship", sys.executable, str(path))


def test_binary_output_is_byte_exact(grid: Grid) -> None:
    done = write(grid, "os.write(1, bytes(range(256)) * 10)")
    assert (done.returncode, done.stdout, done.stderr) == (0, bytes(range(256)) * 10, b"")


def test_megabytes_of_noise_are_byte_exact(grid: Grid) -> None:
    done = write(grid, "sys.stdout.buffer.write(noise(1, 5 << 20)); sys.stderr.buffer.write(noise(2, 1 << 20))")
    assert done.returncode == 0
    assert done.stdout == noise(1, 5 << 20)
    assert done.stderr == noise(2, 1 << 20)


def test_lines_of_a_mebibyte_arrive_whole(grid: Grid) -> None:
    done = write(grid, "sys.stdout.write(('x' * (1 << 20) + chr(10)) * 3)")
    assert done.stdout == (b"x" * (1 << 20) + b"\n") * 3


def test_no_newline_is_added_and_carriage_returns_stay(grid: Grid) -> None:
    done = grid.run_bytes("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "printf", "10%%\\r50%%\\r100%%")
    assert done.stdout == b"10%\r50%\r100%"


def test_stdout_and_stderr_stay_apart(grid: Grid) -> None:
    done = grid.shared("sh", "-c", "echo out; echo err >&2; echo out again")
    assert (done.stdout, done.stderr) == ("out\nout again\n", "err\n")


def test_output_comes_while_the_job_runs(grid: Grid) -> None:
    gate = grid.here / "gate"
    process = grid.begin(
        "run-shared", "-t", "cpu", "-a", "1", "--no-ship", "sh", "-c",
        f"echo first; while [ ! -e {gate} ]; do sleep 0.02; done; echo second",
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"first\n"
    gate.touch()
    assert process.communicate(timeout=60)[0] == b"second\n"
    assert process.returncode == 0


def test_a_reader_that_leaves_ends_the_job_as_it_would_here(grid: Grid) -> None:
    line = f"{shlex.join(GRID)} run-shared -t cpu -a 1 --no-ship --name pipe yes | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=grid.environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "y\n141\n", done.stderr
    assert grid.job("pipe")["state"] == "ended"


# --- surroundings -----------------------------------------------------------------------------------------------------


def test_taskset_in_the_job_shows_exactly_the_cores_granted(grid: Grid) -> None:
    done = grid.shared("sh", "-c", "taskset -cp $$ | sed 's/.*: //'")
    cores = grid.job()["grant"]["cores"]
    assert len(cores) == 1
    assert done.stdout.strip() == str(cores[0])


def test_variables_reach_the_job(grid: Grid) -> None:
    grid.environment["PASSED_ON"] = "from here"
    words = ("run-shared", "--cpus", "1", "--no-ship", "-e", "A=1=2", "-e", "PASSED_ON", "sh", "-c")
    assert grid.run(*words, 'echo "$A $PASSED_ON $GRID_NODE"').stdout == "1=2 from here n1\n"
    del grid.environment["PASSED_ON"]
    missing = grid.run(*words, "true")
    assert missing.returncode == 2 and "PASSED_ON" in missing.stderr


def test_options_after_the_command_are_the_commands(grid: Grid) -> None:
    done = grid.shared("echo", "-n", "--typ", "-t", "gpu", "--help")
    assert done.stdout == "--typ -t gpu --help"


@pytest.fixture
def folder(grid: Grid, tmp_path: Path) -> Path:
    here = tmp_path / "work"
    (here / "data").mkdir(parents=True)
    (here / "data/numbers").write_text("1\n2\n3\n")
    (here / "tool").write_text(
        "#!/bin/sh\nmkdir -p out/deep; cat data/numbers | tac > out/deep/numbers; ls > out/names\n"
    )
    (here / "tool").chmod(0o755)
    (here / ".gitignore").write_text("secret\n")
    (here / "secret").write_text("not for others")
    return here


def test_the_directory_travels_and_results_come_back(grid: Grid, folder: Path) -> None:
    done = grid.run("run-shared", "-t", "cpu", "-a", "1", "--get", "out/**", "./tool", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "out/deep/numbers").read_text() == "3\n2\n1\n"
    assert "secret" not in (folder / "out/names").read_text().split()


def test_results_are_not_written_outside(grid: Grid, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "out").symlink_to(outside)
    script = "mkdir -p out; echo gotcha > out/file"
    done = grid.run("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "--get", "out/*", "sh", "-c", script, cwd=folder)
    assert done.returncode == 125
    assert "error: 1 file is not written: out/file (out is a link here)" in done.stderr
    assert not list(outside.iterdir())


def test_results_that_are_not_there_make_a_success_a_failure(grid: Grid) -> None:
    done = grid.run("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "--get", "*.none", "true")
    assert done.returncode == 125 and "matches no file" in done.stderr
    done = grid.run("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "--get", "*.none", "false")
    assert done.returncode == 1


def test_what_is_too_large_is_refused_by_name(grid: Grid, tmp_path: Path) -> None:
    with (tmp_path / "huge.bin").open("wb") as file:
        os.truncate(file.fileno(), 300 << 20)
    done = grid.run("run-shared", "-t", "cpu", "-a", "1", "true", cwd=tmp_path)
    assert done.returncode == 125
    assert "huge.bin" in done.stderr and "--no-ship" in done.stderr and "--workdir" in done.stderr


# --- later ------------------------------------------------------------------------------------------------------------


def test_a_detached_job_is_followed_by_attach_logs_and_wait(grid: Grid) -> None:
    script = "echo one; echo two >&2; exit 3"
    job = grid.run("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "-d", "--name", "later", "sh", "-c", script)
    assert job.returncode == 0 and job.stdout.startswith("j-") and job.stdout.count("\n") == 1
    ident = job.stdout.strip()
    assert grid.run("job", "wait", ident).returncode == 3
    for ref in (ident, ident[:8], "later", "last"):
        done = grid.run("attach", ref)
        assert (done.returncode, done.stdout, done.stderr) == (3, "one\n", "two\n"), ref
    done = grid.run("logs", "later")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\n", "two\n")
    assert grid.run("logs", "--stderr", "last").stderr == "two\n"
    assert grid.run("logs", "-f", "--exit-code", "last").returncode == 3


def test_logs_shows_what_a_running_job_has_written_and_follows_it(grid: Grid) -> None:
    gate = grid.here / "gate2"
    script = f"echo begun; while [ ! -e {gate} ]; do sleep 0.02; done; echo done"
    ident = grid.run("run-shared", "--cpus", "1", "--no-ship", "-d", "sh", "-c", script).stdout.strip()
    follower = grid.begin("logs", "-f", ident)
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"begun\n"
    assert grid.run("logs", ident).stdout == "begun\n"
    gate.touch()
    assert follower.communicate(timeout=60)[0] == b"done\n"
    assert follower.returncode == 0


# --- what is shipped --------------------------------------------------------------------------------------------------


@pytest.fixture
def shipped(grid: Grid) -> Iterator[Path]:
    """A directory with a link that leads out of it, a secret and a file."""
    folder = grid.here / "shipped"
    folder.mkdir()
    (folder / "code").write_text("x" * 2000)
    (folder / ".env").write_text("TOKEN=1")
    outside = grid.here / "outside"
    outside.write_text("of elsewhere\n")
    (folder / "out").symlink_to(outside)
    yield folder
    outside.unlink()
    shutil.rmtree(folder)


def test_a_link_that_leads_out_is_refused_by_name_and_kept_followed_or_left_out_on_request(
    grid: Grid, shipped: Path
) -> None:
    words, outside = ("run-shared", "--cpus", "1"), grid.here / "outside"
    done = grid.run(*words, "true", cwd=shipped)
    assert done.returncode == 125
    assert f"out -> {outside}" in done.stderr and "--links follow" in done.stderr
    said = {
        "follow": "test -f out && ! test -L out && cat out",
        "keep": "readlink out",
        "skip": "test -e out || echo none",
    }
    found = {"follow": "of elsewhere\n", "keep": f"{outside}\n", "skip": "none\n"}
    for way, script in said.items():
        done = grid.run(*words, "--links", way, "sh", "-c", script, cwd=shipped)
        assert (done.returncode, done.stdout) == (0, found[way]), done.stderr
        assert (f"out -> {outside}" in done.stderr) == (way == "skip")


def test_secrets_are_left_out_and_named_unless_they_are_asked_for(grid: Grid, shipped: Path) -> None:
    words = ("run-shared", "--cpus", "1", "--links", "skip")
    done = grid.run(*words, "ls", "-A", cwd=shipped)
    assert done.stdout == "code\n"
    assert "grid: not shipped, since they may hold secrets: .env (--ship-secrets ships them)" in done.stderr
    done = grid.run(*words, "--ship-secrets", "ls", "-A", cwd=shipped)
    assert done.stdout == ".env\ncode\n" and "secrets" not in done.stderr


def test_the_ceiling_of_what_is_shipped_is_a_setting(
    grid: Grid, shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run-shared", "--cpus", "1", "--links", "skip", "true")
    monkeypatch.setitem(grid.environment, "GRID_SHIPPING__CEILING", "1K")
    done = grid.run(*words, cwd=shipped)
    assert done.returncode == 125 and "1K is the most" in done.stderr and "shipping.ceiling" in done.stderr
    monkeypatch.setitem(grid.environment, "GRID_SHIPPING__CEILING", "4K")
    assert grid.run(*words, cwd=shipped).returncode == 0


def test_json_is_one_value_with_a_schema_number(grid: Grid) -> None:
    grid.shared("true")
    for words in (
        ("status",),
        ("nodes",),
        ("jobs", "--all"),
        ("shared-status",),
        ("why", "last"),
        ("job", "events", "last"),
    ):
        assert grid.json(*words)["schema"] == 1
    job = grid.job()
    assert (job["state"], job["exit_code"], job["command"], job["node"]) == ("ended", 0, ["true"], "n1")
    assert [event["state"] for event in job["events"]] == ["waiting", "starting", "running", "ended"]
    assert grid.run("jobs", "--all", "-o", "quiet", "--limit", "1").stdout.strip() == job["id"]


def test_tables_have_no_colour_and_no_control_characters_when_piped(grid: Grid) -> None:
    grid.run("run-shared", "--cpus", "1", "--no-ship", "--name", "a\tb", "true")
    done = grid.run("jobs", "--all")
    assert "\x1b" not in done.stdout and "\t" not in done.stdout
    assert "\x1b[" in grid.run("--color", "always", "jobs", "--all").stdout
