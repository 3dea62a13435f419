"""A month of 100,000 jobs a day: how large the store gets, how long a start takes with it, how fast a day of them goes
while others write, and that the file does not grow by the next. GRID_BENCH_JOBS: another number than 3,000,000."""

import os
import signal
import tempfile
import threading
import time
from pathlib import Path

from bench._common import percentile, report
from bench._store import fill
from bench.restart import start
from distributed_grid.coordinator.core.commands import Audit
from distributed_grid.coordinator.store.retention import Keep, Retention
from distributed_grid.coordinator.store.store import Store

JOBS = int(os.environ.get("GRID_BENCH_JOBS", "3000000"))
DAY = 100_000
COMMITS = 200


def writing(store: Store, stop: threading.Event, at_most: int = 10**9) -> list[float]:
    """Small commits, 50 a second; how long each took, in ms."""
    taken: list[float] = []
    while not stop.is_set() and len(taken) < at_most:
        began = time.perf_counter()
        store.commit(store.snapshot([Audit("n1", "x")], time.time()))
        taken.append((time.perf_counter() - began) * 1000)
        stop.wait(0.02)
    return taken


def started(state: Path) -> float:
    """Seconds that a start takes, after a clean stop."""
    process, _ = start(state)
    process.send_signal(signal.SIGTERM)
    process.wait()
    process, took = start(state)
    process.kill()
    process.wait()
    return took


def retained(path: Path) -> dict[str, float]:
    """Remove a day of jobs, while somebody writes."""
    store = Store(path)
    stop = threading.Event()
    alone = writing(store, stop, COMMITS)
    taken: list[float] = []
    writer = threading.Thread(target=lambda: taken.extend(writing(store, stop)))
    writer.start()
    began = time.perf_counter()
    removed = Retention(path, Keep(days=1e6, jobs=JOBS - DAY, size=1 << 50), time.time, list).look()
    took = time.perf_counter() - began
    stop.set()
    writer.join()
    store.close()
    return {
        "removed": removed,
        "removed_per_s": removed / took,
        "days_of_jobs_removed_per_hour": removed / took * 3600 / DAY,
        "commit_alone_p50_ms": percentile(alone, 0.5),
        "commit_alone_p99_ms": percentile(alone, 0.99),
        "commit_meanwhile_p50_ms": percentile(taken, 0.5),
        "commit_meanwhile_p99_ms": percentile(taken, 0.99),
        "commit_meanwhile_max_ms": max(taken),
    }


def main() -> None:
    """Print one line."""
    with tempfile.TemporaryDirectory(prefix="grid-bench-") as name:
        path = Path(name) / "grid.db"
        began = time.perf_counter()
        fill(path, JOBS, until=time.time())
        figures: dict[str, float] = {"filled_per_s": JOBS / (time.perf_counter() - began)}
        figures["store_mib"] = path.stat().st_size / (1 << 20)
        figures["start_s"] = started(Path(name))
        figures |= retained(path)
        fill(path, DAY, until=time.time(), over=60.0, first=JOBS)  # as many as went come again
        figures["store_after_mib"] = path.stat().st_size / (1 << 20)
        figures["start_after_s"] = started(Path(name))
        report("month", {"jobs": JOBS, **figures})


if __name__ == "__main__":
    main()
