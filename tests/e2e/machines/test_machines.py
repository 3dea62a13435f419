"""Machines that a pool creates, end to end: real coordinator, real provider process, real agents as processes. What
fits nowhere gets a machine, which joins by a token of its own, runs the job, and goes; and none is forgotten.
"""

import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.providers.process import ProcessProvider
from distributed_grid.runtime.unix import read
from tests.agent.metadata_service import metadata_service
from tests.grid_fixture import CONFIG, Grid, founded_grid, until

POOL = """
pools:
  - {name: burst, provider: process, cpus: 2, memory: 256M, max: 2, idle: 3, boot: 2, join_within: 120, life: 1h,
     abandoned_after: 60, options: {trust: everyone}}
scaling: {mode: act, look: 2, orphan_after: 5}
"""


@pytest.fixture(params=[POOL])
def grid(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Grid]:
    """A founded grid with a pool, and without a node."""
    with founded_grid(tmp_path, CONFIG + request.param) as grid:
        try:
            yield grid
        finally:
            end_all(grid)


def home(grid: Grid) -> Path:
    return grid.home / "coordinator" / "machines"


def processes(grid: Grid) -> list[int]:
    """The processes of all machines, with their agents: their command lines name a directory below this one, which no
    other grid has."""
    return named(str(home(grid)))


def named(folder: str) -> list[int]:
    """The processes whose command lines name this directory, or something in it."""
    here, found = os.fsencode(folder), list[int]()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            if any(word == here or word.startswith(here + b"/") for word in words):
                found.append(int(name))
    return found


def kill_all(grid: Grid, spare_inside: bool = False) -> list[int]:
    """Kill all of all machines; those that there were. One that is killed may just have started another.
    `spare_inside`: but not the first process inside namespace walls, with which the kernel kills the jobs there."""
    found = processes(grid)
    if spare_inside:
        found = [pid for pid in found if not inside(pid)]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def inside(pid: int) -> bool:
    """Whether it is in a PID namespace below this one, as jobs behind namespace walls are."""
    numbers = re.search(rb"^NSpid:(.*)", read(f"/proc/{pid}/status"), re.MULTILINE)
    return numbers is not None and len(numbers[1].split()) > 1


def end_all(grid: Grid) -> None:
    """End all machines at the end of a test."""
    if grid.processes["coordinator"].poll() is None:
        grid.kill("coordinator")  # it would create others
    until(lambda: not kill_all(grid), "all machines are killed")


def machines(grid: Grid) -> list[str]:
    """The names of machines that run."""
    return [one.parent.name for one in home(grid).glob("*/*/ready") if named(str(one.parent))]


def logs(grid: Grid) -> str:
    return grid.log("coordinator") + "\n---\n".join(
        ["", *(one.read_text()[-2000:] for one in home(grid).glob("*/*/log"))]
    )


