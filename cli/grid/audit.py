"""`grid audit`: whether the coordinator's log of requests is what was written."""

from dataclasses import asdict
from pathlib import Path

import click

from distributed_grid.cli.context import common, current, printable
from distributed_grid.cli.lazy import LazyGroup


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@common
def audit() -> None:
    """Look at the coordinator's log of requests: verify."""


@audit.command()
@common
@click.option("--state-dir", metavar="DIR", help="Where the coordinator keeps its state.")
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
def verify(state_dir: str | None, file: Path | None) -> None:
    """Say whether every line of the audit log is as it was written and in its place.

    Of this machine's coordinator, which may run: audit.log and what was turned over, to the line that its store knows;
    or of one FILE alone. What does not fit first is said, and the exit code is 1.
    """
    invocation = current()
    from distributed_grid.cli import formatting
    from distributed_grid.coordinator.audit import verify as audit_verify
    from distributed_grid.protocol.errors import GridError

    if file is not None:
        found = audit_verify.verify(audit_verify.read([file]))
    else:
        flags = {} if state_dir is None else {"coordinator.state_dir": state_dir}
        file = Path(invocation.whole_config(flags).coordinator_state_dir()) / "audit.log"
        found = audit_verify.verify_own(file.parent)
    if not found.lines:
        raise GridError(f"there is no audit log at {file}", hint="--state-dir names where the coordinator works")
    if invocation.output in ("json", "jsonl"):
        formatting.emit_json(invocation, asdict(found))
        return
    lines = [f"{found.lines} lines in order, numbers {found.first} to {found.last}, {found.since} to {found.until}"]
    lines += [f"the last one's hash is {found.hash}"]
    lines += [f"the store knows number {found.anchored}, and it is as it was"] if found.anchored else []
    lines += [f"{found.first - 1} lines before them have been turned over and are gone"] if found.first > 1 else []
    lines += [f"{found.missing} found no room on the disk and were not written"] if found.missing else []
    formatting.emit("".join(printable(line) + "\n" for line in lines))
