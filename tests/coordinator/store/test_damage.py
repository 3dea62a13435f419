"""A damaged row is removed with all that makes sense only together with it, so a ledger can be made of the rest."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from distributed_grid.coordinator.backup.accept_loss import accept, known
from distributed_grid.coordinator.backup.archive import backup, restore
from distributed_grid.coordinator.backup.check import check
from distributed_grid.coordinator.backup.state import STORE
from distributed_grid.coordinator.core.commands import (
    JobsSubmitted,
    Record,
    RecordAllocation,
    RecordBalancing,
    RecordGroup,
    RecordJob,
    RecordNode,
    RecordReturns,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lifecycle import holds
from distributed_grid.coordinator.core.model import Earmark, Earmarked
from distributed_grid.coordinator.core.rollback import CHOOSE
from distributed_grid.coordinator.core.scaling.events import RecordPauses
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Request, State
from distributed_grid.protocol.resources import Grant, Resources
from distributed_grid.protocol.sharing.policies import BalancingOrder
from tests.coordinator.core.lifecycle import test_outcomes as gangs
from tests.coordinator.core.lifecycle.test_successors import Grid
from tests.coordinator.core.scene import facts, job, join, step

CORE = Request(Resources(cpu=1000))


def store_all(folder: Path, ledger: Ledger) -> None:
    """The store of a coordinator with this ledger that has stopped."""
    state, store = ledger.state, Store(folder / STORE)
    records: list[Record] = [
        *(RecordNode(node.facts) for node in state.nodes.values()),
        *(RecordGroup(members.group) for members in state.groups.values()),
        *(RecordJob(one, new=True) for one in state.jobs.values()),
        *(RecordAllocation(one) for one in state.allocations.values()),
    ]
    store.commit(store.snapshot(records, state.now))
    store.close()


def damage(folder: Path, table: str, which: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / STORE)) as db:
        assert db.execute(f"UPDATE {table} SET sum = sum + 1 WHERE {which}").rowcount == 1  # noqa: S608
        db.commit()


def restarted(folder: Path) -> tuple[Ledger, tuple[str, ...]]:
    """The ledger of a coordinator that starts on the store, and what it says is lost."""
    store = Store(folder / STORE)
    living = store.load()
    ledger = Ledger(store.epoch)
    ledger.restore(living.jobs, living.allocations, living.nodes, store.clock, many=living.groups)
    ledger.check()
    assert store.loss is not None
    store.close()
    return ledger, store.loss.found


def test_a_gang_goes_with_any_of_its_members(tmp_path: Path) -> None:
    ledger = gangs.grid()
    step(ledger, JobsSubmitted(9, (job("j-1", CORE, at=0.6),)), 0.6)
    gangs.submitted(ledger)
    store_all(tmp_path, ledger)
    damage(tmp_path, "jobs", "id = 'g_1'")
    again, found = restarted(tmp_path)
    assert [*again.state.jobs] == ["j-1"] and not again.state.groups
    assert found == (
        "jobs: the row of g_1 is not what was written",
        "jobs: g_0 is removed, too: its gang is not complete",
        "groups: g is removed, too: none of its jobs is left",
    )
    accept(tmp_path, "ann", resume=True)
    assert check(tmp_path).findings == []


def test_an_earmark_on_a_node_that_is_not_known_any_more_is_given_up(tmp_path: Path) -> None:
    ledger = Ledger()
    join(ledger, facts("n1", cores=1))
    step(ledger, JobsSubmitted(1, (job("j-1", CORE, at=1.0), job("j-2", CORE, at=1.0))), 1.0)
    ledger.state.jobs["j-2"].phase = Earmarked(earmark=Earmark("n2", Grant((0,)), 60.0))
    store_all(tmp_path, ledger)
    with contextlib.closing(sqlite3.connect(tmp_path / STORE)) as db:
        db.execute("INSERT INTO nodes (name, seen, body, sum) VALUES ('n2', 1.0, x'93', 0)")
        db.commit()
    again, found = restarted(tmp_path)
    assert {name: one.state for name, one in again.state.jobs.items()} == {"j-1": State.STARTING, "j-2": State.WAITING}
    assert "j-2" in again.state.queue and "changes: j-2 waits in the queue again" in found[1]


def test_what_runs_in_a_hold_goes_with_it_and_what_waits_for_it_ends(tmp_path: Path) -> None:
    ledger = Ledger()
    join(ledger, facts("n1", cores=2))
    hold = job("j-1", CORE, 1.0)
    hold.spec = holds.spec(3600.0)
    step(ledger, JobsSubmitted(1, (hold,)), 1.0)
    inside = Request(Resources(cpu=1000), within="j-1")
    step(ledger, JobsSubmitted(2, (job("j-2", inside, 2.0), job("j-3", inside, 3.0), job("j-4", CORE, 3.0))), 3.0)
    assert [*ledger.state.nodes["n1"].inside] == ["j-2.1"]
    store_all(tmp_path, ledger)
    damage(tmp_path, "changes", "n = (SELECT n FROM jobs WHERE id = 'j-1')")
    again, found = restarted(tmp_path)
    assert [*again.state.jobs] == ["j-3", "j-4"]
    assert found[1:] == ("jobs: j-2 is removed, too: it is in a hold that is not known",)
    again.settle(9.0)
    assert [*again.state.jobs] == ["j-4"]
    again.check()


def test_what_follows_a_job_goes_with_it(tmp_path: Path) -> None:
    grid = Grid()
    grid.submit(20)
    grid.learn(0.021)
    grid.start("j4.1")
    assert grid.waiting() == {"j5.1": "j4.1", "j6.1": "j5.1"}
    store_all(tmp_path, grid.ledger)
    damage(tmp_path, "jobs", "id = 'j5'")
    again, found = restarted(tmp_path)
    assert [*again.state.allocations] == ["j4.1"] and "j6" not in again.state.jobs
    assert found[1:] == ("jobs: j6 is removed, too: it follows a job that is not known",)


UNREADABLE = {
    "UPDATE meta SET value = x'c1' WHERE name = 'balancing'": "meta: the row of balancing cannot be read",
    "UPDATE meta SET value = x'c1' WHERE name = 'paused-pools'": "meta: the row of paused-pools cannot be read",
    "UPDATE meta SET value = x'9203c1' WHERE name = 'returns/n1'": "meta: the row of returns/n1 cannot be read",
    "INSERT INTO meta VALUES ('machine/a-1', x'81ff')": "meta: the row of machine/a-1 cannot be read",
    "INSERT INTO meta VALUES (CAST(x'72657475726e732ffe' AS TEXT), x'920000')": "meta: the row of returns/\ufffd",
    "INSERT INTO receipts VALUES ('r-1', 2.0, 'n1', ' j-1 ', x'81ff')": "receipts: the row of r-1 cannot be read",
    "INSERT INTO shares VALUES (CAST(x'fe' AS TEXT), 1.0, 2.0)": "shares: the row of \ufffd cannot be read",
    "INSERT INTO loans VALUES (CAST(x'fe' AS TEXT), 'ann', 1.0, 2.0)": "loans: the row of",
}


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The state directory of a coordinator that has stopped, with a node, a job that waits and what operators set."""
    store = Store(tmp_path / STORE)
    set_by: list[Record] = [
        RecordReturns("n1", 3, 1),
        RecordBalancing(BalancingOrder(since=1.0, by="op")),
        RecordPauses({}),
    ]
    new: list[Record] = [RecordNode(facts("n1")), RecordJob(job("j-1", CORE, at=2.0), new=True)]
    store.commit(store.snapshot([*new, *set_by], 2.0))
    store.close()
    return tmp_path


