"""File names are bytes: each travels, and comes back as it was."""

import os

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.text import check_relative, from_wire, shown, to_wire


@pytest.mark.parametrize("name", [b"plain", "größe".encode(), b"\xff\xfe", b"a\nb", b"caf\xe9/\xff", b"\\xff"])
def test_every_name_comes_back_as_it_was_and_its_text_is_utf_8(name: bytes) -> None:
    text, raw = to_wire(os.fsdecode(name))
    text.encode()
    assert os.fsencode(from_wire(text, raw)) == name
    assert bool(raw) == (name in (b"\xff\xfe", b"caf\xe9/\xff"))


def test_people_see_bytes_that_are_no_text_escaped() -> None:
    assert shown(os.fsdecode(b"caf\xe9")) == "caf\\xe9"


@pytest.mark.parametrize("path", ["", "/etc", "../a", "a/../b", "a//b", "./a", "a/", "a\0b", "x" * 256, "a/" * 2048])
def test_a_path_that_is_not_plain_and_relative_is_refused(path: str) -> None:
    with pytest.raises(BadValue):
        check_relative(path)


@pytest.mark.parametrize("path", ["a", "a/b", "\udcff", "..a", "x" * 255, "ö" * 127])
def test_plain_relative_paths_are_taken(path: str) -> None:
    check_relative(path)
