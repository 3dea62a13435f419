"""File names are bytes: whatever a job calls its files, `--get` brings them, and nobody else's output suffers."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grid_fixture import Grid, running_grid, until

NAMES = [
    b"\xff\xfe",
    b"a\nb",
    b"caf\xe9/\xff",
    b"x" * 255,
    b"\xf0\x9f\x98\x80" * 60,
    b" ",
    b"-rf",
    b"\x1b[2J",
    b"\\xff",
]
MAKE = """
import os, sys
for name in bytes.fromhex(sys.argv[1]).split(b"\\0"):
    os.makedirs(os.path.dirname(name) or b".", exist_ok=True)
    open(name, "wb").write(name)
"""


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with running_grid(tmp_path_factory.mktemp("grid")) as made:
        yield made


def test_files_of_any_name_come_back_and_the_output_of_others_goes_on(grid: Grid, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    other = grid.begin(
        "run-shared", "-t", "cpu", "-a", "0.5", "--no-ship", "sh", "-c",
        f"echo first; while [ ! -e {gate} ]; do sleep 0.02; done; echo second",
    )  # fmt: skip
    assert other.stdout is not None and other.stdout.readline() == b"first\n"
    here = tmp_path / "here"
    here.mkdir()
    words = ("run-shared", "-t", "cpu", "-a", "0.5", "--no-ship", "--get", "**", "python3", "-c", MAKE)
    done = grid.run(*words, b"\0".join(NAMES).hex(), cwd=here)
    gate.touch()
    assert (done.returncode, done.stderr) == (0, "")
    brought = {
        os.path.relpath(os.path.join(at, name), os.fsencode(here))
        for at, _, found in os.walk(os.fsencode(here))
        for name in found
    }
    assert brought == set(NAMES)
    assert all((Path(os.fsdecode(os.fsencode(here) + b"/" + name))).read_bytes() == name for name in NAMES)
    assert other.communicate(timeout=60)[0] == b"second\n" and other.returncode == 0
    for log in ("n1", "coordinator"):
        assert "Traceback" not in grid.log(log) and "came after frame" not in grid.log(log)


def test_ten_thousand_files_come_back(grid: Grid, tmp_path: Path) -> None:
    script = "mkdir out; seq -f out/%06g 1 10000 | xargs touch"
    words = ("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "--get", "out", "sh", "-c", script)
    done = grid.run(*words, cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(os.listdir(tmp_path / "out")) == 10_000


def test_an_error_about_such_a_file_is_an_answer_and_no_hang(grid: Grid, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    words = ("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "--get", "**", "python3", "-c", MAKE)
    done = grid.run(*words, b"\xff".hex(), cwd=tmp_path)
    assert done.returncode == 125
    assert "1 file is not written: \\xff (it is a directory here)" in done.stderr
    until(lambda: grid.shared("echo", "still").stdout == "still\n", "others are served")
