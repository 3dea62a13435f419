"""Where the services get their loggers: structlog, imported without rich.

structlog imports rich for tracebacks on a terminal where it is installed, perhaps for something else. That takes longer
than all else that an agent imports, and what it prints of a traceback has the values of all variables, secrets among
them. Here tracebacks on a terminal are plain, whatever is installed.

Until a service configures its logs they go to stderr, too: stdout is for what a command was asked for.
"""

import sys
from types import ModuleType
from typing import Any


def _without(name: str) -> ModuleType:
    """structlog, as where the package `name` is not installed."""
    absent = name not in sys.modules
    if absent:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it raises ImportError
    try:
        import structlog
    finally:
        if absent:
            del sys.modules[name]
    return structlog


def _to_stderr(*_: Any) -> Any:
    return structlog.PrintLogger(sys.stderr)


structlog = _without("rich")
structlog.configure(logger_factory=_to_stderr)
get_logger = structlog.get_logger
