"""A node whose journal was damaged does not know what ran: nothing is started twice, however it was damaged. Real
processes, killed by their pids."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.grid_fixture import Grid, running_grid, until

LOOP = 'while :; do echo "$0 $$" >> {file}; sleep 0.05; done'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with running_grid(tmp_path_factory.mktemp("grid"), agents=1) as running:
        yield running


@pytest.fixture
def grid(made: Grid) -> Iterator[Grid]:
    """Nothing runs there, and nothing is in doubt; what was logged before is put aside."""
    for log in (made.home / "coordinator.log", made.home / "n1" / "supervisor.log"):
        if log.exists():
            os.truncate(log, 0)  # both are written to at their end
    yield made
    made.run("cancel", "--all")
    until(lambda: made.json("jobs")["jobs"] == [], "no job is left")
    until(lambda: node(made)["state"] == "up" and not unknown(made), "the node knows what runs")


def flip_a_bit(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[20] ^= 4
    path.write_bytes(whole)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "one flipped bit in line 1": flip_a_bit,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}
NAMES_THE_JOB = {"one flipped bit in line 1"}
"""What of the journal can be read still has the job, so it runs on."""


class Witness:
    """What the attempts of the job write: which it is, and its pid, again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def seen(self) -> dict[str, int]:
        lines = self.path.read_text().split("\n")[:-1] if self.path.exists() else []
        return {attempt: int(pid) for attempt, pid in (line.split() for line in lines)}

    def alive(self) -> set[str]:
        """The attempts of which a process lives."""
        return {attempt for attempt in self.seen() if self.processes(attempt)}

    def processes(self, attempt: str) -> list[int]:
        """Return the main process of the attempt by its pid outside: in a pid namespace of its own it writes another
        one."""
        argv = ["sh", "-c", LOOP.format(file=self.path), attempt]
        cmdline = "".join(f"{word}\0" for word in argv).encode()
        written = self.seen()[attempt]
        pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        return [pid for pid in pids if _cmdline(pid) == cmdline and _innermost(pid) == written]


def _innermost(pid: int) -> int | None:
    """The pid of the process in its own pid namespace; None if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    return int(status.partition("\nNSpid:")[2].partition("\n")[0].split()[-1])


def crash(grid: Grid, damage: Callable[[Path], object], notes: bool = True) -> None:
    """The agent and its supervisor are killed, the journal is damaged, and the agent is started again; without `notes`
    it has lost those of its spawners, too."""
    state = grid.home / "n1"
    supervisor = json.loads((state / "supervisor.pid").read_text())["pid"]
    grid.kill("n1")
    os.kill(supervisor, signal.SIGKILL)
    until(
        lambda: not Path(f"/proc/{supervisor}/cmdline").exists() or not _cmdline(supervisor), "the supervisor is gone"
    )
    damage(state / "journal")
    if not notes:
        shutil.rmtree(state / "spawners")
    grid.start_agent("n1")


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def node(grid: Grid) -> dict[str, object]:
    (one,) = grid.json("nodes")["nodes"]
    return dict(one)


def unknown(grid: Grid) -> bool:
    return "unknown what ran" in json.dumps(node(grid)) and node(grid)["state"] == "up"


def accept_loss(grid: Grid) -> str:
    done = grid.run("agent", "accept-loss", "--state-dir", str(grid.home / "n1"))
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", DAMAGES)
def test_no_damage_of_the_journal_lets_a_second_attempt_run_beside_the_first(
    grid: Grid, tmp_path: Path, name: str
) -> None:
    witness = Witness(tmp_path / "witness")
    script = LOOP.format(file=witness.path)
    started = grid.shared(
        "-d",
        "--retry-on",
        "lost",
        "--retries",
        "1",
        "--",
        "sh",
        "-c",
        f'set -- "$GRID_ALLOCATION_ID"; exec sh -c \'{script}\' "$1"',
    )
    assert started.returncode == 0, started.stderr
    until(witness.seen, "the job runs")
    (first,) = witness.seen()
    crash(grid, DAMAGES[name])
    log = grid.home / "n1" / "supervisor.log"
    until(lambda: "unknown what ran" in log.read_text(), "the damage is told")
    if name in NAMES_THE_JOB:
        until(lambda: not unknown(grid), "the node knows again what runs")
        until(lambda: grid.job()["state"] == "running", "the coordinator knows that it runs")
        assert witness.alive() == {*witness.seen()} == {first}
    else:
        until(lambda: first not in witness.alive(), "what was found of it is ended")
        until(lambda: len(witness.seen()) == 2, "the second attempt runs")
        assert witness.alive() == {*witness.seen()} - {first}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_the_node_cannot_find_is_held_until_somebody_says_that_it_is_gone(
    grid: Grid, tmp_path: Path, name: str
) -> None:
    witness = Witness(tmp_path / "witness")
    script = LOOP.format(file=witness.path)
    hides = f'exec env -i PATH="$PATH" sh -c \'{script}\' "$GRID_ALLOCATION_ID"'
    started = grid.shared("-d", "--retry-on", "lost", "--retries", "1", "--", "sh", "-c", hides)
    assert started.returncode == 0, started.stderr
    until(witness.seen, "the job runs")
    (first,) = witness.seen()
    (pid,) = witness.processes(first)
    crash(grid, DAMAGES[name], notes=False)
    until(lambda: unknown(grid), "the node says that it does not know what ran")
    assert "unknown what ran" in grid.run("nodes").stdout
    assert "it is not known what ran on a node" in (grid.home / "coordinator.log").read_text()
    stands = "running" if name in NAMES_THE_JOB else "lost"
    until(lambda: grid.job()["state"] == stands, "the grid holds what is not known there")
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert witness.alive() == {first} and [*witness.seen()] == [first]
        time.sleep(0.05)  # who has run stays written down: to look all the time takes a whole core
    grid.kill("n1")
    grid.start_agent("n1")  # and it still knows that it does not know
    until(lambda: unknown(grid), "the node says so again")
    assert grid.job()["state"] == stands and witness.alive() == {first}
    os.kill(pid, signal.SIGKILL)
    accept_loss(grid)
    if stands == "running":
        until(lambda: grid.job()["state"] == "ended", "its end is known")
        assert grid.job()["outcome"]["signal"] == 9
        return
    until(lambda: len(witness.seen()) == 2, "the second attempt runs")
    assert first not in witness.alive()
