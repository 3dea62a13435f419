"""A bundle: the files that a client ships with a job, as a manifest of paths and content hashes.

Contents are sent as blobs named by their hash, so an unchanged file is sent once; the manifest is such a blob itself,
and its hash is `JobSpec.bundle`. A manifest is not trusted: `decode_manifest` refuses every manifest that could write
outside the directory it is unpacked into, in whatever order its entries are made.
"""

import hashlib
import re
from enum import StrEnum
from typing import Annotated, TypeVar

import msgspec

from distributed_grid.protocol.errors import BadValue

MOST_ENTRIES = 100_000
"""The largest number of entries of one manifest."""
MANIFEST_BYTES = 32 << 20
"""The largest manifest."""
BUNDLE_BYTES = 256 << 20
"""The largest sum of file sizes that a caller's directory is shipped with, unless the caller says otherwise."""
BLOB_BYTES = 1 << 30
"""The largest content of one file."""
MODE_BITS = 0o777
VERSION = 1
_HASH_BYTES = 32
_PATH_BYTES = 4095
_NAME_BYTES = 255


T = TypeVar("T")
_FEW = msgspec.Meta(max_length=MOST_ENTRIES)
"""Read off the head of the list: millions of empty entries fit the bytes, and would take half a GiB once decoded."""


class Kind(StrEnum):
    """The kind of an entry: a file with a blob, a symbolic link with a target, an empty directory."""

    FILE = "file"
    LINK = "link"
    DIRECTORY = "dir"


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing to make, by its path below the working directory. `mode` is its permission bits; `size` is bytes and
    `blob` the hash of a file's content; `target` is where a link points, relative to the link's own directory;
    `outside`: it points out of the tree, which its owner allowed."""

    path: str
    kind: Kind = Kind.FILE
    mode: int = 0o644
    size: int = 0
    blob: str = ""
    target: str = ""
    outside: bool = False


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything to make, ordered by path. Directories above an entry are made as needed and not listed."""

    entries: Annotated[tuple[Entry, ...], _FEW]
    version: int = VERSION

    @property
    def blobs(self) -> frozenset[str]:
        """The hashes of all contents that are needed to unpack it."""
        return frozenset(entry.blob for entry in self.entries if entry.kind is Kind.FILE)


def hasher() -> "hashlib.blake2b":
    """A fresh hash object to feed a blob's content into; its `hexdigest()` is the blob's name."""
    return hashlib.blake2b(digest_size=_HASH_BYTES)


def blob_hash(content: bytes) -> str:
    """The name of a blob: blake2b-256 of its content, in hex."""
    return hashlib.blake2b(content, digest_size=_HASH_BYTES).hexdigest()


