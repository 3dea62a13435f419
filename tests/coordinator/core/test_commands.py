"""Which of the ledger's commands are records."""

from distributed_grid.coordinator.core.commands import MAY_WAIT, RECORDS


def test_only_records_may_wait_for_others() -> None:
    assert set(MAY_WAIT) <= set(RECORDS)
