"""Frozen dataclasses that share their methods. `dataclass` writes and compiles six functions for each class; for all
sections of the configuration that takes a tenth of the time in which an agent starts."""

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

__all__ = ["section"]

if TYPE_CHECKING:
    from dataclasses import dataclass as section
else:
    T = TypeVar("T")

    def section(*, frozen: Literal[True]) -> Callable[[type[T]], type[T]]:
        """Like `dataclass(frozen=True)`, for classes with few objects."""
        return _made

    def _made(cls: type[T]) -> type[T]:
        for method in (__init__, __repr__, __eq__, __hash__, __setattr__, __delattr__):
            setattr(cls, method.__name__, method)
        return dataclass(init=False, repr=False, eq=False)(cls)


def __init__(self: Any, *values: Any, **named: Any) -> None:
    known = {one.name: one for one in fields(self)}
    given = dict(zip(known, values, strict=False)) | named
    if len(values) > len(known) or len(given) < len(values) + len(named) or given.keys() - known.keys():
        wrong = ", ".join(sorted(given.keys() - known.keys())) or "too many, or one of them twice"
        raise TypeError(f"{type(self).__qualname__}() got unexpected arguments: {wrong}")
    for name, one in known.items():
        if name not in given and one.default is MISSING and one.default_factory is MISSING:
            raise TypeError(f"{type(self).__qualname__}() is missing the argument {name!r}")
        default = one.default if one.default_factory is MISSING or name in given else one.default_factory()
        vars(self)[name] = given.get(name, default)


def __repr__(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{one.name}={getattr(self, one.name)!r}' for one in fields(self))})"


def __eq__(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def __hash__(self: Any) -> int:
    return hash(_values(self))


def __setattr__(self: Any, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def __delattr__(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, one.name) for one in fields(self))
