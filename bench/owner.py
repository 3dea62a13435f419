"""How fast an owner's CPU-bound program runs on his node while jobs are lent every core of it, against its speed alone,
by policy. Wants a machine where nothing else is at work.

The whole figure holds the first seconds, in which he is not noticed yet: the longer he works, the nearer it gets to the
steady one, which is that of the time after.
"""

import json
import subprocess
import sys
import time
from typing import Any

from bench._common import GRID, Grid, grid, report, wait_for

SECONDS = 30.0
ALONE = 8.0
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
    print(now - begun, done)
"""
BURN = "while True: pass"


def work(seconds: float) -> list[tuple[float, int]]:
    """An owner's program: what it had done, by its time."""
    out = subprocess.run([sys.executable, "-c", WORK, str(seconds)], capture_output=True, check=True, text=True).stdout
    return [(float(at), int(done)) for at, done in (line.split() for line in out.splitlines())]


def speed(steps: list[tuple[float, int]], since: float = 0.0) -> float:
    """Steps a second from then on."""
    first = next(step for step in steps if step[0] >= since)
    return (steps[-1][1] - first[1]) / (steps[-1][0] - first[0])


def _ask(running: Grid, *words: str) -> dict[str, Any]:
    time.sleep(1.0)  # who asks all the time is an owner at work himself
    done = subprocess.run([*GRID, "--coordinator", running.url, *words, "-o", "json"], capture_output=True, check=True)
    return dict(json.loads(done.stdout))


def measure(policy: str) -> dict[str, float]:
    """One policy: the speed as parts of that alone, before and after."""
    with grid(agents=1, config=CONFIG.format(policy=policy)) as running:
        cores = wait_for(lambda: _offered(running), "the offer of all cores (is the machine busy?)", 60.0)
        before = speed(work(ALONE))
        wait_for(lambda: _offered(running) >= cores, "the offer after that", 60.0)
        for _ in range(cores):
            command = ["run-shared", "-d", "--no-ship", sys.executable, "-c", BURN]
            subprocess.run([*GRID, "--coordinator", running.url, *command], capture_output=True, check=True)
        wait_for(lambda: _states(running, "running") == cores, "the start of the jobs", 60.0)
        time.sleep(3)
        steps = work(SECONDS)
        ids = [one["id"] for one in _ask(running, "jobs")["jobs"]]
        subprocess.run([*GRID, "--coordinator", running.url, "cancel", *ids], capture_output=True, check=True)
        wait_for(lambda: _states(running, "running") == 0, "the end of the jobs", 60.0)
        alone = (before + speed(work(ALONE))) / 2
        return {"whole": speed(steps) / alone, "steady": speed(steps, 8.0) / alone, "cores": cores}


def _offered(running: Grid) -> int:
    return sum(int(offer["offered"]["cpu"]) for offer in _ask(running, "shared-status")["offers"])


def _states(running: Grid, state: str) -> int:
    return sum(one["state"] == state for one in _ask(running, "jobs")["jobs"])


def main() -> None:
    """Print one line."""
    suspend, beside = measure("suspend"), measure("continue")
    report(
        "owner",
        {
            "speed_under_suspend": suspend["whole"],
            "speed_once_suspended": suspend["steady"],
            "speed_under_continue": beside["whole"],
            "cores": suspend["cores"],
            "seconds": SECONDS,
        },
    )


if __name__ == "__main__":
    main()
