"""`grid support-dump`: diagnostics in one file, with secrets removed. Only chosen parts are included; text in them that
others may have written is redacted in addition."""

import io
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import tarfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, complete_files, current
from distributed_grid.cli.lazy import Command
from distributed_grid.protocol.errors import BadValue, GridError

REDACTED = "[hidden]"
_WORDS = "secret|token|passw|credential|apikey|api_key"
_PATTERNS = [
    (re.compile(r"-----BEGIN [^-]+-----.*?(-----END [^-]+-----|\Z)", re.DOTALL), REDACTED),
    (re.compile(r"grid1(\.[\w-]+)+"), REDACTED),  # an invitation
    (re.compile(r"(?<=://)[^/@\s]+@"), f"{REDACTED}@"),  # a name and password in an address
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), rf"\1 {REDACTED}"),
    (re.compile(rf"(?i)([\w-]*({_WORDS})[\w-]*[\"']?\s*[:=]\s*)\S+"), rf"\1{REDACTED}"),
    (re.compile(r"(?<![\w/+=-])[\w+=-]{32,}(?![\w/+=-])"), REDACTED),  # long, and without a break: keys and hashes
]
_SAFE = {
    "timestamp", "level", "allocation", "allocations", "job", "jobs", "node", "grid", "epoch", "incarnation", "cores",
    "memory", "gpus", "lends", "state_dir", "pid", "role", "seconds", "bytes", "count", "size", "running_for", "port",
}  # fmt: skip
"""What log lines say that holds no text of others. What else they say is scrubbed, or left out where it is not text."""


def redact(text: str) -> str:
    """The text without what looks like a secret."""
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def redact_all(value: Any) -> Any:
    """The same for all text in lists and maps."""
    match value:
        case str():
            return redact(value)
        case dict():
            return {key: redact_all(one) for key, one in value.items()}
        case list() | tuple():
            return [redact_all(one) for one in value]
    return value


def redact_log_line(line: str) -> str:
    """A line of a service's log without secrets."""
    try:
        told = json.loads(line)
    except ValueError:
        return redact(line)
    if not isinstance(told, dict):
        return redact(line)
    return json.dumps({key: value if key in _SAFE else redact(str(value)) for key, value in told.items()})


LINES = 500
_SHOWN = {"host", "gpu_backend", "cgroup", "gang_ports", "run_as", "walls", "trust", "name", "state_dir", "strategy"}
"""Settings of text whose values say nothing that has to stay here."""


