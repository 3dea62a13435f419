"""Paths of files on the wire. A file name is bytes, and text on the wire is UTF-8: a path that is not UTF-8 travels as
bytes (`raw`), beside a text that shows it. In the program such a path is text with surrogate escapes, as the operating
system's interface has it.
"""

from distributed_grid.protocol.errors import BadValue

PATH_BYTES = 4095
NAME_BYTES = 255


def to_wire(path: str) -> tuple[str, bytes]:
    """The text for messages, and the bytes where the path is not UTF-8 (else none)."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raw = path.encode(errors="surrogateescape")
        return raw.decode(errors="backslashreplace"), raw
    return path, b""


def from_wire(path: str, raw: bytes) -> str:
    """The path that a message names."""
    return raw.decode(errors="surrogateescape") if raw else path


def shown(path: str) -> str:
    """The path for people: bytes that are not UTF-8 are escaped."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def check_relative(path: str) -> None:
    """Hold that a path is relative and plain: no `.`, `..`, empty or overlong parts, no zero byte. Raises BadValue."""
    try:
        size = len(path.encode(errors="surrogateescape"))
    except UnicodeEncodeError:
        raise _bad(path, "it is not text") from None
    if not path or path.startswith("/"):
        raise _bad(path, "it is not relative")
    if "\0" in path:
        raise _bad(path, "it has a zero byte")
    if size > PATH_BYTES:
        raise _bad(path, f"it has {size} bytes, and {PATH_BYTES} are the most")
    for part in path.split("/"):
        if part in ("", ".", ".."):
            raise _bad(path, f"it has a part {part!r}")
        if len(part.encode(errors="surrogateescape")) > NAME_BYTES:
            raise _bad(path, f"a name in it has more than {NAME_BYTES} bytes")


def _bad(path: str, why: str) -> BadValue:
    return BadValue(f"the path {path[:80]!r} cannot be used", why=why)
