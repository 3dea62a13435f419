"""Days of 100,000 jobs each: how large the store gets, how long a start takes with it, how fast a day of them goes
while others write, and that the file does not grow by the next. A month is `--days 30`."""

import argparse
import signal
import tempfile
import threading
import time
from pathlib import Path

from bench._common import percentile, report
from bench.services._store import fill
from bench.services.restart import start
from distributed_grid.coordinator.core.commands import Audit
from distributed_grid.coordinator.store.retention import Keep, Retention
from distributed_grid.coordinator.store.store import Store

DAYS = 3
"""For three minutes."""
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


def retained(path: Path, kept: int) -> dict[str, float]:
    """Remove all jobs except this many, while another process writes."""
    store = Store(path)
    stop = threading.Event()
    alone = writing(store, stop, COMMITS)
    taken: list[float] = []
    writer = threading.Thread(target=lambda: taken.extend(writing(store, stop)))
    writer.start()
    began = time.perf_counter()
    removed = Retention(path, Keep(days=1e6, jobs=kept, size=1 << 50), time.time, list).prune()
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
    parser = argparse.ArgumentParser(prog="month", description="a store with a long history")
    parser.add_argument("--days", type=int, default=DAYS)
    jobs = parser.parse_args().days * DAY
    with tempfile.TemporaryDirectory(prefix="grid-bench-") as name:
        path = Path(name) / "grid.db"
        began = time.perf_counter()
        fill(path, jobs, until=time.time())
        figures: dict[str, float] = {"filled_per_s": jobs / (time.perf_counter() - began)}
        figures["store_mib"] = path.stat().st_size / (1 << 20)
        figures["start_s"] = started(Path(name))
        figures |= retained(path, jobs - DAY)
        fill(path, DAY, until=time.time(), over=60.0, first=jobs)  # as many as went come again
        figures["store_after_mib"] = path.stat().st_size / (1 << 20)
        figures["start_after_s"] = started(Path(name))
        report("month", {"jobs": jobs, **figures})


if __name__ == "__main__":
    main()
