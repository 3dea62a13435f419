"""Messages to frames and back, with limits.

A frame is one msgpack array `[sequence, [message, …]]`: all messages that one turn of an event loop sends on a
connection are in one frame. Before the hello the peer is not known, so the first frame is read by the `msgpack` package
with explicit limits on all of it; later frames are decoded by msgspec directly into the typed messages of the peer's
role. Whatever a peer sends, the only exception raised to callers is BadFrame.
"""

import re
from typing import Any, Generic, TypeVar

import msgpack
import msgspec

from distributed_grid.protocol import messages
from distributed_grid.protocol.errors import BadFrame, BadValue, OutOfBounds
from distributed_grid.protocol.resources import MOST_NUMBER

HELLO_BYTES = 64 << 10
"""The largest first frame, either way."""
CONTROL_BYTES = 256 << 10
"""The largest frame an agent's control connection carries to the coordinator."""
BULK_BYTES = 4 << 20
"""The largest frame of data connections, of clients, and of what the coordinator sends."""
PART_BYTES = 256 << 10
"""The largest piece of output, file or blob that is asked for at once."""

_HELLO_LIMITS = {
    "max_str_len": 4096,
    "max_bin_len": 0,
    "max_array_len": 4096,
    "max_map_len": 256,
    "max_ext_len": 0,
}
_HELLO_DEPTH = 8
_OUT_OF_BOUNDS = r"^Expected `\w+` (of length )?(<=|>=) (\S+) - at `(?:key` in `)?\$(?:\[1\]\[\d+\])?\.?(.*)`$"

_encoder = msgspec.msgpack.Encoder()


T = TypeVar("T")


class _Frame(msgspec.Struct, Generic[T], frozen=True, array_like=True):
    sequence: int
    messages: list[T]


Decoder = msgspec.msgpack.Decoder[Any]


class _Decoders(dict[str, Decoder]):
    """A decoder by direction, made at its first use: each takes milliseconds, and a program reads one or two."""

    def __missing__(self, direction: str) -> Decoder:
        frame: Any = _Frame
        decoder = self[direction] = msgspec.msgpack.Decoder(frame[getattr(messages, direction)])
        return decoder


_DECODERS = _Decoders()


class _Tagged(msgspec.Struct):
    type: str


class _Answers(dict[str, Decoder]):
    """A decoder by the tag of a message to a client, made at its first use: that of the whole union takes four times as
    long as those which a command needs."""

    def __missing__(self, tag: str) -> Decoder:
        name = "".join(word.capitalize() for word in tag.split("-"))
        if name not in messages.UNIONS["ToClient"].split():
            raise msgspec.ValidationError(f"Invalid value {tag!r} - at `$.type`")
        decoder = self[tag] = msgspec.msgpack.Decoder(getattr(messages, name))
        return decoder


_ANSWERS = _Answers()
_UNREAD = msgspec.msgpack.Decoder(_Frame[msgspec.Raw])
_TAGGED = msgspec.msgpack.Decoder(_Tagged)


def encode(sequence: int, messages: list[Any]) -> bytes:
    """Return one frame. Raises BadValue for a message that cannot be encoded, such as text that has no UTF-8."""
    try:
        return _encoder.encode((sequence, messages))
    except UnicodeEncodeError as error:
        what = f"{error.object[:100]!r} cannot be sent"
        raise BadValue(what, why="commands, variables, paths and names must be UTF-8") from None
    except (TypeError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise BadValue("a message cannot be sent", why=str(error) or type(error).__name__) from None


def escaped(message: T) -> T:
    """The same message with what is not UTF-8 in its texts written as `\\xff`. Raises BadValue where that is not
    enough."""
    try:
        plain = _escaped(msgspec.to_builtins(message, builtin_types=(bytes,)))
        return msgspec.convert(plain, type(message))
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadValue("a message cannot be sent", why=str(error) or type(error).__name__) from None


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="surrogateescape").decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    return value


