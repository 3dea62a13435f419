"""Frames: what goes out comes back, what was released stays readable, and nothing a peer sends gets past BadFrame.

The golden frames in golden/ are one per message, as released. They are checked against the `msgpack` package, which had
no hand in writing them. A new message needs a new file (run with GRID_REWRITE=1 and look at what changed); an existing
file never changes, or a released peer could no longer be understood.
"""

import os
import typing
from pathlib import Path

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.protocol import codec, messages
from distributed_grid.protocol.errors import BadFrame
from tests.depth import tries
from tests.protocol.samples import MESSAGES

GOLDEN = Path(__file__).parent / "golden" / "1.0"
UNIONS = ("FromAgent", "ToAgent", "FromAgentData", "ToAgentData", "FromClient", "ToClient")


def kinds(union: str) -> set[str]:
    return {kind.__name__ for kind in typing.get_args(getattr(messages, union))}


def lists(value: object) -> object:
    """The same with every tuple a list, as msgpack has no tuples."""
    if isinstance(value, dict):
        return {key: lists(item) for key, item in value.items()}
    return [lists(item) for item in value] if isinstance(value, list | tuple) else value


def direction(name: str) -> str | None:
    return next((union for union in UNIONS if name in kinds(union)), None)


def test_every_message_has_an_example() -> None:
    assert set(MESSAGES) == {"Hello"}.union(*(kinds(union) for union in UNIONS))


def test_every_message_has_a_sentence() -> None:
    assert [name for name in MESSAGES if not (getattr(messages, name).__doc__ or "").strip().endswith((".", ")"))] == []


@pytest.mark.parametrize("name", MESSAGES)
def test_the_golden_frame_of_a_message_stays_readable(name: str) -> None:
    path = GOLDEN / f"{name}.bin"
    if os.environ.get("GRID_REWRITE") and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(codec.encode(7, [MESSAGES[name]]))
    frame = path.read_bytes()
    union = direction(name)
    read = codec.decode(union, frame) if union else (7, [codec.decode_first(frame, messages.Hello)])
    assert read == (7, [MESSAGES[name]])


@pytest.mark.parametrize("name", MESSAGES)
def test_another_msgpack_reads_a_frame_as_we_mean_it(name: str) -> None:
    plain = msgpack.unpackb((GOLDEN / f"{name}.bin").read_bytes(), strict_map_key=False)
    assert plain == [7, [lists(msgspec.to_builtins(MESSAGES[name], builtin_types=(bytes,)))]]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_field_from_a_newer_peer_is_passed_over(name: str) -> None:
    plain = msgpack.unpackb(codec.encode(1, [MESSAGES[name]]), strict_map_key=False)
    plain[1][0]["added_in_1_1"] = {"some": ["thing"]}
    union = direction(name)
    frame = msgpack.packb(plain)
    read = codec.decode(union, frame)[1][0] if union else codec.decode_first(frame, messages.Hello)
    assert read == MESSAGES[name]


def test_several_messages_travel_in_one_frame_in_order() -> None:
    sent = [MESSAGES["Heartbeat"], MESSAGES["Offer"], MESSAGES["Started"]]
    assert codec.decode("FromAgent", codec.encode(3, sent)) == (3, sent)


@pytest.mark.parametrize("union", UNIONS)
def test_a_message_of_the_other_direction_is_refused(union: str) -> None:
    other = next(name for name in MESSAGES if name not in kinds(union))
    with pytest.raises(BadFrame, match="bad frame"):
        codec.decode(union, codec.encode(1, [MESSAGES[other]]))


def test_a_wrong_type_is_told_with_its_exact_path() -> None:
    plain = msgpack.unpackb(codec.encode(1, [MESSAGES["Heartbeat"]]), strict_map_key=False)
    plain[1][0]["sample"]["load"] = "much"
    with pytest.raises(BadFrame, match=r"Expected `float`, got `str` - at `\$\[1\]\[0\]\.sample\.load`"):
        codec.decode("FromAgent", msgpack.packb(plain))


BAD_FRAMES = {
    "empty": b"",
    "not msgpack": b"\xc1\xc1\xc1",
    "a bare number": b"\x07",
    "cut short": codec.encode(1, [MESSAGES["Heartbeat"]])[:-3],
    "two frames in one": codec.encode(1, [MESSAGES["Started"]]) * 2,
    "deeply nested": b"\x91" * 100_000 + b"\x00",
    "a map of maps": b"\x92\x01\x91" + b"\x81\xa1a" * 50_000 + b"\x00",
    "a claimed array of four billion": b"\xdd\xff\xff\xff\xff",
    "a claimed string of four gigabytes": b"\xdb\xff\xff\xff\xff",
    "no type": msgpack.packb([1, [{"allocation": "a"}]]),
    "an unknown type": msgpack.packb([1, [{"type": "format-disk"}]]),
    "an extension type": msgpack.packb([1, [msgpack.ExtType(5, b"x")]]),
    "a broken timestamp": b"\x92\x01\x91\xc7\x0c\xff" + b"\xff" * 12,
    "not utf-8": b"\x92\x01\x91\x81\xa4type\xa2\xff\xfe",
    "a negative amount": msgpack.packb(
        [1, [{"type": "launch", "allocation": "a", "job": "j", "user": "u", "epoch": 1, "grant": 5, "spec": {}}]]
    ),
}


@pytest.mark.parametrize("union", UNIONS)
@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_a_bad_frame_is_a_bad_frame_and_nothing_else(union: str, frame: bytes) -> None:
    with pytest.raises(BadFrame):
        codec.decode(union, frame)


def test_what_only_others_are_sent_is_no_answer_to_a_client() -> None:
    for name in ("Heartbeat", "Launch", "Submit", "Hello"):
        with pytest.raises(BadFrame, match="Invalid value"):
            codec.decode("ToClient", codec.encode(1, [MESSAGES["Done"], MESSAGES[name]]))


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_a_bad_first_frame_is_a_bad_frame_too(frame: bytes) -> None:
    with pytest.raises(BadFrame):
        codec.decode_first(frame, messages.Hello)


def test_a_first_frame_over_the_limit_is_not_even_parsed() -> None:
    with pytest.raises(BadFrame, match="the first frame has 65537 bytes"):
        codec.decode_first(b"\x00" * (codec.HELLO_BYTES + 1), messages.Hello)


def test_a_first_frame_may_not_nest_deeper_than_a_hello_does() -> None:
    deep: object = 1
    for _ in range(12):
        deep = [deep]
    with pytest.raises(BadFrame, match="nested|bad first frame"):
        codec.decode_first(msgpack.packb([1, [deep]]), messages.Hello)


@settings(max_examples=tries(150, 60), deadline=None)
@given(st.binary(max_size=300), st.sampled_from(UNIONS))
def test_random_bytes_are_bad_frames(frame: bytes, union: str) -> None:
    with pytest.raises(BadFrame):
        codec.decode(union, b"\x92\x01\x91" + frame if len(frame) % 2 else frame)


@settings(max_examples=tries(150, 60), deadline=None)
@given(st.sampled_from(sorted(MESSAGES)), st.integers(0, 10_000), st.integers(0, 255))
def test_a_flipped_byte_gives_a_message_or_a_bad_frame(name: str, where: int, byte: int) -> None:
    frame = bytearray(codec.encode(1, [MESSAGES[name]]))
    frame[where % len(frame)] = byte
    union = direction(name)
    try:
        codec.decode(union, frame) if union else codec.decode_first(frame, messages.Hello)
    except BadFrame:
        return
