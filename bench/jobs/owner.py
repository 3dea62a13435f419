"""Speed of an owner's CPU-bound program while jobs hold every core of the node, relative to its speed alone, by policy.
Needs an otherwise idle machine.

A machine's own speed goes up and down, so each round measures it before and after. Beside the speed stands the share of
one core's time that his program got, which that does not touch. The whole figure holds the first seconds, in which he
is not noticed yet and the jobs only give way by their niceness; the one once suspended is that of the time after.
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
"""For three minutes. Figures to be written down: --rounds 3."""
SECONDS = 20.0
ALONE = 6.0
CONFIG = """
resource_sharing:
  owner_policy: {policy}
  owner_quiet: 3s
  thresholds: {{memory_percent_max: 100, memory_min_gb: 0.1}}
agent: {{offer_after: 0, reserve_memory_gb: 0}}
"""
WORK = """
import sys, time
end, done, begun = time.monotonic() + float(sys.argv[1]), 0, time.monotonic()
while (now := time.monotonic()) < end:
    for _ in range(20000):
        done += 1
    print(now - begun, done, time.process_time())
"""
BURN = "while True: pass"


class Step(NamedTuple):
    """The progress of an owner's program at some time: seconds since its begin, work done, CPU seconds."""

    at: float
    done: int
    cpu: float


def work(seconds: float) -> list[Step]:
    """An owner's program, from its begin to its end."""
    out = subprocess.run([sys.executable, "-c", WORK, str(seconds)], capture_output=True, check=True, text=True).stdout
    return [Step(float(at), int(done), float(cpu)) for at, done, cpu in map(str.split, out.splitlines())]


def speed(steps: list[Step], since: float = 0.0) -> float:
    """Work a second from then on."""
    first = next(step for step in steps if step.at >= since)
    return (steps[-1].done - first.done) / (steps[-1].at - first.at)


def share(steps: list[Step]) -> float:
    """Return the part of one core's time that it got."""
    return (steps[-1].cpu - steps[0].cpu) / (steps[-1].at - steps[0].at)


def _ask(running: Grid, *words: str) -> dict[str, Any]:
    time.sleep(1.0)  # who asks all the time is an owner at work himself
    done = subprocess.run([*GRID, "--coordinator", running.url, *words, "-o", "json"], capture_output=True, check=True)
    return dict(json.loads(done.stdout))


def measure(policy: str, rounds: int) -> dict[str, float]:
    """Measure one policy: medians of all rounds, as parts of what the owner has alone."""
    with grid(agents=1, config=CONFIG.format(policy=policy)) as running:
        return medians([_round(running) for _ in range(rounds)])


def _round(running: Grid) -> dict[str, float]:
    before = work(ALONE)
    wait_for(lambda: _offered(running) == CORES, "the offer of all cores (is the machine busy?)", 60.0)
    for _ in range(CORES):
        command = ["run-shared", "-d", "--no-ship", sys.executable, "-c", BURN]
        subprocess.run([*GRID, "--coordinator", running.url, *command], capture_output=True, check=True)
    wait_for(lambda: _states(running, "running") == CORES, "the start of the jobs", 60.0)
    time.sleep(3)
    steps = work(SECONDS)
    ids = [one["id"] for one in _ask(running, "jobs")["jobs"] if one["state"] == "running"]
    subprocess.run([*GRID, "--coordinator", running.url, "cancel", *ids], capture_output=True, check=True)
    wait_for(lambda: _states(running, "running") == 0, "the end of the jobs", 60.0)
    after = work(ALONE)
    alone = (speed(before) + speed(after)) / 2
    return {
        "speed": speed(steps) / alone,
        "once_suspended": speed(steps, 8.0) / alone,
        "share": share(steps) / ((share(before) + share(after)) / 2),
        "drift": speed(after) / speed(before),
    }


def _offered(running: Grid) -> int:
    return sum(int(offer["offered"]["cpu"]) for offer in _ask(running, "shared-status")["offers"])


def _states(running: Grid, state: str) -> int:
    return sum(one["state"] == state for one in _ask(running, "jobs")["jobs"])


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(prog="owner", description="an owner's program beside jobs")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    suspend, beside = measure("suspend", rounds), measure("continue", rounds)
    report(
        "owner",
        {
            "speed_under_suspend": suspend["speed"],
            "share_under_suspend": suspend["share"],
            "speed_once_suspended": suspend["once_suspended"],
            "speed_under_continue": beside["speed"],
            "share_under_continue": beside["share"],
            "machine_after_to_before": suspend["drift"],
            "cores": CORES,
            "seconds": SECONDS,
            "rounds": rounds,
        },
    )


if __name__ == "__main__":
    main()