def decode(direction: str, frame: bytes | bytearray | memoryview) -> tuple[int, list[Any]]:
    """The sequence number and messages of a frame from a known peer. Raises BadFrame."""
    try:
        if direction == "ToClient":
            return _decode_answers(frame)
        whole = _DECODERS[direction].decode(frame)
    except msgspec.ValidationError as error:
        raise _ill_formed("frame", error, "a message does not have the form that its type demands") from None
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise BadFrame(f"bad frame: {str(error) or type(error).__name__}", why="not msgpack as we write it") from None
    return whole.sequence, whole.messages


def _decode_answers(frame: bytes | bytearray | memoryview) -> tuple[int, list[Any]]:
    whole = _UNREAD.decode(frame)
    return whole.sequence, [_ANSWERS[_TAGGED.decode(message).type].decode(message) for message in whole.messages]


def decode_first(frame: bytes | bytearray | memoryview, wanted: Any) -> Any:
    """The one message of a first frame, of the wanted type (Hello, or Welcome | Refused), read with the limits for
    strangers. Raises BadFrame."""
    if len(frame) > HELLO_BYTES:
        raise BadFrame(f"the first frame has {len(frame)} bytes", why=f"more than {HELLO_BYTES} are not read")
    try:
        plain = msgpack.unpackb(bytes(frame), strict_map_key=True, raw=False, **_HELLO_LIMITS)
    except Exception as error:  # the package raises many kinds, also outside ValueError
        raise BadFrame(f"bad first frame: {str(error) or type(error).__name__}", why="not a hello") from None
    _check_depth(plain, _HELLO_DEPTH)
    if not (isinstance(plain, list) and len(plain) == 2 and isinstance(plain[1], list) and len(plain[1]) == 1):
        raise BadFrame("bad first frame", why="it must be [sequence, [one message]]")
    try:
        return msgspec.convert(plain[1][0], wanted)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise _ill_formed("first frame", error, "not a hello of this protocol") from None


def _ill_formed(what: str, error: Exception, why: str) -> BadFrame:
    """The error of a message that was decoded; a value out of bounds is told by its field and the bound."""
    if (found := re.search(_OUT_OF_BOUNDS, str(error))) is None:
        return BadFrame(f"bad {what}: {error}", why=why)
    length, sign, bound, path = found.groups()
    field = path or "the message"
    limit = f"{'at most' if sign == '<=' else 'at least'} {float(bound):g}" if "e" in bound or "." in bound else ""
    limit = limit or f"{'at most' if sign == '<=' else 'at least'} {bound}"
    rule = f"has {limit} characters" if length else f"is {limit}"
    return OutOfBounds(f"bad {what}: {field} is out of bounds", why=f"{field} {rule}")


def unsendable(error: Exception) -> str:
    """Return why the only message of a frame cannot be sent, in the terms of its sender: which field, and what is
    wrong."""
    if isinstance(error, OutOfBounds):
        return error.why
    if not isinstance(error, BadFrame):
        return str(error)
    found = re.fullmatch(r"bad frame: (.*) - at `\$\[1\]\[0\]\.(.+)`", error.what)
    return f"{found[2]}: {found[1]}" if found else error.what


class Unusable(msgspec.Struct, frozen=True):
    """Replaces a request with this number that was not read: a value in it, or in one of the same frame, is out of
    bounds."""

    id: int
    error: OutOfBounds


def unusable(frame: bytes | bytearray | memoryview, error: OutOfBounds) -> tuple[int, list[Unusable]]:
    """The sequence number of a frame that `decode` found out of bounds, and its requests, none of which is taken.
    Raises the error where one of them has no number to answer to."""
    sequence, asked = msgspec.msgpack.decode(frame)
    numbers = [message.get("id") if isinstance(message, dict) else None for message in asked]
    requests = [Unusable(one, error) for one in numbers if isinstance(one, int) and 0 <= one <= MOST_NUMBER]
    if len(requests) < len(asked):
        raise error
    return sequence, requests


def _check_depth(value: object, left: int) -> None:
    if left == 0:
        raise BadFrame("bad first frame", why=f"nested deeper than {_HELLO_DEPTH}")
    if isinstance(value, dict):
        for item in value.values():
            _check_depth(item, left - 1)
    elif isinstance(value, list):
        for item in value:
            _check_depth(item, left - 1)
