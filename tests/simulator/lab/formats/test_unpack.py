"""Packed traces are unpacked, whatever they are called."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.simulator.lab.formats.unpack import members_of, unpack

TEXT = "1 2 3\n"


def zipped(names: list[str], text: str = TEXT) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, text)
    return out.getvalue()


def tarred(texts: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, text in texts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, lzma.compress, bz2.compress, lambda data: gzip.compress(lzma.compress(data))],
    ids=["plain", "gzip", "xz", "bzip2", "twice"],
)
def test_a_packed_file_is_unpacked_by_its_first_bytes(pack: Callable[[bytes], bytes]) -> None:
    assert unpack(pack(TEXT.encode()), "x") == TEXT


def test_a_zip_of_one_file_is_unpacked_and_one_of_two_is_refused() -> None:
    assert unpack(zipped(["a"]), "x") == TEXT
    with pytest.raises(BadValue, match="holds 2 files"):
        unpack(zipped(["a", "b"]), "x")


def test_the_members_of_a_tar_come_by_name() -> None:
    assert [name for name, _ in members_of(lzma.compress(tarred({"b": TEXT, "a": TEXT})), "x")] == ["a", "b"]
    assert members_of(b"5\n", "x") == [("x", b"5\n")]


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(b"1" * 999)[:-20],
        lzma.compress(b"1" * 999)[:-20],
        b"PK\x03\x04nonsense",
        zipped(["a"])[:10] + zipped(["a"])[16:],  # it begins before its file does
    ],
    ids=["gzip", "xz", "zip", "cut zip"],
)
def test_a_damaged_file_is_an_error_that_names_it(data: bytes) -> None:
    with pytest.raises(BadValue, match="x cannot be unpacked"):
        unpack(data, "x")


def test_binary_content_is_refused() -> None:
    with pytest.raises(BadValue, match="no trace that is known"):
        unpack(b"\x7fELF\0\0", "x")
