"""The session of two ends without a socket between them."""

from typing import Any

import pytest

from distributed_grid.protocol import codec
from distributed_grid.protocol.errors import BadFrame, BadValue, ProtocolMismatch
from distributed_grid.protocol.link import PROTOCOL, SILENCE, Link, compatible
from distributed_grid.protocol.messages import (
    FileData,
    FileEntry,
    Files,
    Hello,
    Output,
    Refused,
    Started,
    WantOutput,
    Welcome,
)
from tests.protocol.samples import FACTS, MESSAGES

WELCOME = Welcome(protocol=PROTOCOL, software="0.1.0", epoch=1, grid="g", session="s")


def hello(**other: Any) -> Hello:
    fields: dict[str, object] = {
        "protocol": PROTOCOL, "software": "0.1.0", "role": "agent", "name": "lab1", "facts": FACTS
    }  # fmt: skip
    return Hello(**{**fields, **other})


def pass_on(sender: Link, receiver: Link, now: float = 0.0) -> list[Any]:
    return [message for frame in sender.data_to_send() for message in receiver.receive(frame, now)]


def joined(role: str = "agent") -> tuple[Link, Link]:
    near, far = Link.dial(hello(role=role), 0.0), Link.answer(0.0)
    pass_on(near, far)
    far.accept(WELCOME)
    pass_on(far, near)
    return near, far


def test_the_hello_comes_first_and_alone() -> None:
    near, far = Link.dial(hello(), 0.0), Link.answer(0.0)
    near.send(MESSAGES["Heartbeat"])
    assert pass_on(near, far) == [hello()]
    assert not near.open and not far.open


def test_after_the_welcome_what_was_queued_leaves_in_one_frame() -> None:
    near, far = Link.dial(hello(), 0.0), Link.answer(0.0)
    near.send(MESSAGES["Heartbeat"], MESSAGES["Offer"])
    pass_on(near, far)
    far.accept(WELCOME)
    assert pass_on(far, near) == [WELCOME]
    frames = near.data_to_send()
    assert len(frames) == 1
    assert far.receive(frames[0], 0.0) == [MESSAGES["Heartbeat"], MESSAGES["Offer"]]
    assert near.data_to_send() == []


def test_a_refusal_is_read_and_leaves_the_link_closed() -> None:
    near, far = Link.dial(hello(), 0.0), Link.answer(0.0)
    pass_on(near, far)
    far.refuse(Refused(what="no", final=True))
    assert pass_on(far, near) == [Refused(what="no", final=True)]
    assert not near.open


@pytest.mark.parametrize(
    ("theirs", "works"), [((1, 0), True), ((1, 1), True), ((1, 2), False), ((2, 0), False), ((0, 0), False)]
)
def test_one_minor_version_apart_works_and_no_more(theirs: tuple[int, int], works: bool) -> None:
    assert compatible(PROTOCOL, theirs) is works
    near, far = Link.dial(hello(protocol=theirs), 0.0), Link.answer(0.0)
    if works:
        pass_on(near, far)
        assert far.hello is not None
    else:
        with pytest.raises(ProtocolMismatch, match=r"speaks protocol \d\.\d \(software 0\.1\.0\)"):
            pass_on(near, far)
        assert far.hello is None


@pytest.mark.parametrize("other", [{"role": "root"}, {"role": "agent", "facts": None}], ids=["role", "facts"])
def test_a_hello_that_makes_no_sense_is_refused(other: dict[str, object]) -> None:
    near, far = Link.dial(hello(), 0.0), Link.answer(0.0)
    near._queue[0] = hello(**other)
    with pytest.raises(ProtocolMismatch):
        pass_on(near, far)


def test_a_second_message_before_the_welcome_is_refused() -> None:
    near, far = Link.dial(hello(), 0.0), Link.answer(0.0)
    pass_on(near, far)
    with pytest.raises(ProtocolMismatch, match="before the welcome"):
        far.receive(codec.encode(2, [MESSAGES["Started"]]), 0.0)


@pytest.mark.parametrize("sequence", [1, 3, 0, -1])
def test_a_frame_out_of_sequence_ends_the_session_and_is_not_taken(sequence: int) -> None:
    _, far = joined()
    with pytest.raises(ProtocolMismatch, match="came after frame 1"):
        far.receive(codec.encode(sequence, [Started(allocation="a")]), 0.0)


