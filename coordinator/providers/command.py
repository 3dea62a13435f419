"""Machines by the user's own programs: `create`, `list` and `end`, each with JSON on stdin and stdout.

`create` gets the machine, and answers `{"handle": …}`; called again with the same `name` it must answer for the same
machine. `end` gets `name` and `handle`, and answers `{"there": false}` if there is no such machine. `list` gets the
`grid`, and answers `{"machines": [{"handle", "name", "pool", …}]}` with all machines of this grid that exist or are
being created. Each may answer `{"error": KIND, "text": …}` instead (docs/scaling.md). After an exit code other than 0,
or an answer that cannot be read, it is not known what was done.
"""

import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.coordinator.providers.base import (
    CloudProviderBase,
    ProviderRefused,
    WorkerSpec,
    machine_json,
)

T = TypeVar("T")

SECONDS = 40.0
"""Time-out of a program (s): less than what the coordinator waits for."""
LATEST = 1.0
"""Seconds after that time-out in which `timeout` of coreutils ends a program whose caller was killed itself."""
ANSWER_BYTES = 8 << 20
ERRORS = (Answer.CAPACITY, Answer.QUOTA, Answer.THROTTLED, Answer.BAD_TYPE, Answer.CREDENTIALS, Answer.LOST)
"""Kinds of errors that a program may name; any other word means that it refuses."""


class _Created(msgspec.Struct):
    handle: str


class _Ended(msgspec.Struct):
    there: bool = True


class _List(msgspec.Struct):
    machines: list[Listed]


class _Error(msgspec.Struct):
    error: str = ""
    text: str = ""


class CommandProvider(CloudProviderBase):
    """`settings`: the command lines `create`, `list` and `end`; no shell runs them. `seconds`: their time-out."""

    def __init__(self, grid: str, settings: Mapping[str, Any]) -> None:
        super().__init__(grid, settings)
        missing = [name for name in ("create", "list", "end") if not settings.get(name)]
        if missing:
            raise ProviderRefused(Answer.CREDENTIALS, f"providers.command.{missing[0]} is not set")
        self._argv = {name: shlex.split(settings[name]) for name in ("create", "list", "end")}
        self._seconds = float(settings.get("seconds", SECONDS))

    def create_worker(self, spec: WorkerSpec) -> str:
        """Run the program `create`."""
        told = {**msgspec.to_builtins(spec), "grid": self.grid, "machine": machine_json(spec)}
        del told["age"]  # asked again, a program is told the same
        return self._run("create", told, _Created).handle or spec.name

    def terminate_worker(self, name: str, handle: str = "") -> bool:
        """Run the program `end`."""
        return self._run("end", {"grid": self.grid, "name": name, "handle": handle}, _Ended).there

    def list_workers(self) -> list[Listed]:
        """Run the program `list`."""
        return self._run("list", {"grid": self.grid}, _List).machines

    def _run(self, what: str, told: dict[str, Any], answers: type[T]) -> T:
        argv = self._argv[what]
        if shutil.which(argv[0]) is None:
            why = f"{argv[0]} cannot be run ({what}): there is no such program"
            raise ProviderRefused(Answer.CREDENTIALS, why)
        try:
            process = subprocess.Popen(
                ["timeout", "--signal=KILL", f"{self._seconds + LATEST:.3f}", *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            why = f"timeout of coreutils, which runs {argv[0]} ({what}), cannot be run: {error.strerror or error}"
            raise ProviderRefused(Answer.CREDENTIALS, why) from None
        late = threading.Timer(self._seconds, _kill, (process.pid,))
        late.start()
        try:
            out, err = process.communicate(msgspec.json.encode(told))
        finally:
            timed_out = not late.is_alive()
            late.cancel()
        if timed_out:
            raise ProviderRefused(Answer.LOST, f"{argv[0]} ({what}) took more than {self._seconds:g} s, and was killed")
        said = err.decode(errors="replace").strip().splitlines()
        if process.returncode:
            last = said[-1][:500] if said else "it says nothing"
            raise ProviderRefused(Answer.LOST, f"{argv[0]} ({what}) failed with code {process.returncode}: {last}")
        if len(out) > ANSWER_BYTES:
            why = f"{argv[0]} ({what}) answers {len(out)} bytes; {ANSWER_BYTES} are the most"
            raise ProviderRefused(Answer.LOST, why)
        if not out.strip():
            raise ProviderRefused(Answer.LOST, f"{argv[0]} ({what}) answers nothing")
        with suppress(msgspec.DecodeError):
            refused = msgspec.json.decode(out, type=_Error)
            if refused.error:
                raise ProviderRefused(_kind(refused.error), refused.text or refused.error)
        try:
            return msgspec.json.decode(out, type=answers)
        except msgspec.DecodeError as error:
            raise ProviderRefused(Answer.LOST, f"{argv[0]} ({what}) answers what cannot be read: {error}") from None


def _kind(said: str) -> Answer:
    found = next((one for one in ERRORS if one.value == said), None)
    return Answer.REFUSED if found is None else found


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
