"""Client and server of the operations in files.py, over a Unix socket.

The server has the job's rights, so it is trusted as little as the job: its user may stop it, kill it or forge its
answers. The client limits the time and size of an answer, validates it, and accepts no descriptors: to read one may
block for ever if it is of a filesystem that the job made (FUSE).

A message is a header of two sizes, a JSON object of the first size, and as many bytes of the second. Names in a request
are text with surrogate escapes for bytes that are not UTF-8; those in an answer are hexadecimal, so that its values can
be counted before parsing. Descriptors are sent to the server only, with the header.
"""

import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from distributed_grid.agent.walls import files
from distributed_grid.agent.walls.files import (
    DIRECTORY,
    FILE,
    LINK,
    MODE_BITS,
    NAMES,
    PATH_BYTES,
    Entry,
    Found,
    Limits,
)
from distributed_grid.runtime import beneath

_HEADER = struct.Struct(">II")
QUESTION_BYTES = 2 << 20
ANSWER_BYTES = 8 << 20
READ_BYTES = 4 << 20
"""Maximum part of a file read at once."""
BLOBS_AT_ONCE = 64
"""Maximum number of descriptors per message; the kernel's is 253."""
_ENTRIES_AT_ONCE = 4096
_ENTRIES_BYTES = 512 << 10
_GRACE = 5.0  # time that an answer may take beyond the time limit of its request (s)
_PAUSE = 0.02  # between attempts to send descriptors (s)
_LARGEST = (1 << 63) - 1
_ITEMS = 4096  # maximum number of values in an answer that is no list
_PR_SET_DUMPABLE = 4


class NoAnswer(OSError):
    """No answer in time (ETIMEDOUT), an invalid one (EPROTO), or none since the process has ended (any other errno)."""


class Root:
    """The directory of an operation: opened by the server from its path, with its own rights (`follow`: also through a
    link); or given as a descriptor. A descriptor also reaches the directory's parents, past the walls of a mount
    namespace, so only for what the job may see as a whole."""

    def __init__(self, fd: int = -1, path: bytes = b"", follow: bool = False) -> None:
        self.fds = [fd] if fd >= 0 else []
        self.words: dict[str, Any] = {} if fd >= 0 else {"root": _text(path), "follow": follow}