@pytest.mark.parametrize("harm", UNREADABLE)
def test_a_row_that_cannot_be_read_is_found_and_the_rest_goes_on_without_it(stopped: Path, harm: str) -> None:
    with contextlib.closing(sqlite3.connect(stopped / STORE)) as db:
        assert db.execute(harm).rowcount == 1
        db.commit()
    (found,) = check(stopped).findings
    assert UNREADABLE[harm] in found.what and found.hint == CHOOSE
    assert known(stopped).waiting == 1
    accept(stopped, "ann", resume=True)
    assert check(stopped).findings == []
    store = Store(stopped / STORE)
    assert store.loss is None and [one.id for one in store.load().jobs] == ["j-1"]
    store.close()


def test_a_row_whose_name_is_no_text_any_more_is_removed(stopped: Path) -> None:
    with contextlib.closing(sqlite3.connect(stopped / STORE)) as db:
        db.execute("UPDATE nodes SET name = CAST(x'fe' AS TEXT)")
        db.commit()
    assert check(stopped).findings[0].what == "nodes: the row of \ufffd is not what was written"
    accept(stopped, "ann", resume=True)
    assert check(stopped).findings == []
    store = Store(stopped / STORE)
    living = store.load()
    assert store.loss is None and living.nodes == [] and [one.id for one in living.jobs] == ["j-1"]
    store.close()


def test_from_a_backup_with_a_row_that_cannot_be_read_nothing_is_restored(stopped: Path, tmp_path: Path) -> None:
    backup(stopped, tmp_path / "backup", force=False)
    with contextlib.closing(sqlite3.connect(tmp_path / "backup" / STORE)) as db:
        db.execute("UPDATE meta SET value = x'c1' WHERE name = 'balancing'")
        db.commit()
    with pytest.raises(GridError, match="cannot be used") as refused:
        restore(tmp_path / "backup", tmp_path / "new", force=False, resume=False)
    assert "the row of balancing cannot be read" in refused.value.why


def test_a_damaged_key_of_the_stamps_is_taken_from_the_mark(stopped: Path) -> None:
    store = Store(stopped / STORE)
    key = store.key
    store.close()
    with contextlib.closing(sqlite3.connect(stopped / STORE)) as db:
        db.execute("UPDATE meta SET value = CAST(? AS TEXT) WHERE name = 'key'", (b"\xb7" + b"2" * 63,))
        db.commit()
    store = Store(stopped / STORE)
    assert store.key == key and store.loss is None
    store.close()