def submit(grid: Grid, *words: str) -> str:
    done = grid.run("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "--detach", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_job_that_fits_nowhere_gets_a_machine_which_ends_when_it_is_idle(grid: Grid) -> None:
    done = grid.shared("sh", "-c", "echo it ran", timeout=120)
    assert done.returncode == 0 and done.stdout == "it ran\n", done.stderr + logs(grid)
    names = machines(grid)
    assert len(names) == 1
    assert not list(home(grid).glob("*/*/invitation")), "a token that was used is removed"
    until(lambda: not processes(grid), "the machine ends when it is idle" + logs(grid))
    until(lambda: not grid.json("nodes")["nodes"], "its node is forgotten" + logs(grid))
    gone = until(lambda: grid.json("scale", "history")["machines"], "it is gone" + logs(grid))
    assert [(one["name"], one["state"], one["ran"]) for one in gone] == [(names[0], "gone", True)]


def test_a_coordinator_that_is_killed_forgets_no_machine_and_creates_none_twice(grid: Grid) -> None:
    job = submit(grid, "sleep", "8")
    until(lambda: machines(grid), "a machine comes" + logs(grid))
    grid.kill("coordinator")
    grid.start_coordinator()
    until(lambda: grid.job(job)["state"] == "running", "the job runs on it" + logs(grid), 120)
    assert len(machines(grid)) == 1, "it is asked for again by the same name"
    grid.kill("coordinator")
    grid.start_coordinator()
    until(lambda: grid.job(job)["state"] == "ended", "the job ends" + logs(grid))
    assert grid.job(job)["exit_code"] == 0, f"{grid.job(job)}{logs(grid)}"
    until(lambda: not processes(grid), "the machine ends when it is idle" + logs(grid))
    until(lambda: grid.json("scale", "history")["machines"], "it is gone" + logs(grid))
    assert len(grid.json("scale", "history")["machines"]) == 1


def test_of_a_machine_that_was_killed_whole_its_provider_ends_the_jobs_too(grid: Grid) -> None:
    note = grid.home / "note"
    sleep = f"sleep 600.{os.getpid()}"
    job = submit(grid, "sh", "-c", f"trap '' TERM; setsid {sleep} & touch {note}; wait")
    until(note.exists, "the job runs" + logs(grid), 120)
    until(lambda: len(job_processes(grid, sleep)) == 2, "its two processes are there")
    (name,) = machines(grid)
    provider = ProcessProvider(next(home(grid).iterdir()).name, {"directory": str(home(grid))})
    grid.kill("coordinator")  # its own list and its own orders would come between
    until(lambda: not kill_all(grid, spare_inside=True), "all of the machine is killed" + logs(grid))
    assert len(job_processes(grid, sleep)) == 2 and grid.home.exists()
    assert [one.name for one in provider.list_workers()] == [name], "its jobs run, and it is not forgotten"
    assert provider.terminate_worker(name) is True
    until(lambda: not job_processes(grid, sleep), "its jobs have ended" + logs(grid))
    until(lambda: not provider.list_workers(), "it is not listed any more" + logs(grid))
    assert not processes(grid), logs(grid)
    grid.start_coordinator()
    until(lambda: grid.job(job)["state"] == "ended", "its job is over" + logs(grid))


def job_processes(grid: Grid, command: str) -> list[int]:
    """The processes of a job that is a shell with this command, and of the command, seen from outside: behind namespace
    walls, a job's own number for a process means another one here."""
    return grid.processes_with(command) + grid.processes_with(command.replace(" ", "\0"))


def start_machine(grid: Grid, environment: Mapping[str, str], **more: Any) -> subprocess.Popen[bytes]:
    """The program of a machine that no pool has created."""
    folder = home(grid) / "mine" / "x-1"
    folder.mkdir(parents=True)
    (folder / "invitation").write_text(grid.run("token", "create", "--role", "agent", "--node", "x-1").stdout)
    told = {"name": "x-1", "ends_by": time.time() + 600, "join_within": 100, "abandoned_after": 60, "cores": 2}
    told |= {"memory": 256 << 20, "gpus": 0, "trust": "everyone", **more}
    (folder / "machine.json").write_text(json.dumps(told))
    with (folder / "log").open("wb") as log:
        words = [sys.executable, "-m", "distributed_grid.agent.machine", str(folder)]
        return subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, **environment})


@pytest.mark.parametrize("grid", [""], indirect=True)
def test_jobs_of_a_spot_machine_that_is_taken_back_are_told_and_wait_again(grid: Grid) -> None:
    with metadata_service() as service:
        process = start_machine(grid, service.environment, metadata="aws", spot=True)
        grid.await_offers(1)
        note = grid.home / "told"
        notice = 'trap "" TERM; while [ ! -e "$GRID_RECALL_FILE" ]; do sleep 0.1; done'
        job = submit(grid, "sh", "-c", f"{notice}; echo told >{note}; exec sleep 600")
        until(lambda: grid.job(job)["state"] == "running", "the job runs" + logs(grid))
        at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=20)
        said = {"action": "terminate", "time": at.isoformat()}
        service.says = {"/latest/meta-data/spot/instance-action": json.dumps(said)}
        assert process.wait(60) == 0
        assert time.time() < at.timestamp() + 5, "before it is taken"
    assert note.read_text() == "told\n" and not processes(grid), logs(grid)
    assert until(lambda: grid.job(job)["state"] == "waiting", "it waits for another node" + logs(grid))


@pytest.mark.parametrize("grid", [""], indirect=True)
def test_a_machine_ends_itself_when_the_coordinator_stays_away_but_not_while_a_job_runs(grid: Grid) -> None:
    # A pool may not have so little patience: a coordinator that is started again would lose its machines.
    process, note = start_machine(grid, {}, abandoned_after=4), grid.home / "note"
    grid.await_offers(1)
    job = submit(grid, "sh", "-c", f"sleep 8; touch {note}")
    until(lambda: grid.job(job)["state"] == "running", "the job runs" + logs(grid))
    grid.kill("coordinator", signal.SIGTERM)
    assert process.wait(60) == 0
    assert note.exists(), "the end of the coordinator ends only what nobody uses" + logs(grid)
    assert not processes(grid), "nothing of the machine is left" + logs(grid)
