"""A store that has gone back, is gone or was damaged is never begun on as if nothing were missing."""

import contextlib
import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from distributed_grid.coordinator.backup.accept_loss import accept, known
from distributed_grid.coordinator.backup.check import check
from distributed_grid.coordinator.backup.state import STORE
from distributed_grid.coordinator.core.commands import (
    Audit,
    RecordAllocation,
    RecordJob,
    RecordLoss,
    RecordNode,
    RecordReturns,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Allocation, Ended
from distributed_grid.coordinator.core.rollback import Point
from distributed_grid.coordinator.eventlog.format import FORMAT, Header
from distributed_grid.coordinator.store import evidence, rows
from distributed_grid.coordinator.store.errors import StoreFailed
from distributed_grid.coordinator.store.evidence import Mark
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.resources import Grant
from tests.coordinator.ends import node
from tests.coordinator.store.test_store import a_job, keep

JOBS = 40
SEEDS = range(40)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of a coordinator that was killed when all of its 40 jobs had ended."""
    place = tmp_path_factory.mktemp("killed")
    (place / "at-work").mkdir()
    store = Store(place / "at-work" / STORE)
    for number in range(JOBS):
        job = a_job(number, State.WAITING)
        keep(store, RecordJob(job, new=True), clock=2000.0 + number)
        job.phase = Ended(outcome=Outcome(Cause.EXITED, code=number % 3), at=3000.0 + number)
        keep(store, RecordJob(job), clock=3000.0 + number)
    shutil.copytree(place / "at-work", place / "killed")
    store.abandon()
    return place / "killed"


@pytest.fixture
def state(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(killed, tmp_path / "state")
    return tmp_path / "state"


def results(folder: Path) -> dict[str, object]:
    """All that the store of a folder would show and start, read without beginning on it."""
    copy = folder.with_name("looked-at")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    with contextlib.closing(sqlite3.connect(copy / STORE)) as db:
        return dict(db.execute("SELECT id, state || hex(body) || hex(coalesce(change, '')) FROM whole").fetchall())


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def begun(folder: Path) -> Store:
    return Store(folder / STORE, traces=evidence.find_traces(folder))


def noticed(folder: Path) -> bool:
    """Whether check says so, and a start says so or refuses."""
    try:
        told = bool(check(folder).findings)
    except StoreFailed:
        told = True
    try:
        store = begun(folder)
    except StoreFailed:
        return told
    lost = store.loss is not None
    store.abandon()
    assert told == lost, "check and start agree"
    return lost


def test_a_store_that_was_killed_has_lost_nothing(state: Path) -> None:
    assert check(state).findings == []
    store = begun(state)
    assert store.loss is None and store.epoch == 2
    store.close()
    assert check(state).findings == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flipped_bit_of_the_log_changes_nothing_or_is_found(killed: Path, state: Path, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311
    wal = state / f"{STORE}-wal"
    flip(wal, draw.randrange(wal.stat().st_size), draw.randrange(8))
    try:
        same = results(state) == results(killed)
    except sqlite3.DatabaseError:
        same = False
    assert noticed(state) or same


def test_how_much_is_lost_is_said_and_stands_over_restarts(state: Path) -> None:
    wal = state / f"{STORE}-wal"
    flip(wal, wal.stat().st_size // 2, 0)
    store = begun(state)
    assert store.loss is not None and 20 < store.loss.commits < 60
    assert f"{store.loss.commits} commits are missing" in store.loss.found[0]
    for number in range(100):  # it goes on, past where the lost one had been
        keep(store, Audit("", str(number)), clock=5000.0 + number)
    first = store.loss
    store.close()
    again = begun(state)
    assert again.loss == first and again.epoch > store.epoch
    assert again.epoch < 10
    again.accept(again.snapshot([], 6000.0))
    assert again.epoch > 1_700_000_000, "agents obey it, whatever epoch is lost"
    again.close()
    last = begun(state)
    assert last.loss is None and last.restored == 6000.0
    last.close()
    assert check(state).findings == []


def no_store(state: Path) -> None:
    (state / STORE).unlink()


def nothing_of_it(state: Path) -> None:
    for path in state.glob(f"{STORE}*"):
        path.unlink()


def empty(state: Path) -> None:
    nothing_of_it(state)
    (state / STORE).touch()


def no_log(state: Path) -> None:
    (state / f"{STORE}-wal").unlink()


def cut_log(state: Path) -> None:
    os.truncate(state / f"{STORE}-wal", (state / f"{STORE}-wal").stat().st_size // 2)


def empty_log(state: Path) -> None:
    os.truncate(state / f"{STORE}-wal", 0)


def older(state: Path) -> None:
    nothing_of_it(state)
    Store(state.parent / "older.db").close()
    shutil.copy(state.parent / "older.db", state / STORE)


HARM = [no_store, nothing_of_it, empty, no_log, cut_log, empty_log, older]


@pytest.mark.parametrize("harm", HARM)
def test_what_is_missing_of_it_is_found(state: Path, harm: Callable[[Path], None]) -> None:
    harm(state)
    assert noticed(state)


def test_a_new_store_in_the_place_of_one_that_is_gone_is_of_the_same_grid(state: Path) -> None:
    marked = evidence.read_mark(state / STORE).point
    no_store(state)
    store = begun(state)
    assert marked is not None and store.grid == marked.grid and store.loss is not None and store.load().jobs == []
    assert any(path.name.startswith(f"{STORE}-wal.left-") for path in state.iterdir()), "nothing of it is removed"
    store.close()


def test_without_a_mark_the_event_log_shows_that_there_was_a_store(tmp_path: Path) -> None:
    import msgspec

    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "000001.log").write_bytes(msgspec.msgpack.encode(Header(FORMAT, "1", "cafe" * 4, 9)))
    store = begun(tmp_path)
    assert store.loss is not None and "the event log (1 files, epoch 9)" in store.loss.found[0]
    assert store.grid == "cafe" * 4 and store.epoch > 9
    store.close()


@pytest.mark.parametrize("which", ["the last", "none", "one from before a restore"])
def test_without_a_mark_the_audit_log_shows_a_job_that_was_taken_and_is_not_there(state: Path, which: str) -> None:
    (state / "grid.mark").unlink()
    at = datetime.fromtimestamp(3100.0, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    there = "j-000000000003" if which == "none" else "j-zzzzzzzzzzzz"
    line = {"n": 1, "prev": "", "at": at, "event": "submit", "ids": [there], "result": "accepted"}
    (state / "audit.log").write_text("cut off}\n" + json.dumps(line) + "\n{}\n[1]\n")
    if which == "one from before a restore":
        with contextlib.closing(sqlite3.connect(state / STORE)) as db:
            db.execute("INSERT INTO meta (name, value) VALUES ('restored', 3200.0)")
            db.commit()
    assert noticed(state) is (which == "the last")


def test_a_new_directory_is_no_loss(tmp_path: Path) -> None:
    store = begun(tmp_path)
    assert store.loss is None and store.epoch == 1
    store.close()


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_a_mark_that_is_gone_or_damaged_is_made_anew(state: Path, content: bytes | None) -> None:
    if content is None:
        (state / "grid.mark").unlink()
    else:
        (state / "grid.mark").write_bytes(content)
    store = begun(state)
    assert store.loss is None
    store.close()
    marked = evidence.read_mark(state / STORE).point
    assert marked is not None and marked.epoch == 2


def test_after_a_power_cut_a_mark_that_is_behind_is_no_loss(state: Path) -> None:
    marked = evidence.read_mark(state / STORE).point
    assert marked is not None
    grid = marked.grid
    (state / "grid.mark").write_bytes(
        evidence.encode_mark(Mark(Point(grid, 1, 30, 2020.0), "an earlier boot", bytes(32)))
    )
    assert not noticed(state)


@pytest.mark.parametrize("nodes", [0, 100])
@pytest.mark.parametrize("where", [0, 0.5], ids=["its header", "its middle"])
def test_after_a_power_cut_a_damaged_log_is_found_however_much_the_store_says_of_nodes(
    tmp_path: Path, nodes: int, where: float
) -> None:
    (tmp_path / "at-work").mkdir()
    store = Store(tmp_path / "at-work" / STORE)
    keep(store, *(RecordReturns(f"node-{number:03}.example.org", 3, 1) for number in range(nodes)))
    store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in range(JOBS):
        keep(store, RecordJob(a_job(number), new=True), clock=2000.0 + number)
    shutil.copytree(tmp_path / "at-work", tmp_path / "state")
    behind = Mark(Point(store.grid, 1, 2, 2000.0), "an earlier boot", bytes(32))
    (tmp_path / "state" / "grid.mark").write_bytes(evidence.encode_mark(behind))
    store.abandon()
    wal = tmp_path / "state" / f"{STORE}-wal"
    flip(wal, int(wal.stat().st_size * where), 0)
    assert noticed(tmp_path / "state")


def test_a_head_that_was_changed_is_damage(state: Path) -> None:
    with contextlib.closing(sqlite3.connect(state / STORE)) as db:
        db.execute("UPDATE meta SET value = replace(value, ' ', '  ') WHERE name = 'head'")
        db.commit()
    with pytest.raises(StoreFailed, match="damaged"):
        begun(state)
    assert check(state).findings


def test_what_shows_a_loss_while_it_runs_is_kept(state: Path) -> None:
    store = begun(state)
    keep(store, RecordLoss("n1 knows more"))
    assert store.loss is not None and store.loss.found == ("n1 knows more",)
    store.abandon()
    store = begun(state)
    assert store.loss is not None and store.loss.found == ("n1 knows more",)
    store.close()


@pytest.fixture(scope="module")
def stopped(killed: Path) -> Path:
    """The same store with all of it in its file, with a live job, a node and what else a start loads."""
    place = killed.with_name("stopped")
    shutil.copytree(killed, place)
    store = Store(place / STORE)
    live = [a_job(100 + number, name=f"live{number}") for number in range(5)]
    keep(store, *(RecordJob(one, new=True) for one in live), clock=4000.0)
    store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    return place


@pytest.mark.parametrize("seed", range(80))
def test_a_flipped_bit_of_the_file_changes_nothing_or_is_found(stopped: Path, tmp_path: Path, seed: int) -> None:
    state = tmp_path / "state"
    shutil.copytree(stopped, state)
    draw = random.Random(seed)  # noqa: S311
    flip(state / STORE, draw.randrange((state / STORE).stat().st_size), draw.randrange(8))
    try:
        same = results(state) == results(stopped)
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        same = False
    assert noticed(state) or same


@pytest.mark.parametrize(
    ("harm", "lives"),
    [
        ("DELETE FROM live WHERE n = (SELECT max(n) FROM live)", 4),
        ("UPDATE live SET n = 1 WHERE n = (SELECT max(n) FROM live)", 4),
        ("INSERT INTO live VALUES (1000)", 5),
        ("INSERT INTO ended VALUES (1000, 'ann', 7.0, 0, 0, x'00', 0)", 5),
        ("INSERT INTO changes VALUES (1, 'running', 'n1', x'00', NULL, 0, NULL)", 5),
    ],
)
def test_rows_of_a_job_that_contradict_each_other_are_found_and_taken_out(
    stopped: Path, tmp_path: Path, harm: str, lives: int
) -> None:
    state = tmp_path / "state"
    shutil.copytree(stopped, state)
    with contextlib.closing(sqlite3.connect(state / STORE, isolation_level=None)) as db:
        db.execute(harm)
    assert noticed(state)
    store = begun(state)
    assert len(store.load().jobs) == lives
    assert list(rows.damaged_rows(store._reader)) == []
    store.close()


def test_a_row_that_is_not_what_was_written_is_taken_out_and_kept_aside(stopped: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    shutil.copytree(stopped, state)
    data = (state / STORE).read_bytes()
    at = data.index(b"live3")  # in the record or in the columns of a job that waits
    flip(state / STORE, at, 0)
    assert check(state).findings
    with contextlib.suppress(StoreFailed):  # an index has the name, too
        store = begun(state)
        assert store.loss is not None and len(store.load().jobs) == 4
        assert [path for path in state.iterdir() if ".damaged-" in path.name]
        store.close()


def test_without_the_row_of_a_node_what_ran_there_is_not_known_and_all_else_is(tmp_path: Path) -> None:
    store = Store(tmp_path / STORE)
    name = "j-000000000001.1"
    runs = a_job(1, State.RUNNING, allocation=name, node="n1", tries=1)
    held = Allocation(id=name, job=runs.id, node="n1", grant=Grant((0,)), state=State.RUNNING, granted=5.0, started=6.0)
    keep(store, RecordNode(node("n1")), RecordNode(node("n2")), RecordJob(runs, new=True), RecordAllocation(held))
    keep(store, RecordJob(a_job(2), new=True))
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / STORE)) as db:
        db.execute("UPDATE nodes SET body = x'93' WHERE name = 'n1'")
        db.commit()
    assert known(tmp_path).waiting == 1
    assert "start the coordinator" in accept(tmp_path, "ann", resume=True)
    store = begun(tmp_path)
    living = store.load()
    assert (
        store.loss is None
        and [job.key for job in living.jobs] == ["k2"]
        and [one.name for one in living.nodes] == ["n2"]
    )
    Ledger(store.epoch).restore(living.jobs, living.allocations, living.nodes, store.clock)
    store.close()
    assert check(tmp_path).findings == []
