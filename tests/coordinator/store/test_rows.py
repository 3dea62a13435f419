"""Rows of jobs: what changes is kept apart from what was submitted. Receipts of preemptions: found by who had a part in
them, over restarts, and bounded."""

from pathlib import Path

import msgspec
import pytest

from distributed_grid.coordinator.core.commands import RecordReceipt
from distributed_grid.coordinator.core.model import Active, Attempt, Job
from distributed_grid.coordinator.store import rows as store_receipts
from distributed_grid.coordinator.store import rows as store_rows
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.jobs import Priority, Request, State, Step, Used
from distributed_grid.protocol.messages.operator import Place, Receipt, Victim
from distributed_grid.protocol.resources import Grant, Resources
from tests.coordinator.store.test_store import a_job


def receipt(number: int, at: float, node: str = "n1", result: str = "", lost: float = 1.0) -> Receipt:
    victim = Victim(f"j-v{number}.1", f"j-v{number}", "bob", Priority.LOW, Grant((0,)), 5.0, lost)
    return Receipt(
        id=f"j-u{number}.p1",
        job=f"j-u{number}",
        user="ann",
        priority=Priority.URGENT,
        wanted=Resources(1000),
        node=node,
        grant=Grant((0,)),
        at=at,
        victims=(victim,),
        lost=lost,
        result=result,
    )


def keep(store: Store, *receipts: Receipt) -> None:
    store.commit(store.snapshot([RecordReceipt(one) for one in receipts], max(one.at for one in receipts)))


def test_they_are_found_by_taker_victim_and_node_the_newest_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "grid.db")
    keep(store, receipt(1, 10.0), receipt(2, 20.0, "n2"), receipt(11, 30.0))
    assert [one.id for one in store.receipts(10)] == ["j-u11.p1", "j-u2.p1", "j-u1.p1"]
    assert [one.id for one in store.receipts(1)] == ["j-u11.p1"]
    assert [one.id for one in store.receipts(10, job="j-v1")] == ["j-u1.p1"]
    assert [one.id for one in store.receipts(10, job="j-u2")] == ["j-u2.p1"]
    assert [one.id for one in store.receipts(10, node="n1")] == ["j-u11.p1", "j-u1.p1"]
    store.close()


def test_one_for_a_gang_is_found_by_each_of_its_nodes(tmp_path: Path) -> None:
    store = Store(tmp_path / "grid.db")
    places = (Place("n20", Grant((0,))), Place("n3", Grant((1,))))
    keep(store, msgspec.structs.replace(receipt(1, 10.0), more=places), receipt(2, 20.0, "n2"))
    assert [[one.id for one in store.receipts(10, node=node)] for node in ("n1", "n2", "n3", "n20")] == [
        ["j-u1.p1"], ["j-u2.p1"], ["j-u1.p1"], ["j-u1.p1"]
    ]  # fmt: skip
    store.close()


def test_of_one_users_own_no_others_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, decoded = Store(tmp_path / "grid.db"), list[bytes]()
    for number in range(50):
        keep(store, receipt(number, float(number)))
    mine = msgspec.structs.replace(receipt(60, 5.5), user="eve")
    beside = msgspec.structs.replace(receipt(61, 6.5), user="eve-2")
    keep(store, mine, beside)

    def decode(body: bytes) -> Receipt:
        decoded.append(body)
        return msgspec.msgpack.decode(body, type=Receipt)

    monkeypatch.setattr(store_receipts, "_decode", decode)
    assert store.receipts(10, only="eve") == [mine] and len(decoded) == 2
    decoded.clear()
    assert [one.id for one in store.receipts(3, only="bob")] == ["j-u49.p1", "j-u48.p1", "j-u47.p1"]
    assert len(decoded) == 3, "no more than are asked for"
    store.close()


def test_what_came_of_one_takes_its_place_and_outlives_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "grid.db")
    keep(store, receipt(1, 10.0))
    keep(store, receipt(1, 10.0, result="started"))
    store.abandon()
    again = Store(tmp_path / "grid.db")
    assert again.receipts(10) == [receipt(1, 10.0, result="started")]
    again.close()


def test_a_restart_knows_what_was_lost_within_the_hour(tmp_path: Path) -> None:
    store = Store(tmp_path / "grid.db")
    keep(store, receipt(1, 100.0, lost=7.0), receipt(2, 5000.0, lost=9.0))
    store.close()
    again = Store(tmp_path / "grid.db")
    assert [(one.at, one.lost) for one in again.load().receipts] == [(5000.0, 9.0)]
    again.close()


def test_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_receipts, "RECEIPTS_KEPT", 20)
    store = Store(tmp_path / "grid.db")
    for number in range(50):
        keep(store, receipt(number, float(number)))
    left = store.receipts(100)
    assert 20 <= len(left) <= 22 and left[0].at == 49.0
    store.close()


PREDICTED_ANEW = {"planned"}
"""What the predictor says again after a restart."""
AS_SUBMITTED = {"id", "key", "user", "submitted", "begin", "group", "index", "by_operator"}


def test_each_field_of_a_job_either_never_changes_or_is_among_its_changes() -> None:
    changing = {*store_rows.Change.__struct_fields__}
    elsewhere = AS_SUBMITTED | PREDICTED_ANEW
    assert {*Job.__struct_fields__} == elsewhere | changing | {"amended"} and not elsewhere & changing


def test_a_job_is_read_from_its_two_rows_as_it_was_recorded() -> None:
    job = a_job(1, name="train")
    body = msgspec.msgpack.encode(job)
    assert store_rows.decode_job(body, None) == job
    job.phase = Active(state=State.RUNNING, attempt=Attempt("n1", Grant((1,)), 5.0))
    job.story, job.tries, job.allocation, job.begun = [Step(5.0, State.RUNNING, "runs")], 2, f"{job.id}.2", True
    job.retried, job.evicted, job.plans, job.preempted_by = 1, 2, 3, "j-other"
    job.used, job.unused, job.walls = Used(allocation=job.allocation), "holds a GPU", "user"
    assert store_rows.decode_job(body, store_rows.encode_change(job)) == job
    job.request, job.amended = Request(Resources(cpu=2000)), True
    assert store_rows.decode_job(body, store_rows.encode_change(job)) == job


def test_what_a_job_was_submitted_with_is_not_written_again() -> None:
    job = a_job(1, name="a-name-in-its-command")
    assert b"a-name-in-its-command" not in store_rows.encode_change(job)
