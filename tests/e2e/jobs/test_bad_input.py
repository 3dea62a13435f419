"""What a person can get wrong: one clear error each, a non-zero exit code, no traceback, and the grid goes on."""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.grid_fixture import Grid, running_grid, until


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with running_grid(tmp_path_factory.mktemp("grid")) as made:
        yield made


def fails(grid: Grid, *words: str, **options: Any) -> str:
    """The one error of a command that fails."""
    done = grid.run(*words, **options)
    assert done.returncode not in (0, None), done.stdout
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sum(line.lower().startswith("error: ") for line in done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("amount", ["0", "-1", "nan", "1e308", "inf", "", "one"])
@pytest.mark.parametrize("kind", ["cpu", "memory", "gpu"])
def test_amounts_that_are_none(grid: Grid, kind: str, amount: str) -> None:
    assert kind in fails(grid, "run-shared", "-t", kind, f"--amount={amount}", "--no-ship", "true")


WRONG = {
    "an unknown type": (("-t", "cpuu", "-a", "1", "true"), "did you mean cpu?"),
    "an amount of nothing": (("-a", "1", "true"), "--type"),
    "the same twice": (("-t", "cpu", "-a", "1", "--cpus", "1", "true"), "twice"),
    "an unknown node": (("--cpus", "1", "-n", "nn1", "true"), "did you mean n1?"),
    "an unknown priority": (("--cpus", "1", "--priority", "top", "true"), "urgent"),
    "a bad duration": (("--cpus", "1", "--time", "soon", "true"), "30m"),
    "a bad variable": (("--cpus", "1", "-e", "=x", "true"), "NAME=VALUE"),
    "a relative workdir": (("--cpus", "1", "--workdir", "here", "true"), "absolute"),
    "results from outside": (("--cpus", "1", "--get", "../x", "true"), "'../x' does not lead into"),
    "results of what is not awaited": (("--cpus", "1", "-d", "--get", "x", "true"), "attach JOB --get GLOB"),
    "an amount that looks like an option": (("--nodes", "2", "-1", "true"), "-1 is below zero"),
    "an unknown option": (("--typ", "cpu", "true"), "--type"),
    "no command": (("--cpus", "1"), "COMMAND"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_words_to_run_shared(grid: Grid, what: str) -> None:
    words, says = WRONG[what]
    assert says in fails(grid, "run-shared", "--no-ship", *words)


def test_what_no_node_could_ever_meet_is_refused_with_the_numbers(grid: Grid) -> None:
    said = fails(grid, "run-shared", "--cpus", "4096", "--no-ship", "true")
    assert "4096 cpu" in said and "n1" in said
    assert fails(grid, "run-shared", "--gpus", "64", "--no-ship", "true")


def test_unknown_jobs_commands_and_addresses(grid: Grid) -> None:
    for words in (("attach",), ("logs",), ("cancel",), ("why",), ("job", "show"), ("job", "wait"), ("job", "events")):
        assert "nosuchjob" in fails(grid, *words, "nosuchjob")
    assert "run-shared" in fails(grid, "run-shard")
    assert "ws://HOST:PORT" in fails(grid, "--coordinator", "nonsense", "status")
    assert "unknown node 'nn'" in fails(grid, "shared-status", "--node", "nn")
    assert "ports 1 to 65535" in fails(grid, "--coordinator", "ws://127.0.0.1:70000", "status")
    assert "unknown state" in fails(grid, "jobs", "--state", "sleeping")


@pytest.mark.parametrize("name", ["two words", "../../x", "n" * 65])
def test_names_that_no_node_may_have(grid: Grid, name: str) -> None:
    assert "a node cannot be called" in fails(grid, "agent", "run", "--name", name)


def test_somebody_else_at_the_address(grid: Grid) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"ws://127.0.0.1:{deaf.getsockname()[1]}"
        assert "why: no answer in time" in fails(grid, "--coordinator", url, "status")


# --- configuration ----------------------------------------------------------------------------------------------------


def test_an_unknown_key_is_told_with_its_line_and_a_suggestion(grid: Grid, tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("resource_sharing:\n  treshold:\n    cpu_percent_max: 3\n")
    for words in (("status",), ("run-shared", "--cpus", "1", "true"), ("config", "check"), ("agent", "detect")):
        said = fails(grid, "-c", str(file), *words)
        assert f"{file}:2" in said and "treshold" in said and "did you mean 'thresholds'?" in said
    assert "treshold" in fails(grid, "status", "-c", str(file))  # the options of all commands may follow the name too


def test_malformed_yaml(grid: Grid, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text("a: [1, 2\nb: 3\n")
    assert "not YAML" in fails(grid, "status", cwd=tmp_path)
    assert "cannot be read" in fails(grid, "-c", str(tmp_path / "nothing.yaml"), "status")


# --- services ---------------------------------------------------------------------------------------------------------


def test_a_port_in_use(grid: Grid, tmp_path: Path) -> None:
    port = grid.url.rpartition(":")[2]
    assert "in use" in fails(grid, "coordinator", "run", "--port", port, "--state-dir", str(tmp_path / "c"))
    assert "'http'" in fails(grid, "coordinator", "run", "--port", "http", "--state-dir", str(tmp_path / "c"))


def test_a_second_coordinator_on_one_state_directory(grid: Grid) -> None:
    said = fails(grid, "coordinator", "run", "--port", "0", "--state-dir", str(grid.home / "coordinator"))
    assert "another coordinator runs" in said and "--state-dir" in said


def test_state_directories_that_cannot_be_written(grid: Grid, tmp_path: Path) -> None:
    # Also root cannot make a directory below a file.
    (tmp_path / "file").write_text("")
    assert stat.S_ISREG((tmp_path / "file").stat().st_mode)
    for service in (("coordinator", "run", "--port", "0"), ("agent", "run", "--name", "n9")):
        said = fails(grid, *service, "--state-dir", str(tmp_path / "file" / "state"))
        assert "cannot be written" in said and "--state-dir" in said
    assert "cannot be written" in fails(grid, "dev", "up", "--dir", str(tmp_path / "file" / "dev"))


def test_a_second_agent_on_one_state_directory_and_one_with_the_same_name(grid: Grid, tmp_path: Path) -> None:
    assert "another agent runs" in fails(grid, "agent", "run", "--name", "n1", "--state-dir", str(grid.home / "n1"))
    said = fails(grid, "agent", "run", "--name", "n1", "--state-dir", str(tmp_path / "other"))
    assert "'n1'" in said and "--name" in said


def test_addresses_that_are_not_this_machine_need_insecure(grid: Grid, tmp_path: Path) -> None:
    said = fails(grid, "coordinator", "run", "--host", "0.0.0.0", "--state-dir", str(tmp_path / "c"))
    assert "--insecure" in said
    words = ("agent", "run", "--name", "n8", "--state-dir", str(tmp_path / "a"))
    assert "--insecure" in fails(grid, "--coordinator", "ws://192.0.2.1:7433", *words)


def test_cores_memory_and_gpus_that_are_not_there(grid: Grid, tmp_path: Path) -> None:
    words = ("agent", "run", "--name", "n7", "--state-dir", str(tmp_path / "a"))
    assert "5000" in fails(grid, *words, "--cores", "5000")
    assert "cores" in fails(grid, *words, "--cores", "three")
    assert "memory" in fails(grid, *words, "--memory", "lots")
    assert "GPU" in fails(grid, *words, "--gpus", "GPU-nowhere")


SHOWN = [
    line.split()
    for line in ("jobs --all", "job show last", "job events last", "why last", "status", "shared-status", "nodes")
]


def test_what_a_user_names_acts_on_nobody_elses_terminal_and_what_his_job_writes_is_as_it_is(grid: Grid) -> None:
    evil = "x\x1b]0;owned\x07\x9b2J\u202ey"
    assert "printable" in fails(grid, "run-shared", "--name", evil, "--no-ship", "true")
    never = grid.shared(evil, f"--{evil}", "-d")
    found = [never.stderr]
    written = grid.shared("printf", "%s", evil)
    assert written.stdout == evil
    for form in ("table", "json", "jsonl", "quiet"):
        for words in SHOWN:
            done = grid.run("-o", form, *words)
            found += [done.stdout, done.stderr]
    for text in found:
        assert all(line.isprintable() for line in text.split("\n")), repr(text)
    log = (grid.home / "coordinator.log").read_text() + (grid.home / "n1.log").read_text()
    assert all(line.isprintable() for line in log.split("\n"))


@pytest.mark.parametrize("words", [("y" * 60_000,), ("-e", "PATH=/" + "y" * 60_000, "nothing")], ids=["name", "path"])
def test_a_command_that_is_not_found_and_has_a_long_name_ends_as_any_other(grid: Grid, words: tuple[str, ...]) -> None:
    done = grid.run("run-shared", "--cpus", "0.1", "--no-ship", *words)
    assert done.returncode == 127 and "yyyy" in done.stderr and len(done.stderr) < 10_000
    assert grid.run("run-shared", "--cpus", "0.1", "--no-ship", "true").returncode == 0, "the node goes on"


def test_nothing_was_lost_by_any_of_it(grid: Grid) -> None:
    assert grid.shared("echo", "still here").stdout == "still here\n"
    up = lambda: [offer["state"] for offer in grid.json("shared-status")["offers"]] == ["up"]  # noqa: E731
    until(up, "its one node is up")
