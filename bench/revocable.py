"""Speed of a job whose slack is lent to a revocable job, relative to its speed alone. Needs an otherwise idle machine.

The holder has all cores and uses none, until it is told to work: first with as many processes as are left to it, where
the revocable job runs on beside it, then with one for each core, where that is frozen. After each, the revocable job is
cancelled, and the same is measured alone. Beside the speed stands the share of CPU time that the holder got, which is
not touched by what the machine's own speed does; and whether the revocable job was frozen at the end, in each of the
two.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any, NamedTuple

from bench._common import GRID, Grid, grid, medians, report, wait_for

CORES = len(os.sched_getaffinity(0))
ROUNDS = 1
SECONDS = 10.0
CONFIG = """
resource_sharing:
  policy: aggressive
  monitoring_interval_seconds: 1
  owner_policy: continue
  thresholds: {cpu_percent_max: 100, memory_percent_max: 100, memory_min_gb: 0.1}
agent: {offer_after: 0, reserve_memory_gb: 0}
unused: {window: 5}
"""
HOLDER = """
import os, signal, sys, time
many, seconds = int(sys.argv[1]), float(sys.argv[2])
told = []
signal.signal(signal.SIGUSR1, lambda number, frame: told.append(1))
while True:
    while not told: time.sleep(0.05)
    told.clear()
    readers = []
    for _ in range(many):
        mine, theirs = os.pipe()
        if os.fork() == 0:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            done, begun, end = 0, time.process_time(), time.monotonic() + seconds
            while time.monotonic() < end:
                for _ in range(20000): done += 1
            os.write(theirs, f"{done} {time.process_time() - begun}".encode())
            os._exit(0)
        os.close(theirs)
        readers.append(mine)
    found = [os.read(one, 100).split() for one in readers]
    for one in readers: os.close(one)
    for _ in readers: os.wait()
    print(sum(int(done) for done, _ in found), sum(float(cpu) for _, cpu in found), flush=True)
"""


class Worked(NamedTuple):
    """What a holder has done in one go: work, and CPU seconds."""

    done: int
    cpu: float


def _grid(running: Grid, *words: str) -> str:
    done = subprocess.run([*GRID, "--coordinator", running.url, *words], capture_output=True, check=True, text=True)
    return done.stdout


def _ask(running: Grid, *words: str) -> dict[str, Any]:
    return dict(json.loads(_grid(running, *words, "-o", "json")))


def _job(running: Grid, job: str) -> dict[str, Any]:
    return dict(_ask(running, "job", "show", job)["jobs"][0])


def _state(running: Grid, job: str) -> str:
    return str(_job(running, job)["state"])


def _work(running: Grid, holder: str, before: int) -> Worked:
    """Tell the holder to work, and wait for what it says."""
    from distributed_grid.coordinator.client.blocking import GridClient

    with GridClient(running.url) as client:
        client.signal(holder, 10)
    time.sleep(SECONDS + 1.0)
    wait_for(lambda: len(_lines(running, holder)) > before, "the holder's figures", 30.0)
    done, cpu = _lines(running, holder)[before].split()
    return Worked(int(done), float(cpu))


def _lines(running: Grid, holder: str) -> list[str]:
    return _grid(running, "logs", holder).splitlines()


def _round(many: int) -> dict[str, float | bool]:
    with grid(agents=1, config=CONFIG) as running:
        command = [sys.executable, "-c", HOLDER, str(many), str(SECONDS)]
        holder = _grid(running, "run-shared", "-d", "--no-ship", "--cpus", str(CORES), *command).strip()
        wait_for(lambda: _state(running, holder) == "running", "the start of the holder", 60.0)
        burn = [sys.executable, "-c", "while True: pass"]
        user = _grid(running, "run-shared", "-d", "--no-ship", "--revocable", "--cpus", "0.5", *burn).strip()
        wait_for(lambda: _state(running, user) == "running", "the start of the revocable job", 60.0)
        time.sleep(3)
        beside = _work(running, holder, 0)
        frozen = _job(running, user)["suspended"] is not None
        _grid(running, "cancel", user)
        wait_for(lambda: _state(running, user) == "ended", "the end of the revocable job", 60.0)
        alone = _work(running, holder, 1)
        _grid(running, "cancel", holder)  # a supervisor stays as long as its jobs do
        wait_for(lambda: _state(running, holder) == "ended", "the end of the holder", 60.0)
        return {"speed": beside.done / alone.done, "share": beside.cpu / alone.cpu, "frozen": frozen}


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(prog="revocable", description="a job whose slack is lent on")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    part = medians([_round(max(1, CORES - 1)) for _ in range(rounds)])
    whole = medians([_round(CORES) for _ in range(rounds)])
    report(
        "revocable",
        {
            "speed_beside": part["speed"],
            "share_beside": part["share"],
            "speed_when_it_wants_all": whole["speed"],
            "share_when_it_wants_all": whole["share"],
            "frozen": [part["frozen"], whole["frozen"]],
            "cores": CORES,
            "seconds": SECONDS,
            "rounds": rounds,
        },
    )


if __name__ == "__main__":
    main()
