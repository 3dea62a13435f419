"""Records that were written before a bound was set, or by a version with wider ones, are read all the same: what lies
outside its bounds is moved to the nearest value within. Peers are not read so: see codec.py."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")
_LISTS = (inspect.ListType, inspect.VarTupleType, inspect.TupleType)


def reader(kind: type[T]) -> Callable[[bytes], T]:
    """What reads a record (msgpack) of this kind. Raises msgspec.DecodeError for what is none of it at all."""
    strict = msgspec.msgpack.Decoder(kind).decode

    def read(body: bytes) -> T:
        try:
            return strict(body)
        except msgspec.ValidationError:
            made: T = convert(msgspec.msgpack.decode(body), kind)
            return made

    return read


def convert(plain: Any, kind: Any, dec_hook: Callable[[Any, Any], Any] | None = None) -> Any:
    """The same of plain values. Raises msgspec.ValidationError."""
    try:
        return msgspec.convert(plain, kind, dec_hook=dec_hook)
    except msgspec.ValidationError:
        return msgspec.convert(_within(inspect.type_info(kind), plain), kind, dec_hook=dec_hook)


def _within(kind: inspect.Type, value: Any) -> Any:
    match kind:
        case inspect.Metadata():
            return _within(kind.type, value)
        case inspect.IntType() if isinstance(value, int) and not isinstance(value, bool):
            return _nearest(value, kind.ge, kind.le)
        case inspect.FloatType() if isinstance(value, int | float) and not isinstance(value, bool):
            return _nearest(0.0 if math.isnan(value) else value, kind.ge, kind.le)
        case inspect.StrType() if isinstance(value, str) and kind.max_length is not None:
            return value[: kind.max_length]
        case inspect.StructType():
            return _struct(kind, value)
        case inspect.DictType() if isinstance(value, dict):
            return {_within(kind.key_type, key): _within(kind.value_type, item) for key, item in value.items()}
        case inspect.ListType() | inspect.VarTupleType() if isinstance(value, list | tuple):
            return [_within(kind.item_type, item) for item in value]
        case inspect.TupleType() if isinstance(value, list | tuple) and len(value) == len(kind.item_types):
            return [_within(item_kind, item) for item_kind, item in zip(kind.item_types, value, strict=True)]
        case inspect.UnionType():
            return _within(_meant(kind, value), value)
        case _:
            return value


def _nearest(value: float, least: float | None, most: float | None) -> float:
    if least is not None and value < least:
        return least
    return most if most is not None and value > most else value


def _struct(kind: inspect.StructType, value: Any) -> Any:
    if kind.array_like and isinstance(value, list | tuple):
        first = 1 if kind.tag is not None else 0
        kinds: list[inspect.Type] = [inspect.AnyType()] * first + [field.type for field in kind.fields]
        kinds += [inspect.AnyType()] * (len(value) - len(kinds))
        return [_within(one, item) for one, item in zip(kinds, value, strict=False)]
    if not kind.array_like and isinstance(value, dict):
        kinds_by_name = {field.encode_name: field.type for field in kind.fields}
        return {name: _within(kinds_by_name.get(name, inspect.AnyType()), item) for name, item in value.items()}
    return value


def _meant(union: inspect.UnionType, value: Any) -> inspect.Type:
    """Which of its kinds the value is."""
    structs = [one for one in union.types if isinstance(one, inspect.StructType)]
    for one in structs:
        if one.tag is not None and _tag(value, one) == one.tag:
            return one
    if len(structs) == 1 and isinstance(value, dict | list):
        return structs[0]
    for other in union.types:
        plain = (
            (isinstance(other, inspect.IntType) and isinstance(value, int))
            or (isinstance(other, inspect.FloatType) and isinstance(value, int | float))
            or (isinstance(other, inspect.StrType) and isinstance(value, str))
            or (
                isinstance(other, inspect.ListType | inspect.VarTupleType | inspect.TupleType)
                and isinstance(value, list)
            )
            or (isinstance(other, inspect.DictType) and isinstance(value, dict))
        )
        if plain:
            return other
    return inspect.AnyType()


def _tag(value: Any, kind: inspect.StructType) -> Any:
    if kind.array_like:
        return value[0] if isinstance(value, list | tuple) and value else None
    return value.get(kind.tag_field) if isinstance(value, dict) else None
