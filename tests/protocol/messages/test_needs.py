"""What is asked and told of needs is bounded."""

import msgspec
import pytest

from distributed_grid.protocol.messages import FromClient, Predict, RecordUse
from distributed_grid.protocol.messages.needs import whole_cores


def received(message: object) -> object:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromClient)


@pytest.mark.parametrize(
    "message",
    [
        Predict(1, ("x",), features={f"f{number}": 1.0 for number in range(17)}),
        Predict(1, ("x",), features={"batch": float("inf")}),
        Predict(1, ("x",), within=float("nan")),
        Predict(1, ("x",), tried=-1),
        RecordUse(1, ("x",), seconds=-1.0),
        RecordUse(1, ("x",), memory=1 << 62),
        RecordUse(1, ("x",), cores=float("nan")),
    ],
)
def test_what_is_out_of_all_bounds_is_refused(message: object) -> None:
    with pytest.raises((msgspec.ValidationError, ValueError)):
        received(message)


def test_what_is_within_them_comes_as_it_was_sent() -> None:
    message = Predict(1, ("x",), features={"batch": 2.0}, within=60.0, tried=4096)
    assert received(message) == message


@pytest.mark.parametrize(
    ("need", "cores"), [(0.2, 1), (1.0, 1), (1.0513, 1), (1.3, 2), (2.1025, 2), (2.3, 3), (3.9, 4), (8.41, 8), (8.9, 9)]
)
def test_cores_are_asked_for_whole_and_a_margin_asks_for_no_further_one(need: float, cores: int) -> None:
    assert whole_cores(need) == cores
