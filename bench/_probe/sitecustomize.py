"""On the module path of a profiled grid's services: makes each of them one that can be profiled, and has their
supervisors started by `toggled.py` beside this file.
"""

import os
import runpy
import subprocess
from pathlib import Path
from typing import Any

FOLDER = "GRID_BENCH_PROFILE"
TOGGLED = str(Path(__file__).with_name("toggled.py"))
MAIN = 5
"""Which word of the command names a supervisor's program."""


def through(command: Any, folder: str) -> Any:
    """The command as it is, or, of a supervisor, with our own program before its."""
    if isinstance(command, list) and len(command) > MAIN and str(command[MAIN]).endswith("supervisor/main.py"):
        return [*command[:MAIN], TOGGLED, folder, *command[MAIN:]]
    return command


def install(folder: str) -> None:
    """Profile this process on demand, and the supervisors that it starts."""
    runpy.run_path(TOGGLED)["install"](folder)
    init = subprocess.Popen.__init__

    def started(self: Any, args: Any, *more: Any, **named: Any) -> None:
        init(self, through(args, folder), *more, **named)

    subprocess.Popen.__init__ = started  # type: ignore[method-assign]


if FOLDER in os.environ:
    install(os.environ[FOLDER])
