"""Our end of the far side: finds a Python there, sends it `far_side.py` with one call, and reads what came of it."""

import io
import json
import shlex
import tarfile
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from distributed_grid.protocol.errors import GridError
from distributed_grid.push.plan import PYTHON
from distributed_grid.push.ssh import Host

NAMES = ("python3", *(f"python3.{minor}" for minor in range(16, PYTHON[1] - 1, -1)))
FIND = """
for name in "$@"; do
    found=$(command -v "$name") || continue
    "$found" -c 'import sys; sys.exit(sys.version_info < ({wanted}))' && echo "$found" && exit 0
    seen="$seen $("$found" -V 2>&1)"
done
echo "$seen" >&2
exit 3
"""
READ = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'far_side', 'exec'))"
UNPACK = 'import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode="r|").extractall(sys.argv[1])'
HERE = "distributed_grid.push"
PART = "far_service"
MODULES = """
import sys, types
for name in ("distributed_grid", "{here}", "{here}.{part}"):
    sys.modules[name] = types.ModuleType(name)
exec({source!r}, sys.modules["{here}.{part}"].__dict__)
"""
"""What there is of our packages on the far side."""
PROGRAM = (
    MODULES.format(here=HERE, part=PART, source=(files(HERE) / f"{PART}.py").read_text())
    + (files(HERE) / "far_side.py").read_text()
)


class Far:
    """A host, and the Python there that does what is asked. `python` empty: the first one that is new enough."""

    def __init__(self, host: Host, python: str = "") -> None:
        self._host = host
        self._named = python
        self._python = ""

    async def call(self, what: str, /, **told: Any) -> Any:
        """Do one of the far side's `CALLS` there. Raises GridError."""
        program = f"{PROGRAM}\nmain({what!r}, {json.dumps(told)!r})\n".encode()
        command = "exec " + shlex.join((await self._find(), "-c", READ, str(len(program))))
        ran = await self._host.run(command, program, hold=True)
        try:
            answer: dict[str, Any] = json.loads(ran.out.splitlines()[-1])
        except (ValueError, IndexError):
            said = ran.err.decode(errors="replace").strip().splitlines() or [f"exit code {ran.status}"]
            raise GridError(f"{self._host.target} did not do what was asked ({what})", why=said[-1]) from None
        if "done" not in answer:
            raise GridError(f"{self._host.target}: {answer['what']}", answer["why"], answer["hint"])
        return answer["done"]

    async def copy(self, paths: Iterable[Path], folder: str) -> None:
        """Copy these files into a folder there."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path in paths:
                archive.add(path, path.name, filter=_plain)
        command = "exec " + shlex.join((await self._find(), "-c", UNPACK, folder))
        ran = await self._host.run(command, packed.getvalue())
        if ran.status:
            said = ran.err.decode(errors="replace").strip().splitlines() or [f"exit code {ran.status}"]
            raise GridError(f"copying to {self._host.target} failed", why=said[-1])

    async def _find(self) -> str:
        """The Python to use there. Raises GridError where none is new enough."""
        if not self._python:
            wanted = ", ".join(map(str, PYTHON))
            names = [self._named] if self._named else NAMES
            command = shlex.join(("sh", "-s", "-", *names))
            ran = await self._host.run(command, FIND.replace("{wanted}", wanted).encode())
            if ran.status:
                seen = " ".join(ran.err.decode(errors="replace").split())
                raise GridError(
                    f"{self._host.target} has no Python that is new enough"
                    + (f" at {self._named}" if self._named else ""),
                    why=f"the grid needs {'.'.join(map(str, PYTHON))} or newer"
                    + (f"; there is {seen}" if ran.status == 3 and seen else ""),
                    hint="install one there, or name it with --python PATH",
                )
            self._python = ran.out.decode(errors="replace").strip().splitlines()[-1]
        return self._python


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A file as it is copied: of nobody's, for the user who gets it alone."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member
