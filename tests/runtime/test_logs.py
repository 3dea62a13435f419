"""The loggers of the services."""

import subprocess
import sys

CODE = """
import sys
from distributed_grid.runtime import logs
print('rich' in sys.modules, 'structlog' in sys.modules, logs.get_logger is sys.modules['structlog'].get_logger)
try:
    import rich
except ImportError as error:
    rich = None
print(rich is None or rich.__name__ == 'rich')
"""


def test_structlog_is_loaded_without_rich_and_rich_can_be_loaded_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False True True", "True"]


def test_a_traceback_on_a_terminal_is_plain() -> None:
    code = (
        "from distributed_grid.runtime.logs import structlog\n"
        "print(structlog.dev.ConsoleRenderer()._exception_formatter is structlog.dev.plain_traceback)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_what_is_logged_before_a_service_configures_its_logs_goes_to_stderr() -> None:
    code = "from distributed_grid.runtime.logs import get_logger; get_logger('x').warning('a word')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, "a word" in done.stderr) == ("", True)
