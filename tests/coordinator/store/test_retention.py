"""What ended goes when it is too old, too many or too much; what lives stays, and nobody waits for it."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.core.commands import RecordAllocation, RecordJob, RecordNode, RecordOrders
from distributed_grid.coordinator.core.model import Active, Allocation, Attempt, Ended, Job, Queued
from distributed_grid.coordinator.store import retention as store_retention
from distributed_grid.coordinator.store.open import MIN_RETENTION
from distributed_grid.coordinator.store.retention import DAY, Keep, Retention
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Request, State
from distributed_grid.protocol.nodes import NO_ORDERS, Drain, NodeOrders
from distributed_grid.protocol.resources import Grant, Resources
from tests.coordinator.ends import node

NOW = 2_000_000_000.0
LIMITLESS = Keep(days=1e9, jobs=10**9, size=10**15)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "grid.db")
    yield made
    made.close()


def retention(store: Store, keep: Keep, now: float = NOW, connected: Callable[[], list[str]] = list) -> Retention:
    return Retention(store._path, keep, lambda: now, connected)


def a_job(number: int, ended: float, **spec: Any) -> Job:
    """Over for `ended` seconds now; below zero: it still waits."""
    over = ended >= 0
    return Job(
        id=f"j-{number:06d}",
        key=f"k{number}",
        user="ann",
        spec=JobSpec(("true",), **spec),
        request=Request(Resources(cpu=1000)),
        submitted=NOW - 1e6,
        phase=Ended(outcome=Outcome(Cause.EXITED), at=NOW - ended) if over else Queued(),
    )


def keep(store: Store, *jobs: Job) -> None:
    store.commit(store.snapshot([RecordJob(job, new=True) for job in jobs], NOW))


def left(store: Store) -> list[int]:
    return sorted(int(job.id[2:]) for job in (*store.list_ended(10**6), *store.load().jobs))


def test_what_ended_longer_ago_than_the_days_goes(store: Store) -> None:
    keep(store, *(a_job(n, n * DAY) for n in range(1, 7)))
    assert retention(store, Keep(days=3.5)).prune() == 3
    assert left(store) == [1, 2, 3]
    assert retention(store, Keep(days=3.5)).prune() == 0


def test_of_too_many_the_newest_ends_are_kept(store: Store) -> None:
    keep(store, *(a_job(n, n * DAY) for n in range(1, 7)))
    assert retention(store, Keep(days=1e9, jobs=4)).prune() == 2
    assert left(store) == [1, 2, 3, 4]


def test_of_too_much_the_oldest_goes_until_it_fits_and_its_room_is_used_again(store: Store) -> None:
    keep(store, *(a_job(n, n * DAY, name="x" * 128, workdir="/" + "d" * 3000) for n in range(1, 401)))
    store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = store._path.stat().st_size
    keeper = retention(store, Keep(days=1e9, size=size // 2))
    while keeper.prune():
        pass
    kept = left(store)
    assert kept == list(range(1, len(kept) + 1)) and 100 < len(kept) < 250
    keep(store, *(a_job(n, n * DAY, name="x" * 128, workdir="/" + "d" * 3000) for n in range(1000, 1100)))
    store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert store._path.stat().st_size <= size


@pytest.mark.parametrize("nothing", [Keep(days=0), Keep(jobs=0), Keep(days=1e9, size=0)])
def test_each_bound_may_be_nothing(store: Store, nothing: Keep) -> None:
    keep(store, *(a_job(n, n * DAY) for n in range(1, 7)))
    assert retention(store, nothing).prune() == 6


def test_what_lives_never_goes(store: Store) -> None:
    keep(store, a_job(1, -1), a_job(2, 2 * MIN_RETENTION))
    assert retention(store, Keep(days=0, jobs=0, size=0)).prune() == 1
    assert left(store) == [1]


def test_what_ended_a_moment_ago_stays_whatever_the_bounds_are(store: Store) -> None:
    keep(store, a_job(1, MIN_RETENTION - 1), a_job(2, MIN_RETENTION + 1))
    assert retention(store, Keep(days=0, jobs=0, size=0)).prune() == 1
    assert left(store) == [1]


def test_attempts_and_the_key_of_a_removed_job_go_with_it(store: Store) -> None:
    old, young = a_job(1, 40 * DAY), a_job(10, 1 * DAY)
    past = [
        Allocation(id=f"{job.id}.{number}", job=job.id, node="n1", grant=Grant(), state=State.ENDED, granted=1.0)
        for job in (old, young)
        for number in (1, 2)
    ]
    keep(store, old, young)
    store.commit(store.snapshot([RecordAllocation(one) for one in past], NOW))
    assert store.known("ann", ["k1", "k10"]) == {"k1": old.id, "k10": young.id}
    assert retention(store, Keep()).prune() == 1
    assert [store.past(one.id) is not None for one in past] == [False, False, True, True]
    assert store.known("ann", ["k1", "k10"]) == {"k10": young.id}


@pytest.mark.parametrize(("took", "count", "last"), [(0.005, 3000, 1000), (0.1, 100, 1)])
def test_it_goes_in_steps_that_hold_the_store_for_10_ms_and_leaves_it_to_others_ten_times_as_long(
    store: Store, monkeypatch: pytest.MonkeyPatch, took: float, count: int, last: int
) -> None:
    keep(store, *(a_job(n, 40 * DAY + n) for n in range(count)))
    keeper = retention(store, Keep())
    ticks = (took * number for number in range(10**6))
    monkeypatch.setattr(store_retention, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    steps: list[tuple[float, int]] = []

    def wait(seconds: float) -> None:
        steps.append((seconds, len(left(store))))

    monkeypatch.setattr(keeper._stop, "wait", wait)
    assert keeper.prune() == count
    counts = [count, *(there for _, there in steps)]
    sizes = [before - after for before, after in zip(counts, counts[1:], strict=False)]
    assert (sizes[0], sizes[-1]) == (50, last)
    assert all(seconds == pytest.approx(10 * took) for seconds, _ in steps)
    assert left(store) == []


def test_it_stops_at_once_when_it_is_told_to(store: Store) -> None:
    keep(store, *(a_job(n, 40 * DAY) for n in range(1, 200)))
    keeper = retention(store, Keep())
    keeper.close()
    assert keeper.prune() == 0 and len(left(store)) == 199


def test_by_itself_it_removes_in_the_background_while_others_write(store: Store) -> None:
    keep(store, *(a_job(n, 40 * DAY) for n in range(1, 1001)))
    keeper = retention(store, Keep())
    keeper.start()
    try:
        deadline, number = time.monotonic() + 60, 2000
        while min(left(store)) < 2000 and time.monotonic() < deadline:
            keep(store, a_job(number, 1.0))
            number += 1
        assert left(store) == list(range(2000, number))
    finally:
        keeper.close()


def test_on_a_disk_that_is_nearly_full_nothing_is_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(store, a_job(1, 40 * DAY))
    full = shutil.disk_usage("/")._replace(free=store_retention.SPARE - 1)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: full)
        assert retention(store, Keep()).prune() == 0
    assert retention(store, Keep()).prune() == 1


def test_a_wall_clock_that_jumps_makes_nothing_older(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages are grid time, which the driver's clock tells; here the machine's clock is a year ahead meanwhile."""
    keep(store, a_job(1, 29 * DAY))
    monkeypatch.setattr(time, "time", lambda: NOW + 366 * DAY)
    assert retention(store, Keep()).prune() == 0


