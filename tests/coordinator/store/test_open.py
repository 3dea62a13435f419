"""A store of an older schema is brought up to date when it is opened, with a copy kept of how it was; one of a newer
schema is refused.

No release had another schema than this one's, so the next one is made up here: stores of today are the older ones.
"""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.backup.accept_loss import accept, known
from distributed_grid.coordinator.core.commands import RecordJob, RecordNode
from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.store import open
from distributed_grid.coordinator.store.errors import StoreFailed
from distributed_grid.coordinator.store.open import MIGRATIONS, SCHEMA
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.jobs import JobSpec, Request
from distributed_grid.protocol.resources import Resources
from tests.coordinator.ends import node

JOB = Job(id="j-1", key="k", user="ann", spec=JobSpec(("true",)), request=Request(Resources(cpu=1)), submitted=1.0)
STEPS = {
    SCHEMA: "ALTER TABLE nodes ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey'; UPDATE nodes SET colour = 'green';",
    SCHEMA + 1: "CREATE INDEX nodes_coloured ON nodes (colour);",
}
"""Two steps to schemas that are made up."""


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A store of today's schema, with a job and a node."""
    path = tmp_path / "grid.db"
    store = Store(path)
    store.commit(store.snapshot([RecordJob(JOB, new=True), RecordNode(node("n1"))], 100.0))
    store.close()
    return path


@pytest.fixture
def _two_steps(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, this software knows two more schemas than the older store."""
    monkeypatch.setattr(open, "SCHEMA", SCHEMA + 2)
    for schema, step in STEPS.items():
        monkeypatch.setitem(MIGRATIONS, schema, step)


def shape(path: Path) -> dict[str, Any]:
    """Tables with their columns, and indexes: what a schema is, however it was written."""
    db = sqlite3.connect(path)
    objects = db.execute("SELECT type, name FROM sqlite_schema").fetchall()
    shapes = {
        name: sorted(row[1:] for row in db.execute(f"PRAGMA {'table' if kind == 'table' else 'index'}_info({name})"))
        for kind, name in objects
    }
    shapes["user_version"] = db.execute("PRAGMA user_version").fetchall()
    db.close()
    return shapes


def holds_all(store: Store) -> bool:
    living = store.load()
    return living.jobs == [JOB] and living.nodes == [node("n1")] and store.clock == 100.0


def test_there_is_a_step_from_each_schema_to_the_next() -> None:
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA))


@pytest.mark.usefixtures("_two_steps")
def test_an_older_store_is_brought_up_to_date_step_by_step_and_loses_nothing(older: Path) -> None:
    store = Store(older)
    assert holds_all(store)
    store.close()
    after = shape(older)
    assert after["user_version"] == [(SCHEMA + 2,)] and "nodes_coloured" in after
    assert sqlite3.connect(older).execute("SELECT colour FROM nodes").fetchall() == [("green",)]


@pytest.mark.usefixtures("_two_steps")
def test_what_is_up_to_date_is_left_as_it_is(older: Path) -> None:
    Store(older).close()
    sqlite3.connect(older).execute("UPDATE nodes SET colour = 'red'").connection.commit()
    Store(older).close()
    assert sqlite3.connect(older).execute("SELECT colour FROM nodes").fetchall() == [("red",)]


@pytest.mark.usefixtures("_two_steps")
def test_a_copy_is_kept_of_how_it_was_before_each_step(older: Path) -> None:
    before = shape(older)
    Store(older).close()
    kept = older.with_name(f"grid.db.schema-{SCHEMA}")
    assert shape(kept) == before
    assert sqlite3.connect(kept).execute("SELECT id FROM jobs").fetchall() == [("j-1",)]
    assert shape(older.with_name(f"grid.db.schema-{SCHEMA + 1}"))["user_version"] == [(SCHEMA + 1,)]


@pytest.mark.usefixtures("_two_steps")
def test_where_there_is_no_room_for_a_copy_it_is_done_without(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil.disk_usage("/")._replace(free=open.SPARE)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    store = Store(older)
    assert holds_all(store)
    store.close()
    assert not list(older.parent.glob("grid.db.schema-*"))


@pytest.mark.usefixtures("_two_steps")
def test_a_step_that_fails_leaves_the_older_store_as_it_was(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shape(older)
    with monkeypatch.context() as patched:
        patched.setitem(MIGRATIONS, SCHEMA, STEPS[SCHEMA] + "DROP TABLE nowhere;")
        with pytest.raises(StoreFailed):
            Store(older)
        assert shape(older) == before
    store = Store(older)
    assert holds_all(store)
    store.close()


def test_a_newer_store_is_refused_and_left_as_it_is(older: Path) -> None:
    db = sqlite3.connect(older)
    db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    before = shape(older)
    for refused in (
        lambda: Store(older),
        lambda: known(older.parent),
        lambda: accept(older.parent, "ann", resume=True),
    ):
        with pytest.raises(StoreFailed, match="newer version"):
            refused()
    assert shape(older) == before


def test_a_job_that_has_more_fields_than_are_known_here_can_be_read(tmp_path: Path) -> None:
    """Who goes back to the software before an update within one schema finds its jobs."""
    store = Store(tmp_path / "grid.db")
    store.commit(store.snapshot([RecordJob(JOB, new=True)], 1.0))
    body = msgspec.msgpack.decode(msgspec.msgpack.encode(JOB)) | {"of_tomorrow": [1]}
    with sqlite3.connect(tmp_path / "grid.db") as db:
        db.execute("UPDATE jobs SET body = ?", (msgspec.msgpack.encode(body),))
    assert store.job("j-1") == JOB