def is_blob_hash(text: str) -> bool:
    """Whether the text has the form of a blob's name, and so is safe as a file name."""
    return len(text) == 2 * _HASH_BYTES and all(c in "0123456789abcdef" for c in text)


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as bytes, the same for the same files. Raises BadValue if `decode_manifest` would refuse them."""
    ordered = Manifest(tuple(sorted(manifest.entries, key=lambda entry: entry.path)), manifest.version)
    _check(ordered)
    return msgspec.msgpack.encode(ordered)


_decoder = msgspec.msgpack.Decoder(Manifest)


def decode_manifest(frame: bytes) -> Manifest:
    """The manifest of these bytes, all of its paths checked. Raises BadValue."""
    manifest = _decode(_decoder, frame)
    _check(manifest)
    return manifest


class _Named(msgspec.Struct, frozen=True, gc=False):
    kind: Kind = Kind.FILE
    blob: str = ""


class _Names(msgspec.Struct, frozen=True):
    entries: Annotated[tuple[_Named, ...], _FEW]
    version: int = VERSION


_names_decoder = msgspec.msgpack.Decoder(_Names)
_HEX = re.compile("[0-9a-f]*")


def names_in(frame: bytes) -> frozenset[str]:
    """The hashes of the contents that the manifest of these bytes names, in a tenth of the time that it takes to check
    its paths, which whoever unpacks it does. Raises BadValue."""
    read = _decode(_names_decoder, frame)
    names = frozenset([entry.blob for entry in read.entries if entry.kind is Kind.FILE])
    if read.version != VERSION or {*map(len, names)} - {2 * _HASH_BYTES} or not _HEX.fullmatch("".join(names)):
        raise _bad("what it names are no hashes of contents")
    return names


def _decode(decoder: msgspec.msgpack.Decoder[T], frame: bytes) -> T:
    if len(frame) > MANIFEST_BYTES:
        raise _bad(f"it has {len(frame)} bytes, and {MANIFEST_BYTES} are the most")
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError) as error:
        raise _bad(str(error)) from None


def _bad(why: str) -> BadValue:
    return BadValue("the manifest of the shipped files cannot be used", why=why)


def _check(manifest: Manifest) -> None:
    if manifest.version != VERSION:
        raise _bad(f"its version is {manifest.version}, and only {VERSION} is known")
    if len(manifest.entries) > MOST_ENTRIES:
        raise _bad(f"it has {len(manifest.entries)} entries, and {MOST_ENTRIES} are the most")
    seen: set[str] = set()
    parents: set[str] = set()
    for entry in manifest.entries:
        check_path(entry.path)
        if entry.path in seen:
            raise _bad(f"{entry.path!r} is in it twice")
        seen.add(entry.path)
        parent = entry.path.rpartition("/")[0]
        while parent and parent not in parents:
            parents.add(parent)
            parent = parent.rpartition("/")[0]
        _check_kind(entry)
    # What is listed has nothing below it. So every parent is a real directory, and nothing is written through a link.
    if both := seen & parents:
        raise _bad(f"{min(both)!r} is an entry and also the directory of another")


def check_link(entry: Entry) -> None:
    """Hold that a link points inside the tree, or may point outside. Nothing is ever written through a link, and a job
    can make such ones itself. Raises BadValue."""
    if not entry.outside:
        check_target(entry.path, entry.target)
        return
    if not entry.target or len(entry.target.encode(errors="surrogatepass")) > _PATH_BYTES:
        raise _bad(f"the link {entry.path!r} has no target, or one that is too long")
    _check_text(entry.target)


def check_path(path: str) -> None:
    """Hold that a path is relative, plain (no `.`, `..`, empty or overlong parts) and made of writable characters.
    Raises BadValue."""
    if not path or path.startswith("/"):
        raise _bad(f"the path {path!r} is not relative")
    _check_text(path)
    for part in path.split("/"):
        if part in ("", ".", ".."):
            raise _bad(f"the path {path!r} has a part {part!r}")
        _check_name(part, path)


def check_target(path: str, target: str) -> None:
    """Hold that a link at `path` points inside the tree: a relative target whose `..` all lead. (A `..` further on
    could step out of what another link leads to.) Raises BadValue."""
    if not target or target.startswith("/"):
        raise _bad(f"the link {path!r} points to {target!r}, which is not relative")
    _check_text(target)
    above = path.count("/")
    leading = True
    for part in target.split("/"):
        if part == "..":
            above -= 1
            if not leading or above < 0:
                raise _bad(f"the link {path!r} points to {target!r}, which is not plainly inside")
        elif part in ("", "."):
            if target != ".":
                raise _bad(f"the link {path!r} points to {target!r}, which has a part {part!r}")
        else:
            leading = False
            _check_name(part, target)


def _check_text(path: str) -> None:
    if "\0" in path:
        raise _bad(f"the path {path!r} has a zero byte")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise _bad(f"the path {path!r} is not UTF-8") from None
    if size > _PATH_BYTES:
        raise _bad(f"a path has {size} bytes, and {_PATH_BYTES} are the most")


def _check_name(part: str, path: str) -> None:
    if len(part.encode()) > _NAME_BYTES:
        raise _bad(f"a name in {path[:80]!r}… has more than {_NAME_BYTES} bytes")


def _check_kind(entry: Entry) -> None:
    if entry.mode & ~MODE_BITS:
        raise _bad(f"the mode {entry.mode:o} of {entry.path!r} has more than permission bits")
    if entry.size < 0:
        raise _bad(f"the size of {entry.path!r} is negative")
    if entry.kind is Kind.FILE:
        if not is_blob_hash(entry.blob):
            raise _bad(f"{entry.path!r} has no content hash")
    elif entry.blob or entry.size:
        raise _bad(f"{entry.path!r} is a {entry.kind} with content")
    if entry.kind is Kind.LINK:
        check_link(entry)
    elif entry.target or entry.outside:
        raise _bad(f"{entry.path!r} is a {entry.kind} with a link's target")
