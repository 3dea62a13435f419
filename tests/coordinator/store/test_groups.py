"""Arrays on disk: found by what people call them, taken up in order, gone with the last of their members."""

import sqlite3
from pathlib import Path

import pytest

from distributed_grid.coordinator.core.commands import (
    RECORDS,
    CancelRequested,
    JobsSubmitted,
    Record,
    RecordGroup,
    RecordJob,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.jobs import Cause, Outcome, Request, RetryOn
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.core.lifecycle import test_outcomes as gangs
from tests.coordinator.core.queue.test_groups import CPU, submitted
from tests.coordinator.core.scene import job


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "grid.db"


@pytest.fixture
def ledger(path: Path) -> Ledger:
    """One that has taken an array `j-abc` named `sweep` of 12, a job `j-abd`, and has them on disk."""
    made = Ledger()
    event = submitted("0-11", "j-abc")
    template = event.jobs[0]
    template.spec = type(template.spec)(argv=("true",), name="sweep")
    out = made.handle(event, 1.0)
    out += made.handle(JobsSubmitted(2, (job("j-abd", CPU, at=2.0),)), 2.0)
    save(path, [one for one in out if isinstance(one, RecordJob | RecordGroup)])
    return made


def save(path: Path, records: list[Record]) -> None:
    store = Store(path)
    store.commit(store.snapshot(records, 1.0))
    store.close()


@pytest.mark.parametrize(
    ("ref", "found"),
    [
        ("j-abc", ["j-abc"]),
        ("j-ab", ["j-abc", "j-abd"]),
        ("abc", ["j-abc"]),
        ("j-abc_7", ["j-abc_7"]),
        ("abc_11", ["j-abc_11"]),
        ("j-abc_12", []),
        ("sweep", ["j-abc"]),
        ("sweep_3", ["j-abc_3"]),
        ("j-abd", ["j-abd"]),
        ("last", ["j-abd"]),
        ("_3", []),
    ],
)
def test_what_is_named_is_found(path: Path, ledger: Ledger, ref: str, found: list[str]) -> None:
    store = Store(path)
    assert store.find(ref, "ann") == found
    store.close()


def test_a_key_of_an_array_is_known(path: Path, ledger: Ledger) -> None:
    store = Store(path)
    assert store.known("ann", ["key-j-abc", "key-j-abd", "other"]) == {"key-j-abc": "j-abc", "key-j-abd": "j-abd"}
    store.close()


def test_members_are_taken_up_in_the_order_of_their_indexes(path: Path, ledger: Ledger) -> None:
    store = Store(path)
    living = store.load()
    store.close()
    assert [one.id for one in living.jobs] == [*(f"j-abc_{index}" for index in range(12)), "j-abd"]
    assert [group.id for group in living.groups] == ["j-abc"]
    again = Ledger()
    again.restore(living.jobs, living.allocations, living.nodes, 3.0, many=living.groups)
    again.check()
    assert again.state.queue.turns == ledger.state.queue.turns


def test_an_array_goes_with_the_last_of_its_members(path: Path, ledger: Ledger) -> None:
    out = ledger.handle(CancelRequested(3, ("j-abc",)), 4.0)
    save(path, [one for one in out if isinstance(one, RecordJob | RecordGroup)])
    db = sqlite3.connect(path)
    assert db.execute("SELECT ended FROM groups").fetchall() == [(4.0,)]
    db.execute("DELETE FROM jobs WHERE id <> 'j-abc_5'")
    assert db.execute("SELECT count(*) FROM groups").fetchone() == (1,)
    db.execute("DELETE FROM jobs")
    assert db.execute("SELECT count(*) FROM groups").fetchone() == (0,)
    db.close()


def test_a_gang_that_ran_out_of_memory_asks_for_more_after_a_restart_too(path: Path) -> None:
    request = Request(Resources(1000, GIB), gang=2, retry_on=(RetryOn.OOM,), retries=3, retry_memory=2000)
    ledger = gangs.grid()
    save(path, [one for one in gangs.submitted(ledger, request=request) if isinstance(one, RECORDS)])
    ended = gangs.ends(ledger, 1, Outcome(Cause.OUT_OF_MEMORY, code=137, started=True))
    ended += gangs.ends(ledger, 0, Outcome(Cause.GANG, started=True))
    save(path, [one for one in ended if isinstance(one, RECORDS)])
    store = Store(path)
    assert [job.request.resources.memory for job in store.load().jobs] == [2 * GIB, 2 * GIB]
    store.close()
