"""Refuses a second thread in an object that one thread at a time may use, before anything is done."""

from _thread import RLock
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from distributed_grid.protocol.errors import GridError

P = ParamSpec("P")
S = TypeVar("S", bound="Exclusive")
T = TypeVar("T")


class Exclusive:
    """Base of a class with methods that `exclusive` marks: one thread at a time may be in them. One such method may
    call another, and another thread may call them later."""

    def __init__(self) -> None:
        self._in_use = RLock()


def exclusive(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a method raise GridError in a second thread while another thread is in such a method."""

    @wraps(method)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        lock: Any = self._in_use
        if not lock.acquire(blocking=False):
            raise GridError(
                f"this {type(self).__name__} is in use by another thread",
                why="it has one connection, and a thread waits there for an answer",
                hint="connect a client in each thread, or share one of asyncio",
            )
        try:
            return method(self, *args, **kwargs)
        finally:
            lock.release()

    return guarded
