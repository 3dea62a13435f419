"""A coordinator's diagnostics name what is wrong, and tell of events by kind and id alone. On a grid of processes:
tests/e2e/service/test_doctor.py."""

import socket
from pathlib import Path

from distributed_grid.coordinator import diagnostics
from distributed_grid.coordinator.backup.state import STORE
from distributed_grid.coordinator.store.store import Store
from distributed_grid.runtime.health import Level


def test_where_no_coordinator_was_ever_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert not diagnostics.is_master(tmp_path)
    assert list(diagnostics.run_checks(tmp_path, "127.0.0.1", 0)) == []


def test_a_coordinator_that_does_not_run_is_an_error_and_so_is_a_port_that_is_taken(tmp_path: Path) -> None:
    Store(tmp_path / STORE).close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = {one.check: one for one in diagnostics.run_checks(tmp_path, "127.0.0.1", taken.getsockname()[1])}
    assert found["coordinator"].level is found["port"].level is Level.ERROR
    assert "store" not in found, "of a store that is whole nothing is said"


def test_a_dump_counts_the_rows_of_each_table_and_says_what_it_cannot_read(tmp_path: Path) -> None:
    Store(tmp_path / STORE).close()
    said = diagnostics.store(tmp_path)
    assert said["findings"] == [] and said["rows"]["jobs"] == 0
    (unread,) = diagnostics.last_events(tmp_path)
    assert "No such file" in unread["error"]
    assert "error" in diagnostics.store(tmp_path / "nowhere")
