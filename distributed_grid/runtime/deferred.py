"""Modules that others import and that our programs do not use: each is loaded when something first uses it."""

import importlib.util
import sys
from threading import RLock
from typing import Any

WEBSOCKETS = ("importlib.metadata", "urllib.request")
"""What websockets imports for its development versions, and to find a proxy."""


def defer(*names: str) -> None:
    """Put these modules in sys.modules without running them. The first use of a name in one runs it."""
    for name in names:
        if name not in sys.modules:
            _defer(name)


def _defer(name: str) -> None:
    # Not importlib's LazyLoader: it runs a module as soon as that is imported a second time.
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    loader, module, lock = spec.loader, importlib.util.module_from_spec(spec), RLock()
    started = False

    def load(attribute: str) -> Any:
        nonlocal started
        with lock:
            if not started:
                started = True
                loader.exec_module(module)
        try:
            return vars(module)[attribute]
        except KeyError:
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}") from None

    module.__getattr__ = load  # type: ignore[method-assign]
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