@click.command("support-dump", cls=Command)
@click.option(
    "--state-dir", metavar="DIR", shell_complete=complete_files, help="State directory of this machine's coordinator."
)
@click.option(
    "--agent-state-dir", metavar="DIR", shell_complete=complete_files, help="State directory of this machine's agent."
)
@click.argument("file", metavar="[FILE.tar.gz]", shell_complete=complete_files, default="")
def support_dump(state_dir: str | None, agent_state_dir: str | None, file: str) -> None:
    """Collect diagnostics in one file, with secrets removed.

    It contains versions, the configuration without free text, the findings of `grid doctor`, the last log lines, the
    check and size of the store, and kinds and ids of the latest events. It contains no keys, tokens, commands,
    environments or output of jobs. Read it before you send it: all files are text."""
    invocation = current()
    target = Path(file or f"grid-support-{platform.node()}-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    if target.exists():
        raise BadValue(f"{target} is there already", hint="give another name")
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise GridError(f"{target} cannot be written", why=error.strerror or "") from None
    names = []
    try:
        with open(fd, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, content in _parts(invocation, state_dir, agent_state_dir):
                data = content.encode(errors="replace")
                entry = tarfile.TarInfo(f"grid-support/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(data))
                names.append(name)
    except BaseException:
        target.unlink(missing_ok=True)  # a part of it is of no use, and would be in the way of the next one
        raise
    formatting.show(invocation, {"path": str(target), "parts": names}, path := formatting.lines([target]), path)
    if invocation.output not in ("json", "jsonl"):
        invocation.say(f"it has {', '.join(names)}; look through it before you send it")


def _parts(invocation: Invocation, state_dir: str | None, agent_state_dir: str | None) -> Iterator[tuple[str, str]]:
    from distributed_grid.cli.services.doctor import examine
    from distributed_grid.cli.services.service import agent_place, coordinator_place

    yield "versions.json", _json(_versions())
    yield "doctor.json", _json([redact_all(one._asdict()) for one in examine(invocation, state_dir, agent_state_dir)])
    flags = {"coordinator.state_dir": state_dir, "agent.state_dir": agent_state_dir}
    try:
        config = invocation.whole_config(flags)
    except GridError:
        return  # the doctor has said what is wrong with it
    yield "configuration.json", _json([_setting(row) for row in config.rows()])
    yield from _coordinator(coordinator_place(config))
    yield from _agent(agent_place(config))
    yield from _journals()


def _json(content: Any) -> str:
    return json.dumps(content, indent=1, default=str) + "\n"


def _versions() -> dict[str, Any]:
    from importlib.metadata import distributions

    seen = {one.metadata["Name"]: one.version for one in distributions() if one.metadata["Name"]}
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "packages": dict(sorted(seen.items())),
    }


def _setting(row: Any) -> dict[str, Any]:
    """Return a setting with its origin; texts and maps that a person wrote are redacted."""
    match row.value:
        case dict():
            value: Any = {key: REDACTED for key in row.value}
        case bool() | int() | float() | None:
            value = row.value
        case str() | tuple() if row.name.rpartition(".")[2] not in _SHOWN and row.origin != "default":
            value = REDACTED if row.value else row.value
        case _:
            value = redact(str(row.value))
    return {"name": redact(row.name), "value": value, "origin": redact(row.origin)}


def _coordinator(state_dir: Path) -> Iterator[tuple[str, str]]:
    from distributed_grid.coordinator import diagnostics

    if not diagnostics.is_master(state_dir):
        return
    yield "coordinator/store.json", _json(redact_all(diagnostics.store(state_dir)))
    yield "coordinator/events.jsonl", "".join(json.dumps(one) + "\n" for one in diagnostics.last_events(state_dir))
    yield "coordinator/files.txt", _listing(state_dir)


def _agent(state_dir: Path) -> Iterator[tuple[str, str]]:
    from distributed_grid.agent import diagnostics

    if not diagnostics.is_node(state_dir):
        return
    try:
        found: Any = diagnostics.check_state(state_dir)
    except GridError as error:
        found = [error.what]
    yield "agent/check.json", _json(redact_all(found))
    yield "agent/files.txt", _listing(state_dir)
    try:
        with (state_dir / "supervisor.log").open(errors="replace") as log:
            yield "agent/supervisor.log", "".join(redact(line) for line in deque(log, LINES))
    except OSError:
        return


def _listing(folder: Path) -> str:
    """The names, modes, owners and sizes of what lies in a state directory and in its folders, not deeper."""
    lines = []
    below = (path for path in folder.glob("*/*") if path.parent.name != "blobs")  # named by what is in them
    for path in [folder, *sorted(folder.glob("*")), *sorted(below)][: 10 * LINES]:
        try:
            seen = path.lstat()
        except OSError:
            continue
        lines.append(f"{stat.filemode(seen.st_mode)} {seen.st_uid:>6} {seen.st_size:>12} {path.relative_to(folder)}\n")
    return "".join(lines)


def _journals() -> Iterator[tuple[str, str]]:
    """The last log lines of the grid's services that are installed here."""
    from distributed_grid.cli.services.systemd import Installed

    program = shutil.which("journalctl")
    for kind in ("coordinator", "agent"):
        for own in (False, True):
            at = Installed(kind, own)
            if program is None or not at.path.exists():
                continue
            argv = [program, *at.words, "--unit", at.unit, "--lines", str(LINES), "--no-pager", "--output", "cat"]
            try:
                said = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=60).stdout
            except (OSError, subprocess.TimeoutExpired) as error:
                said = f"the journal of {at.unit} cannot be read: {error}"
            yield f"{kind}/service.log", "".join(redact_log_line(line) + "\n" for line in said.splitlines())
