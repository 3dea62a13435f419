"""Output to ours: every byte once, in order, and a reader that left is noticed."""

import os
from pathlib import Path

from distributed_grid.cli.attach.terminal import PIECE, Sink


def test_a_full_pipe_does_not_block_and_nothing_is_lost() -> None:
    out, into = os.pipe()
    sink = Sink(into)
    whole = os.urandom(3 * PIECE + 17)
    sink.put(whole[:5])
    sink.put(whole[5:])
    seen = b""
    while sink.size:
        sink.write()
        seen += os.read(out, 1 << 16)
    assert seen == whole
    os.close(out)
    sink.put(b"more")
    sink.write()
    assert sink.closed and sink.size == 0
    assert sink.closed and not sink.failure
    os.close(into)


def test_a_full_disk_closes_the_stream_and_is_told() -> None:
    into = os.open("/dev/full", os.O_WRONLY)
    sink = Sink(into)
    sink.put(b"more")
    sink.write()
    assert (sink.closed, sink.size, sink.failure) == (True, 0, "No space left on device")
    os.close(into)


def test_a_file_takes_all_at_once(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        sink = Sink(file.fileno())
        sink.put(b"x" * 3 * PIECE)
        sink.write()
        assert sink.size == 0
    assert (tmp_path / "out").stat().st_size == 3 * PIECE
