"""Restart of a coordinator with 100,000 finished and 1,000 live jobs, as a real process: seconds from its start until
it listens, after it was stopped and after it was killed (then its store is looked through for damage first)."""

import json
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from bench._common import GRID, median_of, no_options, report, wait_for
from bench.services._store import fill

ENDED, LIVE = 100_000, 1000
RUNS = 5


def start(state: Path) -> tuple[subprocess.Popen[bytes], float]:
    """A coordinator on this state, and the seconds until it listened."""
    told = state / "coordinator.json"
    told.unlink(missing_ok=True)
    began = time.perf_counter()
    process = subprocess.Popen(
        [*GRID, "coordinator", "run", "--port", "0", "--state-dir", str(state)], stderr=subprocess.DEVNULL
    )
    wait_for(told.exists, "the start of the coordinator")
    took = time.perf_counter() - began
    assert json.loads(told.read_text())["pid"] == process.pid
    return process, took


def restarts(state: Path) -> dict[str, float]:
    """Measure one restart of each kind."""
    figures = {}
    for name, number in (("after_kill_s", signal.SIGTERM), ("after_stop_s", signal.SIGKILL)):
        process, figures[name] = start(state)
        process.send_signal(number)
        process.wait()
    return figures


def main() -> None:
    """Print one line."""
    no_options(__doc__)
    began = time.perf_counter()
    subprocess.run([*GRID, "--version"], check=True, capture_output=True)
    bare = time.perf_counter() - began
    with tempfile.TemporaryDirectory(prefix="grid-bench-") as name:
        state = Path(name)
        fill(state / "grid.db", ENDED, LIVE, until=time.time())
        process, _ = start(state)
        process.kill()  # so that each round begins after a kill
        process.wait()
        figures = median_of(RUNS, lambda: restarts(state))
        size = (state / "grid.db").stat().st_size >> 20
    report("restart", {"ended": ENDED, "live": LIVE, "store_mib": size, "grid_version_s": bare, **figures})


if __name__ == "__main__":
    main()
