"""The session of two ends without a socket between them."""

import pytest

from distributed_grid.protocol import codec
from distributed_grid.protocol.errors import BadFrame, ProtocolMismatch
from distributed_grid.protocol.link import PROTOCOL, SILENCE, Link, compatible
from distributed_grid.protocol.messages import Hello, Output, Refused, Started, Welcome
from tests.protocol.samples import FACTS, MESSAGES

WELCOME = Welcome(protocol=PROTOCOL, software="0.1.0", epoch=1, grid="g", session="s")


def hello(**other: object) -> Hello:
    fields: dict[str, object] = {
        "protocol": PROTOCOL, "software": "0.1.0", "role": "agent", "name": "lab1", "facts": FACTS
    }  # fmt: skip
    return Hello(**{**fields, **other})  # type: ignore[arg-type]


def pass_on(sender: Link, receiver: Link, now: float = 0.0) -> list[object]:
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
