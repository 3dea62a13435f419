"""A spawner that is told to prepare goes to the job's directory and finds its program; it starts nothing before it is
told to spawn, and what it is told then is what counts. How its job ended is noted before the job is gone."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.walls import wire
from distributed_grid.agent.walls.enclosure import Slot
from distributed_grid.agent.walls.spawner import Spawner
from tests.grid_fixture import until

BUSY = "count=0; while [ $count -lt 100000 ]; do count=$((count+1)); done"
"""Takes some 0.1 s of CPU time in a shell."""


class Told:
    """A spawner without walls in a process of its own, and the supervisor's end of its channel."""

    def __init__(self, folder: Path, noting: int = os.O_WRONLY) -> None:
        self.folder = folder
        slot = Slot("s1", "none", str(folder), str(folder), os.getuid(), os.getgid())
        note = os.open(folder / "note", noting | os.O_CREAT, 0o600)
        self.channel, theirs = wire.pair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.channel.close()
                Spawner(slot, theirs, note).run()
            finally:
                os._exit(0)
        theirs.close()
        os.close(note)

    def order(self, op: str, job: str, *argv: str, fds: tuple[int, ...] = (), short: bool = False) -> None:
        where = {"cwd": str(self.folder / job), "make": True, "folder": str(self.folder), "outputs": []}
        wire.send(
            self.channel,
            {"op": op, "id": job, "argv": argv, "env": {"PATH": os.defpath}, "cores": [], "short": short, **where},
            fds,
        )

    def run(self, job: str, *argv: str) -> tuple[dict[str, Any], str]:
        """Spawn it; its last report, and what it wrote."""
        with (self.folder / f"{job}.out").open("w+b") as out:
            self.order("spawn", job, *argv, fds=(out.fileno(), out.fileno()))
            said: dict[str, Any] = {}
            while said.get("op") != "failed" and said.get("left", True):
                said, _ = wire.receive(self.channel)
            out.seek(0)
            return said, out.read().decode()

    def noted(self) -> list[Any]:
        """What its spawner has noted; empty: nothing yet."""
        lines = (self.folder / "note").read_text().splitlines()
        found: list[Any] = json.loads(lines[0]) if lines else []
        return found

    def close(self) -> None:
        self.channel.close()
        os.waitpid(self.pid, 0)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path)
    yield made
    made.close()


def test_a_directory_for_which_the_disk_has_no_inode_is_the_disks_failure(
    tmp_path: Path, few_inodes: Callable[[Path, int], Path]
) -> None:
    few_inodes(tmp_path, 3)  # and two files that are ours
    with closing(Told(tmp_path)) as told:
        said, _ = told.run("j1", "true")
    assert (said["op"], said["cause"]) == ("failed", "disk-failed")


def test_what_is_prepared_has_its_directory_and_runs_there_once_it_is_spawned(told: Told) -> None:
    told.order("prepare", "j1", "pwd")
    until((told.folder / "j1").exists, "it has its directory")
    said, wrote = told.run("j1", "pwd")
    assert (said["status"], wrote) == (0, f"{told.folder}/j1\n")


def test_another_job_than_the_prepared_one_runs_in_its_own_directory(told: Told) -> None:
    told.order("prepare", "j1", "false")
    until((told.folder / "j1").exists, "it has its directory")
    said, wrote = told.run("j2", "pwd")
    assert (said["status"], wrote) == (0, f"{told.folder}/j2\n")
    assert told.run("j1", "pwd")[1] == f"{told.folder}/j1\n"


def test_what_cannot_be_prepared_is_reported_when_it_is_spawned(told: Told) -> None:
    told.order("prepare", "j1", "no-such-program")
    said, _ = told.run("j1", "no-such-program")
    assert (said["op"], said["cause"]) == ("failed", "not-found")
    assert told.run("j2", "pwd")[1] == f"{told.folder}/j2\n"


def test_one_that_ends_just_after_it_was_looked_at_is_noted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, look = tmp_path / "gate", os.waitid
    os.mkfifo(gate)

    def and_then_it_ends(kind: int, which: int, how: int) -> object:
        seen = look(kind, which, how)
        if seen is None:
            with open(os.open(gate, os.O_RDWR), "wb", 0) as opened:
                opened.write(b"go\n")
                look(kind, which, how & ~os.WNOHANG)
        return seen

    monkeypatch.setattr(os, "waitid", and_then_it_ends)
    told = Told(tmp_path)
    said, _ = told.run("j1", "sh", "-c", f"read go <{gate}; exit 7")
    told.close()
    job, status, *_ = json.loads((tmp_path / "note").read_text())
    assert said["left"] is False and (job, status) == ("j1", 7 << 8)


@pytest.mark.parametrize("end", ["exit 7", "kill -KILL $$", "ulimit -c unlimited; kill -ABRT $$"])
def test_what_is_noted_is_what_is_told(told: Told, end: str) -> None:
    said, _ = told.run("j1", "sh", "-c", end)
    job, status, *_ = json.loads((told.folder / "note").read_text())
    assert (job, status) == ("j1", said["status"])


def test_what_a_job_took_is_noted_where_its_supervisor_is_gone_before_it_may_have_written_that(told: Told) -> None:
    said, _ = told.run("j1", "sh", "-c", BUSY)
    assert told.noted()[5:] == [0.0, 0], "nothing more is written as long as there is a supervisor"
    told.channel.close()
    until(lambda: told.noted()[5:] == [round(said["cpu"], 6), said["peak"]], "it is noted")
    assert said["cpu"] > 0.05 and said["peak"] > 0


def test_what_a_job_took_is_noted_as_it_is_reaped_where_its_supervisor_is_gone(told: Told) -> None:
    os.mkfifo(gate := told.folder / "gate")
    with open(os.devnull, "wb") as nowhere:
        fds = nowhere.fileno(), nowhere.fileno()
        told.order("spawn", "j1", "sh", "-c", f"read go <{gate}; {BUSY}; sleep 60 & exit 7", fds=fds)
    assert wire.receive(told.channel)[0]["op"] == "spawned"
    told.channel.close()
    gate.write_text("go\n")
    until(lambda: told.noted()[1:2] == [7 << 8], "how it ended is noted")
    until(lambda: told.noted()[5] > 0.05, "and what it took, while something of it is left")
    for pid in procs.children(told.pid):
        os.kill(pid, signal.SIGKILL)
