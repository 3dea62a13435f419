"""What a forked command does is what one does that begins with an interpreter of its own."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.grid_fixture import GRID, until
from tests.push.hosts import own_network


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRID_")}
    return kept | {"XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["run-shared", "--help"],
        ["no-such-command"],
        ["jobs", "--coordinator", "ws://127.0.0.1:1"],
        ["config", "show"],
        ["login", "-"],
    ],
)
def test_output_and_exit_code_are_the_same(words: list[str], environment: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text("name: of-this-folder\n")
    assert forked.can(words, environment)
    done = forked.grid(words, environment, tmp_path, input=b"no token\n")
    real = subprocess.run([*GRID, *words], env=environment, cwd=tmp_path, input=b"no token\n", capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (real.returncode, real.stdout, real.stderr)


@pytest.mark.netns
def test_a_command_is_in_the_network_of_the_thread_that_asks(environment: Mapping[str, str], tmp_path: Path) -> None:
    assert forked.grid(["--version"], environment, tmp_path).returncode == 0  # the server is in ours from now on
    with own_network(), socket.create_server(("127.0.0.1", 0)) as there:
        asker = threading.Thread(target=lambda: there.accept()[0].close())
        asker.start()
        address = f"ws://127.0.0.1:{there.getsockname()[1]}"
        done = forked.grid(["jobs", "--coordinator", address], environment, tmp_path)
        asker.join(10.0)
    assert not asker.is_alive(), done.stderr


def test_what_takes_too_long_is_killed(environment: Mapping[str, str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    with pytest.raises(subprocess.TimeoutExpired):
        forked.grid(["-c", str(tmp_path / "never"), "config", "show"], environment, tmp_path, timeout=0.5)
    assert forked.grid(["--version"], environment, tmp_path).returncode == 0


def test_what_says_how_an_interpreter_starts_needs_one(environment: Mapping[str, str]) -> None:
    assert not forked.can(["jobs"], {**environment, "PYTHONUTF8": "0"})
    assert not forked.can(["jobs"], {**environment, "LC_ALL": "POSIX"})
    assert not forked.can(["agent", "install"], environment)


def test_a_service_runs_until_it_is_ended_and_says_how(environment: Mapping[str, str], tmp_path: Path) -> None:
    words = ["coordinator", "run", "--port", "0", "--state-dir", str(tmp_path / "state")]
    assert forked.can_serve(environment) and not forked.can_serve({**environment, "LC_ALL": "POSIX"})
    with (tmp_path / "log").open("ab") as log:
        first = forked.service(words, environment, tmp_path, log)
        until((tmp_path / "state/coordinator.json").exists, "it listens")
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(0.01)
        second = forked.service(words, environment, tmp_path, log)
        assert second.wait(30.0) not in (0, None) and first.poll() is None, "one at a time"
        first.terminate()
        assert (first.wait(30.0), first.poll()) == (0, 0)
        third = forked.service(words, environment, tmp_path, log)
        third.kill()
        assert (third.wait(30.0), third.returncode) == (-9, -9)
    third.kill()
    assert b"listening" in (tmp_path / "log").read_bytes()


TELLS = """
import json, os, sys
import beside
print(json.dumps([sys.argv, os.environ["HERE"], os.getcwd(), beside.NAME, __name__]), flush=True)
sys.exit(7)
"""


def test_a_program_has_its_words_environment_folder_and_path(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/beside.py").write_text("NAME = 'beside'")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "modules"), "HERE": "there"}
    assert forked.can_run(environment)
    told = []
    for number, code in enumerate((TELLS.replace("sys.exit(7)", "1 / 0"), TELLS)):
        (program := tmp_path / "program.py").write_text(code)
        with (log := tmp_path / f"log{number}").open("ab") as file:
            assert forked.program(program, ["a", "-b"], environment, tmp_path, file).wait(30.0) == (1, 7)[number]
        told.append(log.read_text())
    command = [sys.executable, "-P", str(program), "a", "-b"]
    real = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True)
    assert (real.returncode, told[1]) == (7, real.stdout.decode())
    assert told[0].startswith(told[1]) and "ZeroDivisionError" in told[0]


def test_faults_are_in_place(environment: Mapping[str, str], tmp_path: Path) -> None:
    words = ["coordinator", "run", "--port", "0", "--state-dir", str(tmp_path / "state")]
    with (tmp_path / "log").open("ab") as log:
        faults = {"GRID_FAULTS": "coordinator.epoch.after:1:kill"}
        assert forked.service(words, {**environment, **faults}, tmp_path, log).wait(30.0) == -signal.SIGKILL
    assert (tmp_path / "log").read_text().endswith("GRID_FAULTS coordinator.epoch.after:1:kill\n")


def test_a_program_that_starts_otherwise_needs_an_interpreter_of_its_own() -> None:
    assert not forked.can_run(os.environ | {"LC_ALL": "POSIX"})


def test_a_command_with_pipes_is_like_one_of_subprocess(environment: Mapping[str, str], tmp_path: Path) -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    real = subprocess.Popen([*GRID, "login", "-"], env=environment, cwd=tmp_path, **pipes)
    ours = forked.Command(["login", "-"], environment, tmp_path, **pipes)
    with pytest.raises(subprocess.TimeoutExpired):
        ours.wait(0.01)
    assert ours.poll() is None
    assert ours.communicate(b"no token\n") == real.communicate(b"no token\n")
    assert ours.returncode == real.returncode == ours.poll() == ours.wait() != 0
    with forked.Command(["login", "-"], environment, tmp_path, **pipes) as waits:
        waits.send_signal(signal.SIGKILL)
        assert waits.wait() == -signal.SIGKILL
        assert waits.stdout is not None and waits.stdout.read() == b""


def test_the_end_of_a_command_is_told_while_one_that_began_later_runs(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (
        forked.Command(["login", "-"], environment, tmp_path, **pipes) as first,
        forked.Command(["login", "-"], environment, tmp_path, **pipes) as second,
    ):
        out, err = first.communicate(b"no token\n", 30.0)
        assert (out, bool(err), first.returncode, second.poll()) == (b"", True, 2, None)


def test_a_command_writes_into_a_file_that_it_is_given(environment: Mapping[str, str], tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        assert forked.Command(["--version"], environment, tmp_path, stdout=file).wait() == 0
        file.write(b"end\n")  # it is still ours
    assert (tmp_path / "out").read_bytes().endswith(b"\nend\n")