def test_a_coordinator_keeps_what_its_configuration_says(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    store = Store(state / "grid.db")
    keep(store, *(a_job(days, days * DAY) for days in (32, 34, 36)))  # grid time goes on from NOW
    store.close()
    command = [sys.executable, "-m", "distributed_grid.cli.main", "coordinator", "run", "--port", "0"]
    environment = os.environ | {"GRID_COORDINATOR__KEEP_DAYS": "35", "GRID_COORDINATOR__KEEP_JOBS": "1"}
    command += ["--state-dir", str(state)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        removed = next(line for line in process.stderr if "removed" in line)
        assert '"jobs": 2' in removed
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert left(Store(state / "grid.db")) == [32]


def test_nodes_not_seen_for_long_are_forgotten_unless_a_job_is_on_them_or_something_is_ordered(tmp_path: Path) -> None:
    store = Store(tmp_path / "grid.db")
    on = Allocation(id="j-1.1", job="j-1", node="n3", grant=Grant(), state=State.RUNNING, granted=NOW)
    runs = a_job(1, -1)
    runs.id, runs.allocation = "j-1", on.id
    runs.phase = Active(state=State.RUNNING, attempt=Attempt("n3", on.grant))
    nodes = [RecordNode(node(name)) for name in ("n1", "n2", "n3", "n4", "n5")]
    drained, free = NodeOrders(drain=Drain(since=NOW)), NodeOrders()
    ordered = [RecordOrders("n4", drained), RecordOrders("n5", drained), RecordOrders("n5", free)]
    store.commit(store.snapshot([*nodes, *ordered, RecordJob(runs, new=True), RecordAllocation(on)], NOW - 40 * DAY))
    retention(store, LIMITLESS, connected=lambda: ["n2"]).prune()  # all this time n2 was connected
    store.close()
    store = Store(tmp_path / "grid.db")
    store.forget_nodes(NOW - 31 * DAY)
    living = store.load()
    assert [facts.name for facts in living.nodes] == ["n2", "n3", "n4"]
    assert living.orders == {"n4": drained}
    store.close()
    assert not sqlite3.connect(tmp_path / "grid.db").execute("SELECT 1 FROM nodes WHERE name = 'n1'").fetchone()


def test_orders_that_are_taken_back_leave_no_row(store: Store) -> None:
    drained = NodeOrders(drain=Drain(since=NOW))
    store.commit(store.snapshot([RecordOrders("n1", drained), RecordOrders("n2", drained)], NOW))
    store.commit(store.snapshot([RecordOrders("n1", NO_ORDERS)], NOW))
    assert store.load().orders == {"n2": drained}


def test_rows_of_no_orders_that_an_earlier_version_left_go(store: Store) -> None:
    store._writer.execute("INSERT INTO node_orders VALUES ('n1', ?, 0)", (msgspec.msgpack.encode(NO_ORDERS),))
    store.forget_nodes(NOW)
    assert store.load().orders == {}


def test_a_declared_node_is_never_forgotten_for_its_age(store: Store) -> None:
    declared = msgspec.structs.replace(node("w1"), declared=Resources())
    store.commit(store.snapshot([RecordNode(declared), RecordNode(node("n1"))], NOW - 400 * DAY))
    store.forget_nodes(NOW)
    assert [facts.name for facts in store.load().nodes] == ["w1"]
