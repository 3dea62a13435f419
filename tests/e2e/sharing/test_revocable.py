"""Revocable jobs on what another job holds and leaves unused, with real processes: they start there, are frozen within
a second when the holder wants more, go on when it does not, and end with it."""

import json
import os
import pwd
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from distributed_grid.coordinator.client import GridClient
from tests.grid_fixture import EVERYONE, Grid, running_grid, until

LENT = EVERYONE.replace("resource_sharing:", "resource_sharing:\n  policy: aggressive") + "unused: {window: 3}\n"
# Tests on other workers have such processes, too: these are ours.
OURS = f"of-{os.getpid()}-"
HOLDER = f"""# {OURS}
import os, signal, time
busy = False
def order(number, frame):
    global busy
    busy = number == signal.SIGUSR1
for one in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(one, order)
os.fork()
while True:
    until = time.monotonic() + 0.1
    while busy and time.monotonic() < until: pass
    time.sleep(0 if busy else 0.05)
"""
LOOP = f"while :; do : {OURS}; done"


class Scene:
    """A node of two cores, all held by a job that uses none of them until it is told to."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.holder = self.submit("--cpus", "2", "python3", "-c", HOLDER)
        until(lambda: grid.job(self.holder)["state"] == "running", "the holder runs")

    def submit(self, *words: str) -> str:
        done = self.grid.run("run-shared", "-d", "--no-ship", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    async def busy(self, is_busy: bool) -> None:
        async with GridClient(self.grid.url) as client:
            await client.signal(self.holder, signal.SIGUSR1 if is_busy else signal.SIGUSR2)

    def revocable(self, *words: str) -> str:
        """A job on the core that the holder leaves."""
        job = self.submit("--revocable", "--cpus", "0.5", *words, "sh", "-c", LOOP)
        until(lambda: self.grid.job(job)["state"] == "running", f"{job} runs on slack", 40)
        return job

    def loops(self) -> list[int]:
        """The processes of revocable jobs."""
        return [pid for pid in self.grid.processes_with(LOOP) if _command(pid)[:2] == [b"sh", b"-c"]]


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def cpu_of(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


@pytest.fixture
def walls() -> str:
    return "auto"


@pytest.fixture
def scene(walls: str) -> Iterator[Scene]:
    place = Path(tempfile.mkdtemp(prefix="grid-"))
    place.chmod(0o755)  # jobs have users of their own behind walls `user`
    config = LENT.replace("agent:", f"agent:\n  walls: {walls}")
    try:
        with running_grid(place, agents=1, config=config) as grid:
            yield Scene(grid)
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("walls", [pytest.param("user", marks=pytest.mark.root), "none"])
async def test_it_runs_on_a_core_of_the_holder_with_the_least_weight_and_says_so(scene: Scene, walls: str) -> None:
    grid, job = scene.grid, scene.revocable()
    (pid,) = scene.loops()
    assert grid.job(job)["walls"] == walls
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE and os.getpriority(os.PRIO_PROCESS, pid) == 19
    grant = grid.job(job)["grant"]
    assert (grant["cores"], grant["holder"]) == ([], f"{scene.holder}.1")
    assert os.sched_getaffinity(pid) == {*grant["slack"]} < {*grid.job(scene.holder)["grant"]["cores"]}
    words = f"0.5 of core {grant['slack'][0]} of {scene.holder}, revocable"
    assert words in grid.run("why", job).stdout and words in grid.run("shared-status", "--allocations").stdout
    assert "on slack" in grid.run("jobs").stdout
    held = {one["user"]: one["held"] for one in grid.json("shares")["users"]}
    assert held[pwd.getpwuid(os.geteuid()).pw_name] == 1.125, "and a quarter of one"
    grid.run("cancel", job, scene.holder)
    until(lambda: not scene.loops(), "nothing of it is left")


async def test_it_is_frozen_within_a_second_of_when_its_holder_wants_more_and_goes_on_later(scene: Scene) -> None:
    grid, job = scene.grid, scene.revocable()
    (pid,) = scene.loops()
    took, used = list[float](), list[int]()
    for _ in range(3):  # this machine may have other things to do
        begun = time.time()
        await scene.busy(True)
        suspended = until(lambda: grid.job(job)["suspended"], "it is frozen")
        took.append(datetime.fromisoformat(suspended["since"]).timestamp() - begun)
        assert (
            suspended["by_holder"]
            and f"{scene.holder} wants" in suspended["why"]
            and "the owner" not in grid.run("job", "show", job).stdout
        )
        used.append(cpu_of(pid))
        await scene.busy(False)
        until(lambda: not grid.job(job)["suspended"], "it goes on", 30)
        until(lambda: cpu_of(pid) > used[-1], "it runs")
        if took[-1] <= 1.0:
            break
    assert min(took) <= 1.0, took
    grid.run("cancel", job, scene.holder)


async def test_it_ends_with_its_holder_and_runs_elsewhere_or_again(scene: Scene) -> None:
    grid, job = scene.grid, scene.revocable()
    (pid,) = scene.loops()
    grid.run("cancel", scene.holder)
    until(lambda: pid not in scene.loops(), "its first attempt has ended")
    until(lambda: grid.job(job)["state"] == "running" and grid.job(job)["attempt"] == 2, "it runs again", 40)
    again = grid.job(job)
    assert not again["grant"]["slack"] and again["grant"]["cpu"] == 0.5, "on what is free now"
    assert any("whose cores it ran on, has ended" in one["text"] for one in again["events"])
    grid.run("cancel", job)
    until(lambda: not scene.loops(), "nothing of it is left")


async def test_a_kill_of_the_coordinator_changes_nothing_for_those_that_run(scene: Scene) -> None:
    grid, job = scene.grid, scene.revocable()
    (pid,) = scene.loops()
    before = grid.job(job)["grant"]
    grid.kill("coordinator")
    grid.start_coordinator()
    until(lambda: grid.json("nodes")["nodes"][0]["state"] == "up", "its node is back", 60)
    assert (grid.job(job)["attempt"], grid.job(job)["grant"], scene.loops()) == (1, before, [pid])
    await scene.busy(True)
    until(lambda: grid.job(job)["suspended"], "it is frozen")
    grid.kill("coordinator")
    grid.start_coordinator()
    until(
        lambda: grid.json("nodes")["nodes"][0]["state"] == "up" and grid.job(job)["suspended"], "it is told again", 60
    )
    assert f"{scene.holder} wants" in grid.job(job)["suspended"]["why"]
    grid.run("cancel", scene.holder)
    until(lambda: pid not in scene.loops(), "it ends with its holder", 60)
    grid.run("cancel", job)
    until(lambda: not scene.loops(), "nothing of it is left")


async def test_all_that_a_revocable_job_forks_is_frozen_with_it(scene: Scene) -> None:
    grid = scene.grid
    # A shell, not Python: among others that want the cores, the least weight is some milliseconds a minute.
    forks = f"for one in 1 2 3; do ({LOOP}) & setsid sh -c '{LOOP}' & done; {LOOP}"
    done = scene.submit("--revocable", "--cpus", "0.5", "sh", "-c", forks)
    until(lambda: len(grid.processes_with(LOOP)) >= 7, "all of them run", 60)
    await scene.busy(True)
    until(lambda: grid.job(done)["suspended"], "it is frozen")
    pids = grid.processes_with(LOOP)
    used = {pid: cpu_of(pid) for pid in pids}
    holder = until(lambda: [pid for pid in grid.processes_with(f"# {OURS}") if cpu_of(pid) > 20], "the holder runs")
    begun = cpu_of(holder[0])
    until(lambda: cpu_of(holder[0]) >= begun + 50, "the holder has run for half a second")
    assert {pid: cpu_of(pid) for pid in pids} == used
    grid.run("cancel", done, scene.holder)
    until(lambda: not grid.processes_with(LOOP), "nothing of it is left", 60)


@pytest.mark.parametrize("who", ["agent", "supervisor"])
async def test_a_kill_in_between_leaves_nothing_that_runs_unaccounted(scene: Scene, who: str) -> None:
    grid, job = scene.grid, scene.revocable()
    await scene.busy(True)
    until(lambda: grid.job(job)["suspended"], "it is frozen")
    if who == "agent":
        grid.kill("n1")
    else:
        os.kill(json.loads((grid.home / "n1" / "supervisor.pid").read_text())["pid"], signal.SIGKILL)
    grid.run("cancel", scene.holder)
    if who == "agent":
        grid.start_agent("n1", "--cores", "0-1")
    until(lambda: grid.job(scene.holder)["state"] == "ended", "the holder has ended", 60)
    until(lambda: not (shown := grid.job(job))["grant"] or not shown["grant"]["slack"], "it runs on no slack", 60)
    grid.run("cancel", job)
    until(lambda: grid.job(job)["state"] == "ended" and not scene.loops(), "nothing of it is left", 60)
