"""What is committed is there after a restart; what is looked up is found as people name it."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.backup.archive import backup, restore
from distributed_grid.coordinator.core.commands import (
    Audit,
    RecordAllocation,
    RecordForgotten,
    RecordJob,
    RecordNode,
    RecordReturns,
)
from distributed_grid.coordinator.core.model import Active, Allocation, Attempt, Ended, Job
from distributed_grid.coordinator.core.rollback import Point
from distributed_grid.coordinator.store import open, rows
from distributed_grid.coordinator.store.errors import RESERVE_BYTES, DiskTrouble, Reserve, StoreFailed, StoreRefused
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Request, State, Step
from distributed_grid.protocol.nodes import NodeFacts
from distributed_grid.protocol.resources import Grant, Resources

ASKED = Request(Resources(cpu=1000))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "grid.db"


def a_job(
    number: int, state: State = State.WAITING, name: str = "", user: str = "ann", node: str = "", **more: Any
) -> Job:
    body = JobSpec(("true",), name=name)
    at = 1000.0 + number
    made = Job(id=f"j-{number:012d}", key=f"k{number}", user=user, spec=body, request=ASKED, submitted=at)
    if state is State.ENDED:
        made.phase = Ended(outcome=Outcome(Cause.EXITED), at=at + 1)
    elif state is not State.WAITING:
        made.phase = Active(state=state, attempt=Attempt(node, None))
    for field, value in more.items():
        setattr(made, field, value)
    return made


def keep(store: Store, *records: object, clock: float = 1.0) -> None:
    store.commit(store.snapshot(records, clock))  # type: ignore[arg-type]


def test_what_owners_returns_came_to_is_there_after_a_restart_and_goes_with_the_node(path: Path) -> None:
    store = Store(path)
    facts = NodeFacts(name="n1", hostname="h", boot_id="b", incarnation=3, cores=(0,), memory=1, lendable=Resources())
    other, third = replace(facts, name="n2"), replace(facts, name="n3")
    keep(store, RecordNode(facts), RecordReturns("n1", 1, 0), RecordReturns("n1", 2, 1))
    keep(store, RecordNode(other), RecordNode(third), RecordReturns("n2", 0, 7), RecordReturns("n3", 0, 3), clock=100.0)
    keep(store, RecordForgotten("n3"), clock=100.0)
    store.close()
    store = Store(path)
    assert store.load().returns == {"n1": (2, 1), "n2": (0, 7)}
    store.forget_nodes(50.0)
    assert [one.name for one in store.load().nodes] == ["n2"] and store.load().returns == {"n2": (0, 7)}
    store.close()


def test_a_restart_finds_only_what_lives(path: Path) -> None:
    store = Store(path)
    held = Allocation(
        id="j-000000000002.1", job="j-000000000002", node="n1", grant=Grant((1, 2)), state=State.RUNNING, granted=5.0
    )
    over = Allocation(id="j-000000000003.1", job="x", node="n1", grant=Grant(), state=State.ENDED, granted=5.0)
    facts = NodeFacts(name="n1", hostname="h", boot_id="b", incarnation=3, cores=(0,), memory=1, lendable=Resources())
    running = a_job(2, State.RUNNING, allocation=held.id, node="n1", story=[Step(5.0, State.RUNNING, "runs")])
    keep(
        store,
        RecordJob(running, new=True),
        RecordJob(a_job(1), new=True),
        RecordJob(a_job(3, State.ENDED), new=True),
        RecordAllocation(held),
        RecordAllocation(over),
        RecordNode(facts),
        Audit("n1", "came too late"),
    )
    store.close()
    living = Store(path).load()
    assert [job.id for job in living.jobs] == ["j-000000000001", "j-000000000002"]
    assert living.jobs[1] == running
    assert living.allocations == [held]
    assert living.nodes == [facts]


def test_a_node_that_was_forgotten_is_not_found_by_a_restart_unless_it_came_back(path: Path) -> None:
    store = Store(path)
    of = [
        NodeFacts(name=name, hostname="h", boot_id="b", incarnation=3, cores=(0,), memory=1, lendable=Resources())
        for name in ("n1", "n2", "n3")
    ]
    keep(store, *map(RecordNode, of))
    keep(store, RecordForgotten("n1"), RecordForgotten("n2"), RecordNode(of[1]))
    assert store.load().nodes == of[1:]
    keep(store, RecordNode(of[0]), RecordForgotten("n2"), RecordForgotten("n1"))
    assert store.load().nodes == of[2:]


def test_a_snapshot_keeps_the_moment_it_was_taken(path: Path) -> None:
    store, job = Store(path), a_job(1)
    snapshot = store.snapshot([RecordJob(job, new=True)], 1.0)
    job.phase = Active(state=State.RUNNING, attempt=Attempt("", None))
    store.commit(snapshot)
    found = store.job(job.id)
    assert found is not None and found.state is State.WAITING


def test_a_changed_job_replaces_what_was_stored(path: Path) -> None:
    store, job = Store(path), a_job(1)
    keep(store, RecordJob(job, new=True))
    job.phase = Ended(outcome=Outcome(Cause.EXITED, code=3), at=2000.0)
    keep(store, RecordJob(job))
    assert store.load().jobs == []
    assert [found.outcome for found in store.list_ended(10)] == [job.outcome]


def test_a_job_is_stored_with_its_newest_allocation_and_earlier_ones_are_still_found(path: Path) -> None:
    store = Store(path)
    job = a_job(2, State.WAITING, allocation="j-000000000002.1")
    first = Allocation(id="j-000000000002.1", job=job.id, node="n1", grant=Grant(), state=State.ENDED, granted=5.0)
    keep(store, RecordJob(job, new=True), RecordAllocation(first))
    assert store.load().allocations == []
    job.allocation = "j-000000000002.2"
    job.phase = Active(state=State.STARTING, attempt=Attempt("n2", Grant((1,))))
    second = Allocation(id=job.allocation, job=job.id, node="n2", grant=Grant((1,)), state=job.state, granted=6.0)
    keep(store, RecordAllocation(second), RecordJob(job))
    assert store.load().allocations == [second]
    past = store.past(first.id)
    assert past is not None and past.node == "n1"


def test_what_becomes_of_a_job_is_written_beside_what_was_submitted(path: Path) -> None:
    store, job = Store(path), a_job(1)
    keep(store, RecordJob(job, new=True))
    before = store._reader.execute("SELECT * FROM jobs").fetchall()
    for state in (State.STARTING, State.RUNNING):
        job.phase, job.allocation = Active(state=state, attempt=Attempt("n1", Grant((1,)))), f"{job.id}.1"
        held = Allocation(id=job.allocation, job=job.id, node="n1", grant=Grant((1,)), state=state, granted=5.0)
        keep(store, RecordJob(job), RecordAllocation(held))
        assert store.job(job.id) == job and store.load().allocations == [held]
    job.phase = Ended(outcome=Outcome(Cause.EXITED), at=2000.0, attempt=Attempt("n1", Grant((1,))))
    keep(store, RecordJob(job))
    assert store.job(job.id) == job and store.load().jobs == []
    assert store._reader.execute("SELECT * FROM jobs").fetchall() == before
    of_live = store._reader.execute("SELECT (SELECT count(*) FROM live), (SELECT count(*) FROM changes)")
    assert of_live.fetchone() == (0, 0)


def test_a_commit_that_is_repeated_because_its_result_was_not_known_changes_nothing(path: Path) -> None:
    store = Store(path)
    waits, runs, over = a_job(1), a_job(2, State.RUNNING, node="n1"), a_job(3, State.ENDED)
    runs.allocation = f"{runs.id}.1"
    held = Allocation(id=runs.allocation, job=runs.id, node="n1", grant=Grant(), state=State.RUNNING, granted=5.0)
    records = [*(RecordJob(one, new=True) for one in (waits, runs, over)), RecordAllocation(held)]
    for _ in range(2):
        keep(store, *records)
        assert (store.load().jobs, store.load().allocations) == ([waits, runs], [held])
        assert store.list_ended(10) == [over]
    assert list(rows.damaged_rows(store._reader)) == []


def test_a_change_of_a_job_that_is_not_there_is_refused_and_nothing_of_it_is_kept(path: Path) -> None:
    store = Store(path)
    with pytest.raises(StoreFailed, match="cannot be used") as caught:
        keep(store, RecordJob(a_job(1), new=True), RecordJob(a_job(2, State.ENDED)))
    assert "not there" in caught.value.why
    store.abandon()
    assert Store(path).load().jobs == []


def test_many_rows_are_one_transaction_in_statements_of_any_size(path: Path) -> None:
    store = Store(path)
    jobs = [a_job(number) for number in range(151)]
    keep(store, *(RecordJob(job, new=True) for job in jobs))
    assert store.load().jobs == jobs


def test_each_start_is_a_new_epoch_of_the_same_grid(path: Path) -> None:
    first = Store(path)
    second = Store(path)  # the first was killed
    assert (first.epoch, second.epoch) == (1, 2)
    assert first.grid == second.grid and len(first.grid) == 16


def test_the_clock_of_the_last_commit_is_remembered(path: Path) -> None:
    store = Store(path)
    keep(store, Audit("", "x"), clock=4_000_000_000.5)
    store.close()
    assert Store(path).clock == 4_000_000_000.5


def test_known_keys_are_found_per_user(path: Path) -> None:
    store = Store(path)
    keep(store, RecordJob(a_job(1), new=True))
    assert store.known("ann", ["k1", *(f"x{n}" for n in range(1200))]) == {"k1": "j-000000000001"}
    assert store.known("bob", ["k1"]) == {}


def test_jobs_are_found_by_id_prefix_name_and_last(path: Path) -> None:
    store = Store(path)
    keep(
        store,
        RecordJob(a_job(1, id="j-abcaaaaaaaaa", name="train"), new=True),
        RecordJob(a_job(2, State.ENDED, id="j-abdaaaaaaaaa", name="train"), new=True),
        RecordJob(a_job(3, id="j-xyzaaaaaaaaa", user="bob", name="train"), new=True),
    )
    assert store.find("j-abcaaaaaaaaa", "ann") == ["j-abcaaaaaaaaa"]
    assert store.find("j-x", "ann") == ["j-xyzaaaaaaaaa"]
    assert store.find("abd", "ann") == ["j-abdaaaaaaaaa"]
    assert store.find("ab", "ann") == ["j-abcaaaaaaaaa", "j-abdaaaaaaaaa"]
    assert store.find("train", "ann") == ["j-abdaaaaaaaaa"]
    assert store.find("train", "bob") == ["j-xyzaaaaaaaaa"]
    assert store.find("last", "ann") == ["j-abdaaaaaaaaa"]
    assert store.find("last", "eve") == []
    assert store.find("nothing", "ann") == []
    assert store.find("", "ann") == []
    assert store.find("%", "ann") == []


def test_ended_jobs_come_newest_end_first_and_bounded(path: Path) -> None:
    store = Store(path)
    keep(store, *(RecordJob(a_job(n, State.ENDED, user="ann" if n % 2 else "bob"), new=True) for n in range(10)))
    assert [job.key for job in store.list_ended(3)] == ["k9", "k8", "k7"]
    assert [job.key for job in store.list_ended(2, "bob")] == ["k8", "k6"]


def test_a_store_cannot_be_damaged_unnoticed(path: Path) -> None:
    store = Store(path)
    keep(store, *(RecordJob(a_job(n), new=True) for n in range(500)))
    store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(os.urandom(8192))
    with pytest.raises(StoreFailed, match="damaged") as caught:
        Store(path)
    assert caught.value.hint


def test_a_file_that_is_no_store_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(StoreFailed, match="damaged"):
        Store(path)


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(StoreFailed, match="not a store of a grid"):
        Store(path)


@pytest.mark.parametrize(
    ("byte", "bit", "says"),
    [
        (0, 0, "not a database"),
        (18, 0, "its head names a format"),
        (18, 7, "its head names a format"),
        (60, 7, "its schema is -2147483646"),
        (61, 3, "its schema is 524290"),
        (63, 1, "its schema is 0"),
        (68, 0, "is of program 0x46524944"),
        (71, 7, "is of program 0x475249c4"),
    ],
)
def test_a_flipped_bit_in_the_head_is_damage_and_the_error_says_what_to_do(
    path: Path, byte: int, bit: int, says: str
) -> None:
    Store(path).close()
    whole = bytearray(path.read_bytes())
    whole[byte] ^= 1 << bit
    path.write_bytes(whole)
    with pytest.raises(StoreFailed, match="is damaged") as found:
        Store(path)
    assert says in found.value.why and "grid coordinator restore" in found.value.hint
    assert not isinstance(found.value, DiskTrouble | StoreRefused)


def test_what_is_in_a_store_with_an_impossible_format_is_saved_by_a_backup(path: Path, tmp_path: Path) -> None:
    store = Store(path)
    keep(store, RecordJob(a_job(1), new=True))
    store.close()
    whole = bytearray(path.read_bytes())
    whole[18] |= 4
    path.write_bytes(whole)
    with pytest.raises(StoreFailed, match="is damaged") as found:
        Store(path)
    assert "grid coordinator backup" in found.value.hint
    backup(path.parent, tmp_path / "copy", force=False)
    assert restore(tmp_path / "copy", path.parent, force=True, resume=True).content.live == 1
    Store(path).close()


def test_a_store_of_a_newer_version_is_refused(path: Path) -> None:
    Store(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreFailed, match="newer version"):
        Store(path)


def test_a_full_disk_is_said_and_nothing_of_the_transaction_is_kept(path: Path) -> None:
    store = Store(path)
    keep(store, RecordJob(a_job(1), new=True))
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(StoreFailed, match="no space left"):
        keep(store, *(RecordJob(a_job(n), new=True) for n in range(2, 400)))
    store.abandon()
    assert [job.key for job in Store(path).load().jobs] == ["k1"]


def test_an_agent_that_says_only_strange_things_fills_no_disk(path: Path) -> None:
    store = Store(path)
    for _ in range(40):
        keep(store, *(Audit("n1", "x" * 10_000) for _ in range(500)))
    rows, longest = sqlite3.connect(path).execute("SELECT count(*), max(length(what)) FROM audit").fetchone()
    assert 10_000 <= rows <= 11_000
    assert longest == 500


def test_a_node_that_says_only_strange_things_pushes_out_nothing_of_what_is_told_of_others(path: Path) -> None:
    store = Store(path)
    keep(store, Audit("n2", "the result of a job"), Audit("", "pool spot is paused"))
    for number in range(40):
        keep(store, *(Audit("n1", str(500 * number + line)) for line in range(500)))
    store.abandon()
    Store(path).abandon()
    with closing(sqlite3.connect(path)) as db:
        others = db.execute("SELECT node, what FROM audit WHERE node != 'n1'").fetchall()
        said = [int(what) for (what,) in db.execute("SELECT what FROM audit WHERE node = 'n1' ORDER BY rowid")]
    assert others == [("n2", "the result of a job"), ("", "pool spot is paused")]
    assert said == [*range(20_000 - 9_998, 20_000)]


def filled(store: Store) -> None:
    """Leave no room for more than a page."""
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {pages + 1}")


def test_after_trouble_a_new_connection_stores_what_the_old_one_could_not(path: Path) -> None:
    reserve = Reserve(path.parent)
    assert reserve.make() == "" and (path.parent / "reserve").stat().st_blocks * 512 >= RESERVE_BYTES
    store = Store(path, reserve)
    keep(store, RecordJob(a_job(1), new=True))
    records = [RecordJob(a_job(n), new=True) for n in range(2, 400)]
    filled(store)
    with pytest.raises(DiskTrouble, match="no space left"):
        keep(store, *records)
    store.reopen()
    assert not (path.parent / "reserve").exists(), "its room is the store's now"
    keep(store, *records)
    assert store.secure() is None and (path.parent / "reserve").exists()
    assert len(store.load().jobs) == 399


def test_a_store_that_another_coordinator_has_begun_on_is_not_written_again(path: Path) -> None:
    store = Store(path)
    Store(path).close()
    with pytest.raises(StoreFailed, match="not what it was") as caught:
        store.reopen()
    assert not isinstance(caught.value, DiskTrouble)


def test_a_store_that_was_taken_away_is_waited_for_and_not_made_anew(path: Path) -> None:
    store = Store(path)
    keep(store, RecordJob(a_job(1), new=True))
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(DiskTrouble):
        store.reopen()
    assert not path.exists()
    path.with_name("elsewhere").rename(path)
    store.reopen()
    keep(store, RecordJob(a_job(2), new=True))
    assert store.known("ann", ["k1", "k2"]).keys() == {"k1", "k2"}


def test_an_older_state_of_the_disk_is_seen(path: Path) -> None:
    store = Store(path)
    keep(store, RecordJob(a_job(1), new=True), clock=100.0)
    older = Point(store.grid, store.epoch, 0, 50.0)
    store._writer.execute(open.SET_HEAD, (open.encode_head(older),))
    with pytest.raises(StoreFailed, match="not what it was"):
        store.reopen()
