"""Output to ours: every byte once, in order, whatever overlaps, and a reader that left is noticed."""

import os
from pathlib import Path

from distributed_grid.cli.attach.terminal import PIECE, Sink, Stream


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
    os.close(into)


def test_a_file_takes_all_at_once(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        sink = Sink(file.fileno())
        sink.put(b"x" * 3 * PIECE)
        sink.write()
        assert sink.size == 0
    assert (tmp_path / "out").stat().st_size == 3 * PIECE


def test_overlapping_pieces_are_taken_once_and_gaps_are_counted(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        stream = Stream("stdout", Sink(file.fileno()))
        assert stream.take(0, b"abcd") == 0
        assert stream.take(2, b"cdef") == 0
        assert stream.take(0, b"ab") == 0
        assert stream.take(10, b"klm") == 4
        assert not stream.finish_from_tail(20, b"tail")
        assert stream.finish_from_tail(15, b"lmno")
        stream.sink.write()
        for _ in range(9):
            stream.sink.write()
    assert (tmp_path / "out").read_bytes() == b"abcdefklmno"
    assert stream.done and stream.offset == 15


def test_the_output_of_an_ended_job_ends_at_the_size_on_record_though_its_node_sends_on(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        stream = Stream("stdout", Sink(file.fileno()))
        stream.take(0, b"abc")
        assert not stream.finish_from_tail(6, b"f") and not stream.done
        stream.take(3, b"defghi" * 1000)
        assert stream.done and stream.offset == 6
        stream.sink.write()
    assert (tmp_path / "out").read_bytes() == b"abcdef"


def test_a_node_that_has_nothing_is_asked_again_after_a_pause(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        stream = Stream("stdout", Sink(file.fileno()))
        stream.take(0, b"abc")
        assert stream.retry_at == 0.0
        stream.take(3, b"")
        assert stream.retry_at > 0.0
