"""Machines under kill -9, with real processes: the coordinator, the child of the provider, agents and the programs of
machines are killed at moments that a seed chooses. Then every job has run, no machine is left, and at no look were
there more than the pool may have. `make machines` kills two hundred times; the suite a few times.
"""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.e2e.machines.test_machines import POOL, end_all, home, logs, named, processes
from tests.grid_fixture import CONFIG, Grid, founded_grid, until

KILLS = int(os.environ.get("GRID_MACHINE_KILLS", "3"))
SEED = int(os.environ.get("GRID_SEED", "1"))
MOST = 2
PATIENT = 240.0


def victims(grid: Grid) -> dict[str, list[int]]:
    """Return the processes that may be killed now, by kind."""
    found: dict[str, list[int]] = {"coordinator": [grid.processes["coordinator"].pid]}
    found |= {what: [] for what in ("provider", "agent", "machine")}
    for pid in grid.processes_with("distributed_grid.coordinator.providers.child"):
        with suppress(OSError):
            if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == found["coordinator"][0]:
                found["provider"].append(pid)
    here = os.fsencode(home(grid))
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            if not any(word.startswith(here) for word in words):
                continue
            if b"distributed_grid.agent.machine" in words:
                found["machine"].append(int(name))
            elif b"distributed_grid.cli.main" in words:
                found["agent"].append(int(name))
    return {what: pids for what, pids in found.items() if pids}


def directories(grid: Grid) -> list[str]:
    """The machines of which anything runs."""
    return sorted({one.name for one in home(grid).glob("*/*") if named(str(one))})


def kill(grid: Grid, what: str, pid: int) -> None:
    if what == "coordinator":
        grid.kill("coordinator")
        grid.start_coordinator()
        return
    with suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if pid in victims(grid).get(what, ()):  # still, and no other that has its number now
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def resume(grid: Grid) -> None:
    """Resume the pool as an operator does after three machines in a row that were killed before they had joined."""
    for one in grid.json("scale", "status")["pools"]:
        if one.get("paused"):
            assert grid.run("scale", "resume", one["pool"]["name"]).returncode == 0


def submit(grid: Grid, seconds: float) -> str:
    done = grid.run(
        "run-shared", "-t", "cpu", "-a", "1", "--no-ship", "--detach", "--retry-on", "lost", "--retries", "50",
        "sh", "-c", f"sleep {seconds:.1f}; :", str(home(grid) / "job"),  # so that what is left of it is seen
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def over(grid: Grid, job: str) -> bool:
    """Whether a job has ended; pools are resumed where a pause keeps it from a machine."""
    ended: bool = grid.job(job)["state"] == "ended"
    if not ended:
        resume(grid)
    return ended


def test_nothing_is_forgotten_whatever_is_killed(tmp_path: Path) -> None:
    chance, jobs, killed = random.Random(SEED), list[str](), dict[str, int]()
    with founded_grid(tmp_path, CONFIG + POOL) as grid:
        try:
            while sum(killed.values()) < KILLS:
                waiting = [job for job in jobs[-4:] if grid.job(job)["state"] != "ended"]
                if len(waiting) < 2:
                    jobs.append(submit(grid, chance.uniform(0.2, 12)))
                time.sleep(chance.uniform(0, 2.5))  # the moment of the kill is what the seed chooses
                found = victims(grid)
                alive = [what for what in ("agent", "machine") if what in found]
                if not alive and chance.random() < 0.7:
                    continue  # machines get the time to come
                what = chance.choice([*sorted(found), *alive, *alive])
                kill(grid, what, chance.choice(found[what]))
                killed[what] = killed.get(what, 0) + 1
                there = directories(grid)
                live = [one for one in grid.json("scale", "status")["machines"]]
                assert len(live) <= MOST, f"{live}{logs(grid)}"
                assert len(there) <= MOST + 1, f"{there}, of which one may be ending{logs(grid)}"
                resume(grid)
            for job in jobs:
                until(lambda job=job: over(grid, job), f"{job} ends{logs(grid)}", PATIENT)  # type: ignore[misc]
                assert grid.job(job)["exit_code"] == 0, f"{grid.job(job)}{logs(grid)}"
            until(lambda: not grid.json("scale", "status")["machines"], "all are gone" + logs(grid), PATIENT)
            until(lambda: not processes(grid), "nothing is left over" + logs(grid), PATIENT)
            print(f"{sum(killed.values())} kills: {dict(sorted(killed.items()))}; {len(jobs)} jobs")
        finally:
            end_all(grid)
