"""The event log's files: read as they were written, up to where they are cut off; a foreign file is refused."""

from pathlib import Path

import msgpack
import pytest

from distributed_grid.coordinator.core.checkpoint import Checkpoint
from distributed_grid.coordinator.eventlog.format import FORMAT, BadLog, Cut, Header, Turn, files, read
from tests.coordinator.eventlog.stories import SILENT, places, written


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    turns = [record for record in read(written(tmp_path, SILENT)) if isinstance(record, Turn)]
    assert [(turn.now, event) for turn in turns for event in turn.events][3:] == list(SILENT)[3:]


def test_a_file_is_a_header_the_ledger_and_turns(tmp_path: Path) -> None:
    header, ledger, *turns = read(written(tmp_path, SILENT))
    assert isinstance(header, Header) and (header.format, header.grid, header.epoch) == (FORMAT, "grid", 7)
    assert isinstance(ledger, Checkpoint) and not ledger.jobs
    assert len(turns) == len(SILENT) and all(isinstance(one, Turn) and not one.broken for one in turns)


def test_a_record_that_was_torn_off_is_a_cut_of_as_many_bytes_after_all_whole_ones(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    data, whole, ends = path.read_bytes(), list(read(path)), places(path)
    path.write_bytes(data[: ends[-2] + 5])
    *kept, cut = read(path)
    lost = len(msgpack.unpackb(data[ends[-2] :], strict_map_key=False))
    assert lost > 0 and kept == whole[:-lost]
    assert cut == Cut(5)


def test_in_a_foreign_file_nothing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "000001.log"
    for content in (b"", b"\x7fELF", b"2026-11-22 started\n", msgpack.packb(["another", FORMAT])):
        path.write_bytes(content)
        with pytest.raises(BadLog, match="is no event log"):
            list(read(path))


def test_a_file_of_another_format_says_who_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "000001.log"
    path.write_bytes(msgpack.packb(["grid-events", FORMAT + 1, "9.9", "grid", 7]))
    with pytest.raises(BadLog, match=f"has format {FORMAT + 1}, this grid reads format {FORMAT}") as refused:
        list(read(path))
    assert refused.value.why == "it was written by version 9.9"


def test_files_come_by_their_number_and_others_are_left_out(tmp_path: Path) -> None:
    for name in ("1000000.log", "000002.log", "000010.log", "12.log", "000003.log.new", "notes"):
        (tmp_path / name).touch()
    assert [path.name for path in files(tmp_path)] == ["000002.log", "000010.log", "1000000.log"]
