"""Messages between the supervisor, the fork server and spawners: one JSON object per packet of a SOCK_SEQPACKET pair,
with file descriptors beside it. A long message is sent in an anonymous file. Stdlib only."""

import array
import json
import os
import socket
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]
from typing import Any

INLINE_BYTES = 1 << 15
"""Maximum size of a message in a packet. It fits the smallest socket buffer, so an idle peer never blocks us."""
MOST_BYTES = 16 << 20
"""Maximum size of a message in an anonymous file."""
_MOST_FDS = 8
_ANCILLARY = socket.CMSG_SPACE(_MOST_FDS * array.array("i").itemsize)
Message = dict[str, Any]
_json = json.JSONEncoder(separators=(",", ":"), check_circular=False)
# `_json.encode` makes this anew for each value, which takes longer than to encode most of ours.
_parts = c_make_encoder(
    None, _json.default, encode_basestring_ascii, _json.indent, _json.key_separator, _json.item_separator,
    _json.sort_keys, _json.skipkeys, _json.allow_nan,
)  # fmt: skip


class Closed(Exception):
    """The peer is gone, or sent an invalid message."""


def pair() -> tuple[socket.socket, socket.socket]:
    """A channel's two ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def encode(value: object) -> bytes:
    """Return a value as compact JSON on one line. Raises TypeError if it is no JSON value."""
    return "".join(_parts(value, 0)).encode()


def send(channel: socket.socket, message: Message, fds: tuple[int, ...] = ()) -> None:
    """Send a message with these descriptors, which stay open here. Raises Closed, also if the peer does not read."""
    body = encode(message)
    long = -1
    try:
        if len(body) > INLINE_BYTES:
            long = os.memfd_create("message", os.MFD_CLOEXEC)
            os.write(long, body)
            body, fds = b"", (*fds, long)
        _send(channel, body, fds)
    except OSError as error:
        raise Closed(error.strerror or str(error)) from None
    finally:
        if long >= 0:
            os.close(long)


def _send(channel: socket.socket, body: bytes, fds: tuple[int, ...]) -> None:
    if not fds:
        channel.send(body, socket.MSG_NOSIGNAL)
        return
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
    # An empty packet cannot be told from the end of the channel.
    channel.sendmsg([body or b"\0"], beside, socket.MSG_NOSIGNAL)


def receive(channel: socket.socket) -> tuple[Message, list[int]]:
    """Return the next message and its descriptors, which the caller closes. Raises Closed at the end of the channel and
    for an invalid message, BlockingIOError if there is none yet."""
    fds: list[int] = []
    try:
        body, beside, flags, _ = channel.recvmsg(INLINE_BYTES + 1, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        raise
    except OSError as error:
        raise Closed(error.strerror or str(error)) from None
    try:
        for level, kind, data in beside:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                taken = array.array("i")
                taken.frombytes(data[: len(data) - len(data) % taken.itemsize])
                fds += taken
        if not body and not fds:
            raise Closed("the channel was closed")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise Closed("a message is too long")
        if body == b"\0":
            body = _read(fds.pop())
        message = json.loads(body.decode())  # of text: of bytes it would guess the encoding
        if not isinstance(message, dict):
            raise Closed("a message is no object")
        return message, fds
    except (Closed, ValueError, IndexError, OSError, RecursionError) as error:
        for fd in fds:
            os.close(fd)
        raise error if isinstance(error, Closed) else Closed(f"a message cannot be read: {error}") from None


def _read(fd: int) -> bytes:
    try:
        size = os.fstat(fd).st_size
        if size > MOST_BYTES:
            raise Closed("a message is too long")
        return os.pread(fd, size, 0)
    finally:
        os.close(fd)
