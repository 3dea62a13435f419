"""`grid coordinator accept-loss`: the operator's choice to go on with a store that has lost commits."""

import os
import sys
from pathlib import Path

import click

from distributed_grid.cli import words
from distributed_grid.cli.connection import user_name
from distributed_grid.cli.invocation import common, current, printable
from distributed_grid.protocol.errors import GridError


@click.command()
@common
@click.option("--state-dir", metavar="DIR", help="Where the coordinator keeps its state.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--resume", is_flag=True, help="Let waiting jobs run: nothing was lost that matters.")
def accept_loss(state_dir: str | None, yes: bool, resume: bool) -> None:
    """Go on although the coordinator's store has lost commits, is gone, or cannot be read.

    Says what is known to be lost and asks. Jobs that wait may have run: they are ended as `restored`, to be submitted
    again, unless --resume says that nothing ran. What runs on nodes runs on, and their results are taken. Jobs that
    are lost are not known any more. With a backup, `grid coordinator restore` may be better. The coordinator may run
    or not."""
    from distributed_grid.coordinator.keeping_loss import accept, known

    invocation = current()
    flags = {} if state_dir is None else {"coordinator.state_dir": state_dir}
    place = Path(invocation.whole_config(flags).coordinator_state_dir())
    found = known(place)
    invocation.say(f"what is known to be lost in {place}:")
    for one in found.found:
        invocation.say(f"  {printable(one)}")
    if found.unreadable:
        invocation.say("  the store cannot be read: it is set aside, and a new one begins, without any of its jobs")
    if found.waiting and not resume:
        invocation.say(f"{found.waiting} jobs that wait end as `restored`, since they may have run")
    if not yes:
        if not sys.stdin.isatty():
            raise GridError("nobody is there to be asked", hint="grid coordinator accept-loss --yes")
        if not click.confirm("Go on without what is lost?", err=True):
            raise GridError("nothing is accepted, and nothing was changed")
    said = accept(place, f"{user_name()} (uid {os.getuid()})", resume)
    if invocation.output in ("json", "jsonl"):
        words.emit_json(invocation, {"state_dir": str(place), "found": list(found.found), "done": said})
    else:
        words.emit(f"{printable(said)}\n")
