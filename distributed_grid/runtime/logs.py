"""The loggers of the services: structlog, imported without rich.

structlog imports rich for tracebacks on a terminal if it is installed. That import takes longer than all other imports
of an agent, and rich prints the values of all variables in a traceback, secrets among them. Here tracebacks on a
terminal are plain, whatever is installed.

Until a service configures its logs they go to stderr: stdout is for the output of commands.
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
