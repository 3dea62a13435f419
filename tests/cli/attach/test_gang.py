"""The output of a gang: whole lines of each member behind its rank."""

from pathlib import Path

from distributed_grid.cli.attach.gang import LONGEST_LINE, Prefixed
from distributed_grid.cli.attach.terminal import Sink


def written(tmp_path: Path, *pieces: bytes, finish: bool = True) -> bytes:
    with (tmp_path / "out").open("wb") as file:
        to = Sink(file.fileno())
        sink = Prefixed(to, b"[1] ")
        for piece in pieces:
            sink.put(piece)
        if finish:
            sink.finish()
        to.write()
    return (tmp_path / "out").read_bytes()


def test_each_line_has_the_rank_however_it_comes(tmp_path: Path) -> None:
    assert written(tmp_path, b"on", b"e\ntw", b"o\n") == b"[1] one\n[1] two\n"


def test_what_is_no_line_yet_waits_for_the_rest_of_it(tmp_path: Path) -> None:
    assert written(tmp_path, b"one\ntwo", finish=False) == b"[1] one\n"
    assert written(tmp_path, b"one\ntwo") == b"[1] one\n[1] two\n"


def test_a_line_without_an_end_is_broken(tmp_path: Path) -> None:
    out = written(tmp_path, b"x" * (LONGEST_LINE + 1), b"rest\n")
    assert out == b"[1] " + b"x" * (LONGEST_LINE + 1) + b"\n[1] rest\n"
