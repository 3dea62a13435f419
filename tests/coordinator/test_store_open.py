"""A store of every version that was ever released can be opened, and nothing of it is lost on the way.

`stores/schema-N.sql` is such a store, with jobs in every state; `schema-N.json` is what the software of then read.
Who raises SCHEMA adds both, made by the last software of the schema before.
"""

import json
import shutil
import sqlite3
from collections import namedtuple
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator import store_open
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Job, RecordJob
from distributed_grid.coordinator.store import Store
from distributed_grid.coordinator.store_failed import StoreFailed
from distributed_grid.coordinator.store_open import MIGRATIONS, SCHEMA
from distributed_grid.protocol.jobs import JobSpec, Request
from distributed_grid.protocol.resources import Resources

STORES = Path(__file__).parent / "stores"
OLD = sorted(MIGRATIONS)


def lay(folder: Path, schema: int) -> Path:
    """A store of this schema, as a file."""
    path = folder / "grid.db"
    db = sqlite3.connect(path)
    db.executescript((STORES / f"schema-{schema}.sql").read_text())
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    return path


def read_then(schema: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STORES / f"schema-{schema}.json").read_text())
    return found


def holds(now: Any, then: Any) -> bool:
    """Whether all that was said then is said now; what came new since may be there too."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(key in now and holds(now[key], then[key]) for key in then)
    if isinstance(then, list):
        return len(now) == len(then) and all(map(holds, now, then))
    return bool(now == then)


def plain(things: list[Any]) -> Any:
    return msgspec.to_builtins(sorted(things, key=lambda thing: getattr(thing, "id", "") or thing.name))


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


def test_every_version_that_was_released_is_kept_here() -> None:
    assert list(range(1, SCHEMA)) == OLD
    assert [path.name for path in sorted(STORES.glob("*.sql"))] == [f"schema-{number}.sql" for number in OLD]


@pytest.mark.parametrize("schema", OLD)
def test_all_that_an_older_store_has_is_in_it_when_it_is_opened(tmp_path: Path, schema: int) -> None:
    path, then = lay(tmp_path, schema), read_then(schema)
    store = Store(path)
    living = store.load()
    ended = store.list_ended(100)
    assert holds(plain(living.jobs + ended), then["jobs"])
    assert {str(job.state) for job in living.jobs + ended} == {job["state"] for job in then["jobs"]}
    held = [one for one in then["allocations"] if one["state"] != "ended"]
    assert held and holds(plain(living.allocations), held)
    assert holds(plain(living.nodes), then["nodes"])
    assert all(store.node_of(one["id"]) == one["node"] for one in then["past_allocations"])
    seen = {row[0] for row in sqlite3.connect(path).execute("SELECT seen FROM nodes")}
    assert seen == {then["meta"]["clock"]}  # nobody is forgotten for having been stored by older software
    assert (store.grid, store.clock) == (then["meta"]["grid"], then["meta"]["clock"])
    ledger = Ledger(store.epoch)
    ledger.restore(living.jobs, living.allocations, living.nodes, store.clock)
    ledger.check()
    store.close()


def test_the_boosts_of_an_older_store_are_known_as_such(tmp_path: Path) -> None:
    store = Store(lay(tmp_path, 6))
    assert [job.id for job in store.list_ended(100, boosts=True)] == ["j-aaaaaaaaaaab"]
    store.close()


@pytest.mark.parametrize("schema", OLD)
def test_an_older_store_becomes_what_a_new_one_is(tmp_path: Path, schema: int) -> None:
    path = lay(tmp_path, schema)
    Store(path).close()
    Store(tmp_path / "new.db").close()
    assert shape(path) == shape(tmp_path / "new.db")


@pytest.mark.parametrize("schema", OLD)
def test_a_copy_is_kept_of_how_it_was(tmp_path: Path, schema: int) -> None:
    path = lay(tmp_path, schema)
    before = shape(path)
    Store(path).close()
    kept = path.with_name(f"grid.db.schema-{schema}")
    assert shape(kept) == before
    rows = "SELECT count(*) FROM jobs"
    assert sqlite3.connect(kept).execute(rows).fetchone() == sqlite3.connect(path).execute(rows).fetchone()


def test_where_there_is_no_room_for_a_copy_it_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = namedtuple("full", "total used free")(1 << 30, 1 << 30, store_open.SPARE)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    path = lay(tmp_path, 1)
    store = Store(path)
    assert len(store.load().jobs) == sum(job["state"] != "ended" for job in read_then(1)["jobs"])
    assert not path.with_name("grid.db.schema-1").exists()


def test_a_step_that_fails_leaves_the_older_store_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lay(tmp_path, 1)
    before = shape(path)
    monkeypatch.setitem(MIGRATIONS, 1, MIGRATIONS[1] + "DROP TABLE nowhere;")
    with pytest.raises(StoreFailed):
        Store(path)
    assert shape(path) == before
    monkeypatch.undo()
    assert Store(path).load().jobs


def test_a_job_that_has_more_fields_than_are_known_here_can_be_read(tmp_path: Path) -> None:
    """Who goes back to the software before an update within one schema finds its jobs."""
    store = Store(tmp_path / "grid.db")
    job = Job(id="j-1", key="k", user="ann", spec=JobSpec(("true",)), request=Request(Resources(cpu=1)), submitted=1.0)
    store.commit(store.snapshot([RecordJob(job, new=True)], 1.0))
    body = msgspec.msgpack.decode(msgspec.msgpack.encode(job)) | {"of_tomorrow": [1]}
    with sqlite3.connect(tmp_path / "grid.db") as db:
        db.execute("UPDATE jobs SET body = ?", (msgspec.msgpack.encode(body),))
    assert store.job("j-1") == job
