"""Fault points (runtime/faults.py) of modules that are imported already: a forked process puts faults of its own
in place there, and need not import the modules anew."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

_faults: Any = None
_make: Any = None
_made: list[tuple[str, Any, Callable[..., Any]]] = []
"""Each point: its name, its error, and the function that it is before."""


def note() -> None:
    """Note the points of all modules that are imported from now on."""
    global _faults, _make
    _faults = importlib.import_module("distributed_grid.runtime.faults")
    _make = _faults.fault

    def fault(name: str, error: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            _made.append((name, error, function))
            return _make(name, error)(function)  # type: ignore[no-any-return]

        return decorate

    _faults.fault = fault


def arm() -> None:
    """Put in place what GRID_FAULTS asks for, also in modules that are imported later. Ends the process where it does
    not say what it may say."""
    _faults._ASKED = _faults._asked()
    for name, error, function in _made:
        owner: Any = sys.modules[function.__module__]
        *within, last = function.__qualname__.split(".")
        for part in within:
            owner = getattr(owner, part)
        assert vars(owner)[last] is function
        setattr(owner, last, _make(name, error)(function))