class Files:
    """The client. Each call blocks; after a NoAnswer the socket is unusable. Raises OSError."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def close(self) -> None:
        self._sock.close()

    def unpack(
        self, root: Root, entries: Sequence[Entry], open_blob: Callable[[int], int], seconds: float = 300.0
    ) -> None:
        """Create the entries in the directory. `open_blob` returns a descriptor of a blob by number, closed here."""
        end = time.monotonic() + seconds
        for part, numbers in batches(entries):
            with contextlib.ExitStack() as opened:
                blobs = []
                for number in numbers:
                    blobs.append(open_blob(number))
                    opened.callback(os.close, blobs[-1])
                said = [[one[0], _text(one[1]), one[2], _text(one[3]), one[4], one[5]] for one in part]
                self._ask({"op": "unpack", "entries": said}, root, _left(end), blobs)

    def find(self, root: Root, patterns: Sequence[str], limits: Limits = Limits()) -> list[Found]:  # noqa: B008
        """The files that match any pattern, ordered by path."""
        bounds = [limits.files, limits.names, limits.depth, limits.seconds]
        asked = {"op": "find", "patterns": list(patterns), "limits": bounds}
        answer, _ = self._ask(asked, root, limits.seconds, items=4 * limits.files + _ITEMS)
        found = answer.get("found")
        if type(found) is not list or len(found) > limits.files:
            raise _unusable("its list of files is none, or too long")
        return sorted(_found(one) for one in found)

    def read(
        self, root: Root, path: bytes, offset: int, size: int, holes: bool = False, seconds: float = 60.0
    ) -> tuple[bytes, bool, int]:
        """As files.read. A process of an older release does not report holes."""
        size = min(size, READ_BYTES)
        asked = {"op": "read", "path": _text(path), "offset": offset, "size": size, "holes": holes}
        answer, data = self._ask(asked, root, seconds, most=size)
        if type(answer.get("end")) is not bool:
            raise _unusable("it does not say whether the file ends")
        hole = answer.get("hole", 0)
        if type(hole) is not int or not 0 <= hole <= _LARGEST or (hole and (data or not holes)):
            raise _unusable("a hole in it cannot be")
        return data, answer["end"], hole

    def remove(self, root: Root, name: bytes, seconds: float = 60.0) -> None:
        """Remove this name in the directory."""
        self._ask({"op": "remove", "name": _text(name), "seconds": seconds}, root, seconds)

    def measure(self, root: Root, seconds: float = 60.0, each: int = 0) -> int:
        """Bytes on disk below the directory, as far as measured in this time. `each`: as of files.measure."""
        answer, _ = self._ask({"op": "measure", "seconds": seconds, "each": each}, root, seconds)
        size = answer.get("size")
        if type(size) is not int or not 0 <= size <= _LARGEST:
            raise _unusable("its size is none")
        return size

    def names(self, root: Root, seconds: float = 60.0) -> list[bytes]:
        """The names in the directory, in no order; of very many a part."""
        answer, _ = self._ask({"op": "names"}, root, seconds, items=NAMES + _ITEMS)
        found = answer.get("names")
        if type(found) is not list or len(found) > NAMES:
            raise _unusable("its list of names is none, or too long")
        names = [_path(one) for one in found]
        if any(b"/" in name for name in names):
            raise _unusable("a name in it is a path")
        return names

    def clear(self, root: Root, seconds: float = 60.0) -> None:
        """Remove everything in the directory."""
        self._ask({"op": "clear", "seconds": seconds}, root, seconds)

    def make_directory(self, root: Root, name: bytes, mode: int = 0o700, seconds: float = 60.0) -> None:
        """Create a directory of this name in the directory."""
        self._ask({"op": "make_directory", "name": _text(name), "mode": mode}, root, seconds)

    def _ask(
        self,
        asked: dict[str, Any],
        root: Root,
        seconds: float,
        blobs: Sequence[int] = (),
        most: int = 0,
        items: int = _ITEMS,
    ) -> tuple[dict[str, Any], bytes]:
        return ask(self._sock, asked | root.words, [*root.fds, *blobs], seconds + _GRACE, most, items)


def ask(
    sock: socket.socket,
    asked: dict[str, Any],
    fds: Sequence[int] = (),
    seconds: float = 60.0,
    most: int = 0,
    items: int = _ITEMS,
) -> tuple[dict[str, Any], bytes]:
    """Send a request. Returns the answer, with at most `items` values, and its bytes, at most `most`. Raises NoAnswer,
    or the OSError of the operation."""
    end = time.monotonic() + seconds
    question = json.dumps(asked).encode()
    if len(question) > QUESTION_BYTES:
        raise OSError(errno.E2BIG, "the question is too long")
    try:
        _send_descriptors(sock, _HEADER.pack(len(question), 0), fds, end)
        sock.settimeout(_left(end))
        sock.sendall(question)
        size, more = _HEADER.unpack(_receive(sock, _HEADER.size, end))
        if size > ANSWER_BYTES or more > most:
            raise _unusable(f"it has {size} and {more} bytes")
        answer = _parse(_receive(sock, size, end), items)
        data = _receive(sock, more, end)
    except TimeoutError:
        raise NoAnswer(errno.ETIMEDOUT, f"the job's side gave no answer in {seconds:g} s") from None
    except EOFError:
        raise NoAnswer(errno.EPIPE, "the job's side ended before it answered") from None
    except ConnectionError as error:
        raise NoAnswer(error.errno, "the job's side ended before it answered") from None
    if (failed := answer.get("error")) is not None:
        raise _as_error(failed)
    return answer, data


def _send_descriptors(sock: socket.socket, header: bytes, fds: Sequence[int], end: float) -> None:
    """Send these. A user other than root may have only as many descriptors on their way as RLIMIT_NOFILE says, those of
    all other processes included: until there are fewer, wait."""
    while True:
        sock.settimeout(_left(end))
        try:
            socket.send_fds(sock, [header], fds)
            return
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS or time.monotonic() + _PAUSE > end:
                raise
        time.sleep(_PAUSE)


def _receive(sock: socket.socket, size: int, end: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        sock.settimeout(_left(end))
        part = sock.recv(min(size - len(data), 1 << 20))  # descriptors that come with it are dropped by the kernel
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError(errno.ETIMEDOUT, "the time is up")
    return left


# --- validating answers -----------------------------------------------------------------------------------------------


def _parse(raw: bytes, items: int) -> dict[str, Any]:
    if raw.count(b"[") + raw.count(b"{") + raw.count(b",") > items:  # each takes many times its size in memory
        raise _unusable("it has too many values")
    try:
        said = json.loads(raw, parse_float=_refuse, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise _unusable("it is not JSON of whole numbers and text") from None
    if type(said) is not dict:
        raise _unusable("it is no object")
    return said


def _refuse(text: str) -> None:
    raise ValueError(text)


def _path(said: object) -> bytes:
    if type(said) is not str:
        raise _unusable("a path in it is no text")
    try:
        raw = bytes.fromhex(said)
    except ValueError:
        raise _unusable("a path in it is not hexadecimal") from None
    if not 0 < len(raw) <= PATH_BYTES or b"\0" in raw or not {b"", b".", b".."}.isdisjoint(raw.split(b"/")):
        raise _unusable("a path in it is not relative and plain")
    return raw


def _found(said: object) -> Found:
    if type(said) is not list or len(said) != 3:
        raise _unusable("a file in it has no path, size and mode")
    path, size, mode = said
    if type(size) is not int or type(mode) is not int:
        raise _unusable("a file in it has no path, size and mode")
    raw = _path(path)
    if not 0 <= size <= _LARGEST or mode & ~MODE_BITS:
        raise _unusable("a size or mode in it cannot be")
    return raw, size, mode


def _as_error(said: object) -> OSError:
    match said:
        case [int(number), str(why)] if type(number) is int and 0 < number < 4096:
            plain = "".join(one if one.isprintable() else "?" for one in why[:500])
            return OSError(number, plain)
    return _unusable("its error is none")


def _unusable(why: str) -> NoAnswer:
    return NoAnswer(errno.EPROTO, f"the answer of the job's side cannot be used: {why}")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def batches(entries: Sequence[Entry]) -> Iterator[tuple[list[Entry], list[int]]]:
    """Split entries into messages, with their blobs renumbered; and which blobs these are."""
    part: list[Entry] = []
    blobs: dict[int, int] = {}
    size = 0
    for kind, path, mode, target, length, blob in entries:
        new = kind == FILE and blob not in blobs
        if part and (len(part) >= _ENTRIES_AT_ONCE or size > _ENTRIES_BYTES or (new and len(blobs) >= BLOBS_AT_ONCE)):
            yield part, list(blobs)
            part, blobs, size = [], {}, 0
        number = blobs.setdefault(blob, len(blobs)) if kind == FILE else -1
        part.append((kind, path, mode, target, length, number))
        size += len(path) + len(target) + 64
    if part:
        yield part, list(blobs)


# --- the job's side ---------------------------------------------------------------------------------------------------


def serve(sock: socket.socket, seconds: float = 600.0) -> None:
    """Answer until the client closes its end, in a process with the job's rights; the kernel ends it after this many
    seconds. Other processes of its user may not inspect it or take its descriptors: the same user id could reopen one
    of the agent's files for writing."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    sock.settimeout(None)
    end = time.monotonic() + seconds
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            fds: list[int] = []
            try:
                header = _header(sock, fds)
                size, _ = _HEADER.unpack(header)
                if size > QUESTION_BYTES:
                    return
                raw = _receive(sock, size, end)
                answer, data = _answer(raw, fds)
            finally:
                for fd in fds:
                    os.close(fd)
            said = json.dumps(answer).encode()
            if len(said) > ANSWER_BYTES:
                said = json.dumps({"error": [errno.E2BIG, "the names of what was found are too long"]}).encode()
            sock.settimeout(_left(end))
            sock.sendall(_HEADER.pack(len(said), len(data)) + said + data)


