"""A store that is not what it should be is found, and says where and what to do."""

import asyncio
import os
import sqlite3

import msgspec
import pytest

from distributed_grid.coordinator.backup.check import check
from distributed_grid.coordinator.backup.state import STORE, blob_path
from distributed_grid.protocol.bundle import blob_hash
from tests.coordinator.backup.scene import FILE, Lost


async def test_a_store_that_is_being_written_is_found_sound(lost: Lost) -> None:
    checked = await asyncio.to_thread(check, lost.state)
    assert checked.findings == [] and checked.content is not None
    assert (checked.content.live, checked.content.ended) == (1, 3)


HARM = {
    "UPDATE changes SET state = 'lost' WHERE state = 'running'": "its state is 'lost' in the table and",
    "UPDATE ended SET ended = 7 WHERE n = (SELECT min(n) FROM ended)": "its ended is 7.0 in the table and",
    "UPDATE changes SET node = 'n9' WHERE state = 'running'": "its node is 'n9' in the table and 'n1' inside",
    "UPDATE jobs SET body = x'93' WHERE n = (SELECT min(n) FROM live)": "its record cannot be read",
    "UPDATE changes SET body = x'93' WHERE state = 'running'": "its record cannot be read",
    "UPDATE changes SET allocation = NULL WHERE state = 'running'": "what it holds is not kept",
    "DELETE FROM live WHERE n = (SELECT min(n) FROM live)": "a job has no state",
    "INSERT INTO live SELECT min(n) FROM ended": "a job that has ended is live",
    "INSERT INTO live VALUES (1000)": "a live job is missing",
    "INSERT INTO changes VALUES (9, 'lost', 'n1', x'00', NULL, 0, NULL)": "what has changed of a live job is of none",
    "INSERT INTO ended VALUES (1000, 'ann', 7.0, 0, 0, x'00', 0)": "an ended job is missing",
    "DELETE FROM nodes": "is on n1, which is not a node that is known",
    "UPDATE nodes SET name = 'n2'": "its name is 'n2' in the table and 'n1' inside",
    "INSERT INTO past_allocations (id, node, body, sum) VALUES ('j-1.1', 'n1', x'00', 0)": "its record cannot be read",
    "UPDATE meta SET value = 'x' WHERE name = 'head'": "its head is not what was written",
    "DELETE FROM meta WHERE name = 'head'": "its head is not what was written",
}


@pytest.mark.parametrize("harm", HARM)
async def test_each_way_in_which_a_store_can_be_wrong_is_found(lost: Lost, harm: str) -> None:
    with sqlite3.connect(lost.backup / STORE) as db:
        assert db.execute(harm).rowcount == 1
    found = check(lost.backup).findings
    assert any(HARM[harm] in one.what for one in found), found
    assert all(one.hint for one in found)


async def test_what_is_held_beyond_what_a_node_has_is_found(lost: Lost) -> None:
    with sqlite3.connect(lost.backup / STORE) as db:
        (held,) = db.execute("SELECT allocation FROM changes WHERE state = 'running'").fetchone()
        changed = msgspec.msgpack.decode(held)
        changed["grant"]["memory"] = 1 << 60
        db.execute("UPDATE changes SET allocation = ? WHERE state = 'running'", (msgspec.msgpack.encode(changed),))
    (found,) = check(lost.backup).findings
    assert f"{1 << 60} bytes of n1 are held, it has " in found.what


async def test_shipped_files_that_are_gone_or_changed_are_found(lost: Lost) -> None:
    blob_path(lost.backup, blob_hash(FILE)).write_bytes(b"something else")
    (found,) = check(lost.backup).findings
    assert "another content" in found.what
    blob_path(lost.backup, blob_hash(FILE)).unlink()
    (found,) = check(lost.backup).findings
    assert found.where == f"job {lost.jobs['waits']}" and "not there" in found.what


async def test_a_damaged_file_is_said_in_a_few_lines(lost: Lost) -> None:
    path = lost.backup / STORE
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(os.urandom(8192))
    checked = check(lost.backup)
    assert 0 < len(checked.findings) <= 100
