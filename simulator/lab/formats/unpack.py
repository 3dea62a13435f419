"""Unpacks gzip, xz, bzip2, zip and tar, detected by the content: bytes in, text out."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from typing import IO

from distributed_grid.protocol.errors import BadValue

PACKED_MOST = 4
"""Maximum number of nested compressions."""
MOST_BYTES = 4 << 30
"""Size of the unpacked text above which a trace is refused."""


def unpack(data: bytes, name: str) -> str:
    """The text of a file, unpacked as often as it is packed. Raises BadValue."""
    data = _plain(data, name)
    if b"\0" in data[:4096]:
        raise BadValue(
            f"{name} is no trace that is known", why="it is binary, and not gzip, xz, bzip2, zip or an event log"
        )
    return data.decode("utf-8-sig", "replace")


def members_of(data: bytes, name: str) -> list[tuple[str, bytes]]:
    """The files in a tar file, packed or not, by name; of any other file that alone. Raises BadValue."""
    plain = _plain(data, name)
    if plain[257:262] != b"ustar":
        return [(name, plain)]
    try:
        with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
            files = sorted((one for one in archive.getmembers() if one.isfile()), key=lambda one: one.name)
            if sum(one.size for one in files) > MOST_BYTES:  # a sparse member has more than the archive
                raise _too_large(name)
            return [(one.name, file.read()) for one in files if (file := archive.extractfile(one)) is not None]
    except BadValue:
        raise
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BadValue(f"{name} cannot be unpacked", why=str(error)) from None


def _plain(data: bytes, name: str) -> bytes:
    for _ in range(PACKED_MOST):
        plain = _once(data, name)
        if plain is None:
            break
        data = plain
    return data


def _once(data: bytes, name: str) -> bytes | None:
    """None: it is not packed."""
    try:
        if data[:2] == b"\x1f\x8b":
            return _bounded(gzip.GzipFile(fileobj=io.BytesIO(data)), name)
        if data[:6] == b"\xfd7zXZ\0":
            return _bounded(lzma.LZMAFile(io.BytesIO(data)), name)
        if data[:3] == b"BZh":
            return _bounded(bz2.BZ2File(io.BytesIO(data)), name)
        if data[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                inside = [one for one in archive.infolist() if not one.is_dir()]
                if len(inside) != 1:
                    raise BadValue(f"{name} holds {len(inside)} files", hint="a trace is a zip of one file")
                with archive.open(inside[0]) as file:
                    return _bounded(file, name)
    except BadValue:
        raise
    except (OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, RuntimeError, ValueError) as error:
        raise BadValue(f"{name} cannot be unpacked", why=str(error) or type(error).__name__) from None
    return None


def _bounded(file: IO[bytes] | gzip.GzipFile | lzma.LZMAFile | bz2.BZ2File, name: str) -> bytes:
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise _too_large(name)
    return data


def _too_large(name: str) -> BadValue:
    return BadValue(f"{name} unpacks to more than {MOST_BYTES >> 30} GiB", hint="give a part of it")
