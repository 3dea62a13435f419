"""Defers modules that other packages import and that the grid's programs do not use: each is loaded when something
first uses it."""

import sys
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

WEBSOCKETS = ("importlib.metadata", "urllib.request")
"""What websockets imports for its development versions, and to find a proxy."""
SELDOM_USED = (
    *("copy", "fnmatch", "inspect", "ipaddress", "ntpath", "selectors", "traceback"),
    *("msgspec.inspect", "msgspec.json", "msgspec.toml", "msgspec.yaml"),
)
"""What click, dataclasses, logging, msgspec, pathlib, socket and urllib import, and a short command does not use."""


def defer(*names: str) -> None:
    """Find these modules when they are imported, and run them when a name in one is first used. Modules that are loaded
    already stay as they are."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.names.update(names)


class _Finder:
    """Finds the modules of these names as the finders behind it do."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> "ModuleSpec | None":
        if name not in self.names:
            return None
        others = (one for one in sys.meta_path if one is not self)
        spec = next((found for one in others if (found := one.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]  # the base class imports much
        return spec


class _Loader:
    """A replacement of importlib's LazyLoader, which runs a module as soon as it is imported a second time."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: "ModuleSpec") -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        lock, started, loader = RLock(), False, self._loader

        def load(attribute: str) -> Any:
            nonlocal started
            with lock:
                if not started:
                    started = True
                    if module.__spec__ is not None:
                        module.__spec__.loader = module.__loader__ = loader
                    loader.exec_module(module)
            try:
                return vars(module)[attribute]
            except KeyError:
                raise AttributeError(f"module {module.__name__!r} has no attribute {attribute!r}") from None

        module.__getattr__ = load  # type: ignore[method-assign]


_finder: Any = _Finder()