def test_a_text_frame_is_a_bad_frame() -> None:
    _, far = joined()
    with pytest.raises(BadFrame, match="text frame"):
        far.receive("hello", 0.0)


def test_an_agent_may_not_send_what_a_client_sends() -> None:
    near, far = joined()
    near.send(MESSAGES["Submit"])
    with pytest.raises(BadFrame, match="Invalid value 'submit'"):
        pass_on(near, far)


def test_the_deadline_moves_with_every_frame_and_only_with_frames() -> None:
    near, far = joined()
    assert far.deadline() == SILENCE
    near.send(Started(allocation="a"))
    pass_on(near, far, now=4.0)
    assert far.deadline() == 4.0 + SILENCE
    with pytest.raises(BadFrame):
        far.receive(b"\xc1", 9.0)
    assert far.deadline() == 4.0 + SILENCE


def test_what_is_too_much_for_one_frame_travels_in_several_in_order() -> None:
    near, far = joined("agent-data")
    many = [Output(id=number, offset=0, data=b"x" * (codec.BULK_BYTES // 3)) for number in range(7)]
    near.send(*many)
    frames = near.data_to_send()
    assert len(frames) > 1
    assert all(len(frame) <= codec.BULK_BYTES for frame in frames)
    assert [message for frame in frames for message in far.receive(frame, 0.0)] == many


# --- what cannot be encoded -------------------------------------------------------------------------------------------


def sent_by_service(near: Link, far: Link) -> tuple[list[Any], list[Any]]:
    """What arrives, and which messages could not be sent as they were."""
    frames, unsent = near.data_to_send_anyway()
    return [message for frame in frames for message in far.receive(frame, 0.0)], [message for message, _ in unsent]


def test_a_text_that_is_not_utf_8_is_escaped_and_harms_no_other_message() -> None:
    near, far = joined("agent-data")
    bad = FileData(id=2, error="\udcff: no such file")
    near.send(Output(id=1, offset=0), bad, Output(id=3, offset=0))
    arrived, unsent = sent_by_service(near, far)
    assert arrived == [Output(id=1, offset=0), FileData(id=2, error="\\xff: no such file"), Output(id=3, offset=0)]
    assert unsent == [bad]
    near.send(Output(id=4, offset=0))
    assert sent_by_service(near, far) == ([Output(id=4, offset=0)], [])


@pytest.mark.parametrize(
    "bad",
    [
        FileData(id=7, data=b"x" * (codec.BULK_BYTES + 1)),
        Files(id=7, files=(FileEntry("a", 1 << 70),)),
        Output(id=7, offset=5, data=b"x" * (codec.BULK_BYTES + 1)),
    ],
    ids=["too large", "number", "output"],
)
def test_an_answer_that_cannot_be_sent_becomes_an_error_answer(bad: Any) -> None:
    near, far = joined("agent-data")
    near.send(Output(id=1, offset=0), bad, Output(id=2, offset=0))
    (before, instead, after), unsent = sent_by_service(near, far)
    assert unsent == [bad]
    assert (before, after) == (Output(id=1, offset=0), Output(id=2, offset=0))
    assert type(instead) is type(bad) and instead.id == 7
    assert instead.error.startswith("the answer cannot be sent: a message")


def test_a_message_that_answers_nothing_and_cannot_be_sent_is_left_out() -> None:
    near, far = joined()
    near.send(Started(allocation="a"), Started(allocation="b", pid=1 << 70), Started(allocation="c"))
    arrived, unsent = sent_by_service(near, far)
    assert [message.allocation for message in arrived] == ["a", "c"]
    assert [message.allocation for message in unsent] == ["b"]


def test_a_client_is_told_and_its_other_messages_and_numbers_are_whole() -> None:
    near, far = joined("client")
    near.send(WantOutput(id=1, allocation="a", stream="stdout", offset=0, size=1))
    near.send(WantOutput(id=2, allocation="\udcff", stream="stdout", offset=0, size=1))
    with pytest.raises(BadValue, match="cannot be sent"):
        near.data_to_send()
    near.send(WantOutput(id=3, allocation="c", stream="stdout", offset=0, size=1))
    assert [message.id for message in pass_on(near, far)] == [1, 3]
