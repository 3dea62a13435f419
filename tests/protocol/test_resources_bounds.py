"""Every number that travels has a bound, and what is beyond it is refused with the field and the bound."""

import json
import math
import typing
from collections.abc import Iterator
from typing import Any

import msgpack
import msgspec
import pytest
from msgspec import inspect

from distributed_grid.protocol import codec, messages
from distributed_grid.protocol.errors import BadFrame, BadValue
from distributed_grid.protocol.messages.handshake import Join, Renew
from distributed_grid.protocol.nodes import MOST_NODE_MEMORY, check_facts
from distributed_grid.protocol.resources import Resources
from tests.protocol.samples import FACTS, MESSAGES

EXTREMES = [
    -1, 0, 1, 2**31, 2**53, 2**60, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63),
    -0.5, 1e12, 1e15, 1e300, -1e300, 5e-324, math.inf, -math.inf, math.nan,
]  # fmt: skip
UNIONS = ("FromAgent", "FromAgentData", "FromClient", "ToAgent", "ToAgentData", "ToClient")
FROM_PEERS = {kind.__name__: kind for union in UNIONS for kind in typing.get_args(getattr(messages, union))} | {
    "Hello": messages.Hello,
    "Join": Join,
    "Renew": Renew,
}


def unbounded(kind: inspect.Type, path: str, seen: tuple[type, ...] = ()) -> Iterator[str]:
    """The fields below a type that hold a number without bounds."""
    match kind:
        case inspect.Metadata():
            yield from unbounded(kind.type, path, seen)
        case inspect.IntType() | inspect.FloatType():
            if kind.ge is None or kind.le is None:
                yield path
        case inspect.StructType() if kind.cls not in seen:
            for field in kind.fields:
                yield from unbounded(field.type, f"{path}.{field.name}", (*seen, kind.cls))
        case inspect.DictType():
            yield from unbounded(kind.key_type, f"{path}[key]", seen)
            yield from unbounded(kind.value_type, f"{path}[]", seen)
        case inspect.ListType() | inspect.VarTupleType():
            yield from unbounded(kind.item_type, f"{path}[]", seen)
        case inspect.TupleType():
            for item in kind.item_types:
                yield from unbounded(item, f"{path}[]", seen)
        case inspect.UnionType():
            for one in kind.types:
                yield from unbounded(one, path, seen)


def numbers_of(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Where in a message there are numbers, as (box, key)."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            yield from numbers_of(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield tree, key


@pytest.mark.parametrize("name", FROM_PEERS)
def test_every_number_of_a_message_has_both_bounds(name: str) -> None:
    assert list(unbounded(inspect.type_info(FROM_PEERS[name]), name)) == []


@pytest.mark.parametrize("name", MESSAGES)
def test_an_extreme_number_is_refused_with_its_field_or_is_one_that_can_be_written(name: str) -> None:
    kind = type(MESSAGES[name])
    union = next((one for one in UNIONS if kind in typing.get_args(getattr(messages, one))), "")
    plain = msgpack.unpackb(codec.encode(1, [MESSAGES[name]]), strict_map_key=False)[1][0]
    tried = 0
    for box, key in list(numbers_of(plain)):
        before = box[key]
        for extreme in EXTREMES:
            box[key], tried = extreme, tried + 1
            frame = msgpack.packb([1, [plain]])
            try:
                read = codec.decode(union, frame)[1][0] if union else codec.decode_first(frame, kind)
            except BadFrame as error:
                assert any(word in error.what for word in ("out of bounds", "Expected", "Invalid enum value"))
                continue
            again = json.dumps(msgspec.to_builtins(read, str_keys=True), allow_nan=False, default=repr)
            assert codec.encode(1, [read]) and again
        box[key] = before
    assert tried or not list(numbers_of(plain))


def test_the_refusal_names_the_field_and_the_bound() -> None:
    boost = {"type": "extend-boost", "id": 1, "boost": "last", "seconds": 1e300}
    with pytest.raises(BadFrame, match="seconds is out of bounds") as raised:
        codec.decode("FromClient", msgpack.packb([1, [boost]]))
    assert raised.value.why == "seconds is at most 1e+15"
    started = {"type": "started", "allocation": "j" * 2000}
    with pytest.raises(BadFrame) as raised:
        codec.decode("FromAgent", msgpack.packb([1, [started]]))
    assert raised.value.why == "allocation has at most 1024 characters"


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"lendable": Resources(memory=MOST_NODE_MEMORY + 1)}, "lendable.memory"),
        ({"lendable": Resources(cpu=1 << 50)}, "lendable.cpu"),
        ({"lendable": Resources(gpu=1 << 50)}, "lendable.gpu"),
        ({"memory": 1 << 60}, "memory"),
        ({"cores": (1, 1)}, "cores"),
        ({"labels": {"": "x"}}, "labels"),
        ({"labels": {"room": "\x1b[2J"}}, "labels"),
        ({"hostname": "a\nb"}, "hostname"),
        ({"hostname": "h" * 300}, "hostname"),
        ({"instance": "\0\xff"}, "instance"),
        ({"boot_id": "\u202e"}, "boot_id"),
        ({"gpus": (FACTS.gpus[0], FACTS.gpus[0])}, "gpus"),
    ],
)
def test_facts_that_no_node_has_are_refused(changed: dict[str, Any], field: str) -> None:
    check_facts(FACTS)
    with pytest.raises(BadValue, match="the facts of this node cannot be used") as raised:
        check_facts(msgspec.structs.replace(FACTS, **changed))
    assert raised.value.why.startswith(field)
