"""Frames that no peer of ours would send, each made from a seed and a number alone, so that any one can be made again.

Most are golden frames with something wrong in their structure, which gets them past the first checks; the others are
wrong byte by byte, or no frames at all. Coverage guidance would see little: what reads frames is written in C.
"""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

GOLDEN = Path(__file__).parents[1] / "protocol" / "golden" / "1.0"

LARGEST = 4 << 20
"""Of more bytes no frame is read: that is seen to before them (coordinator/net/listener.py)."""
NUMBERS = [
    0, 1, -1, 2, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1,
    -(2**31), -(2**63), 2**60, 2**60 + 1, 2**52 + 1, 0.0, -0.0, 0.5, -1.5, 1e10, 1e15, 253_370_764_801.0, 1e300, -1e300,
    1e308, 5e-324, math.inf, -math.inf, math.nan,
]  # fmt: skip
TEXTS = [
    "", "x", "last", "j-aaaaaaaaaaaa", "j-aaaaaaaaaaaa.1", "n1", "\0", "a\nb", "\x1b[2J", "../../etc/passwd", "ü" * 40,
    "x" * 300, "x" * 5_000, "\u202e", "1e9", "waiting", "cancelled", "agent", "client", "submit", "heartbeat",
]  # fmt: skip
BOMBS = [
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x00", b"\x91" * 3_000,
    b"\x92\x01" + b"\x91" * 100_000 + b"\xc0", b"\xc1", b"\xd6\xff" + bytes(4),
    b"\x92\x01\xdc\xff\xff" + b"\x80" * 65_535, b"\x81" * 2_000 + b"\x01", b"",
]  # fmt: skip


def golden() -> dict[str, bytes]:
    """The released frames, by the name of their message."""
    return {path.stem: path.read_bytes() for path in sorted(GOLDEN.glob("*.bin"))}


def extremes(message: Any) -> Iterator[Any]:
    """The message (as plain values), once for each number in it and each extreme value that this could be."""
    for box, key in _numbers(message):
        before = box[key]
        for value in NUMBERS:
            box[key] = value
            yield message
        box[key] = before