def _header(sock: socket.socket, fds: list[int]) -> bytes:
    header = b""
    while len(header) < _HEADER.size:
        sock.settimeout(None)
        part, more, _, _ = socket.recv_fds(sock, _HEADER.size - len(header), BLOBS_AT_ONCE + 1, socket.MSG_CMSG_CLOEXEC)
        fds += more
        if not part:
            raise EOFError
        header += part
    return header


def _answer(raw: bytes, fds: list[int]) -> tuple[dict[str, Any], bytes]:
    try:
        asked = json.loads(raw)
        if "root" in asked:
            follow = 0 if asked["follow"] else os.O_NOFOLLOW
            fds.insert(0, os.open(_bytes(asked["root"]), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | follow))
        return _operate(asked, fds[0], fds[1:])
    except OSError as error:
        where = error.filename if isinstance(error.filename, str | bytes) else b""
        why = error.strerror or str(error)
        said = f"{os.fsdecode(where)[:300]}: {why}" if where and isinstance(error, beneath.Refused) else why
        return {"error": [error.errno or errno.EIO, said]}, b""
    except Exception as error:  # such as a bad pattern or no memory: the caller is told
        what = getattr(error, "what", type(error).__name__)
        return {"error": [errno.EINVAL, f"{what}: {getattr(error, 'why', '') or error}"[:500]]}, b""


def _operate(asked: dict[str, Any], root: int, blobs: list[int]) -> tuple[dict[str, Any], bytes]:
    match asked["op"]:
        case "unpack":
            entries = [(one[0], _bytes(one[1]), one[2], _bytes(one[3]), one[4], one[5]) for one in asked["entries"]]
            files.unpack(entries, blobs, root)
        case "find":
            found = files.find(root, asked["patterns"], Limits(*asked["limits"]))
            return {"found": [[path.hex(), size, mode] for path, size, mode in found]}, b""
        case "read":
            path, size = _bytes(asked["path"]), min(asked["size"], READ_BYTES)
            data, ends, hole = files.read(root, path, asked["offset"], size, asked.get("holes", False))
            return {"end": ends, "hole": hole}, data
        case "remove":
            files.remove(root, _bytes(asked["name"]), asked["seconds"])
        case "measure":
            return {"size": files.measure(root, asked["seconds"], asked["each"])}, b""
        case "names":
            return {"names": [name.hex() for name in files.names(root)]}, b""
        case "clear":
            files.clear(root, asked["seconds"])
        case "make_directory":
            files.make_directory(root, _bytes(asked["name"]), asked["mode"])
        case other:
            raise OSError(errno.EINVAL, f"there is no operation {other!r}")
    return {}, b""


__all__ = ["DIRECTORY", "FILE", "LINK", "Files", "Limits", "NoAnswer", "Root", "ask", "serve"]
