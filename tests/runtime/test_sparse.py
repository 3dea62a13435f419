"""Zeros take no room on a disk, and what is read back is what was written."""

import os
from pathlib import Path

import pytest

from distributed_grid.runtime.sparse import BLOCK, write_sparse


@pytest.mark.parametrize("part", [BLOCK, 1000, 10 * BLOCK + 7, 1 << 20])
def test_what_is_written_in_parts_is_read_back_whole(tmp_path: Path, part: int) -> None:
    zeros = bytes(3 * BLOCK)
    content = b"a" + zeros + b"b" * 5000 + zeros + zeros[:17] + b"c" + bytes(BLOCK // 2) + b"d" + zeros
    with open(tmp_path / "file", "wb", buffering=0) as file:
        for at in range(0, len(content), part):
            write_sparse(file.fileno(), content[at : at + part], at)
    assert (tmp_path / "file").read_bytes() == content


@pytest.mark.parametrize("content", [b"", bytes(1), bytes(BLOCK), bytes(BLOCK + 1), b"x"])
def test_short_contents_have_their_size(tmp_path: Path, content: bytes) -> None:
    with open(tmp_path / "file", "wb", buffering=0) as file:
        write_sparse(file.fileno(), content, 0)
    assert (tmp_path / "file").read_bytes() == content


def test_zeros_take_no_room(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb", buffering=0) as file:
        write_sparse(file.fileno(), bytes(8 << 20) + b"x" * BLOCK, 0)
    seen = os.stat(tmp_path / "file")
    assert seen.st_size == (8 << 20) + BLOCK and seen.st_blocks * 512 < 1 << 20