def _numbers(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        if isinstance(value, dict | list):
            yield from _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield tree, key


class Frames:
    """Frame number n of a seed. `names` chooses the golden frames it is made from."""

    def __init__(self, seed: int, names: set[str] | None = None) -> None:
        self._seed = seed
        self._bytes = [frame for name, frame in golden().items() if names is None or name in names]
        self._trees = [msgpack.unpackb(frame, strict_map_key=False)[1][0] for frame in self._bytes]

    def gentle(self, number: int, sequence: int) -> bytes:
        """One that is mostly read as what it seems to be: values of the right kind that make no sense together."""
        rng = random.Random(f"{self._seed}:gentle:{number}")  # noqa: S311
        message = _copy(rng.choice(self._trees))
        for _ in range(rng.choice((0, 1, 2, 3))):
            found = _place(rng, message)
            if found is not None and found[1] != "type":
                found[0][found[1]] = _like(rng, found[0][found[1]])
        packed: bytes = msgpack.packb([sequence, [message]])
        return packed[:LARGEST]

    def make(self, number: int, sequence: int = 7) -> bytes:
        """That frame; its sequence number is mostly this one."""
        return self._make(number, sequence)[:LARGEST]

    def _make(self, number: int, sequence: int) -> bytes:
        rng = random.Random(f"{self._seed}:{number}")  # noqa: S311
        kind = rng.random()
        if kind < 0.70:
            return self._structured(rng, sequence)
        if kind < 0.93:
            return self._bent(rng)
        if kind < 0.97:
            return rng.randbytes(rng.choice((1, 3, 10, 100, 1000)))
        return rng.choice(BOMBS)

    # --- wrong in their structure -------------------------------------------------------------------------------------

    def _structured(self, rng: random.Random, sequence: int) -> bytes:
        messages = [_copy(rng.choice(self._trees)) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
        for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
            messages[rng.randrange(len(messages))] = self._spoilt(rng, messages[rng.randrange(len(messages))])
        if rng.random() < 0.05:
            sequence = rng.choice(NUMBERS)  # type: ignore[assignment]
        try:
            packed: bytes = msgpack.packb([sequence, messages])
        except (ValueError, OverflowError):  # deeper or larger than the package writes
            return rng.choice(BOMBS)
        return packed if rng.random() < 0.95 else self._bitten(rng, packed)

    def _spoilt(self, rng: random.Random, tree: Any) -> Any:
        """The tree with one thing in it changed."""
        found = _place(rng, tree)
        if found is None:
            return _any(rng)
        box, key = found
        match rng.randrange(7):
            case 0 | 1:
                box[key] = _like(rng, box[key])
            case 2:
                box[key] = _any(rng)
            case 3:
                del box[key]
            case 4 if isinstance(box, dict):
                box[rng.choice(TEXTS)] = _any(rng)
            case 4:
                small = not isinstance(box[key], list | dict | str | bytes)
                box += [box[key]] * (rng.choice((1, 2, 100, 5_000)) if small else 1)
            case 5:
                other = _place(rng, rng.choice(self._trees))
                box[key] = _copy(other[0][other[1]]) if other is not None else None
            case _:
                deep: Any = box[key]
                for _ in range(rng.choice((1, 5, 20, 300))):
                    deep = [deep]
                box[key] = deep
        return tree

    # --- wrong byte by byte -------------------------------------------------------------------------------------------

    def _bent(self, rng: random.Random) -> bytes:
        frame = rng.choice(self._bytes)
        for _ in range(rng.choice((1, 1, 2, 8))):
            frame = self._bitten(rng, frame)
        return frame

    def _bitten(self, rng: random.Random, frame: bytes) -> bytes:
        at = rng.randrange(len(frame) + 1)
        match rng.randrange(6):
            case 0:
                return frame[:at]
            case 1:
                return frame[:at] + rng.randbytes(rng.choice((1, 2, 9))) + frame[at:]
            case 2:
                return frame[:at] + frame[at + rng.choice((1, 2, 9)) :]
            case 3:
                return frame[:at] + bytes([rng.choice((0xC0, 0xC1, 0x80, 0x90, 0xDC, 0xDD, 0xFF))]) + frame[at + 1 :]
            case 4:
                other = rng.choice(self._bytes)
                return frame[:at] + other[rng.randrange(len(other) + 1) :]
            case _:
                bent = bytearray(frame)
                if bent:
                    bent[at - 1] ^= 1 << rng.randrange(8)
                return bytes(bent)


def _place(rng: random.Random, tree: Any) -> tuple[Any, Any] | None:
    """A (box, key) somewhere below a tree; None: there is none."""
    found = None
    while isinstance(tree, dict | list) and tree:
        key = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
        found, tree = (tree, key), tree[key]
        if rng.random() < 0.3:
            break
    return found


def _copy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _copy(value) for key, value in tree.items()}
    return [_copy(value) for value in tree] if isinstance(tree, list) else tree


def _like(rng: random.Random, value: Any) -> Any:
    """Another value of about this kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            near = value + rng.choice((-1, 1, 1000))
            return near if rng.random() < 0.3 and -(2**63) <= near < 2**64 else rng.choice(NUMBERS)
        case str():
            return rng.choice(TEXTS) if rng.random() < 0.7 else value[: rng.randrange(len(value) + 1)]
        case bytes():
            return rng.randbytes(rng.choice((0, 1, 64, 5_000)))
    return [] if isinstance(value, list) else {}


def _any(rng: random.Random) -> Any:
    match rng.randrange(8):
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2 | 3:
            return rng.choice(NUMBERS)
        case 4:
            return rng.choice(TEXTS)
        case 5:
            return rng.randbytes(rng.choice((0, 3, 40)))
        case 6:
            return [rng.choice(NUMBERS) for _ in range(rng.choice((0, 1, 3, 200)))]
    return {rng.choice(TEXTS): rng.choice(NUMBERS) for _ in range(rng.choice((0, 1, 3)))}
