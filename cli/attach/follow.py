"""`grid attach` and `grid logs`: the output of a job, gang or array that was submitted before."""

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from distributed_grid.cli.attach.results import check_globs, get_options
from distributed_grid.cli.completion import complete_jobs
from distributed_grid.cli.context import AWAY_SECONDS, Invocation, current, grid_failed, option
from distributed_grid.cli.lazy import Command
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import GroupKind, GroupView, indexes, member_id, words

if TYPE_CHECKING:
    from distributed_grid.cli.attach.attached import Attached
    from distributed_grid.coordinator.client.blocking import GridClient

ALL = "all"
_ATTEMPT = re.compile(r"(.+)\.([1-9]\d{0,8})")

member_option = option("--member", type=int, metavar="N", help="Of an array or gang: only the member with this index.")


@click.command(cls=Command)
@option(
    "--on-exit",
    type=click.Choice(["cancel", "keep"]),
    default="keep",
    help="What happens to it if grid is ended (keep).",
)
@option("--get", "globs", multiple=True, metavar="GLOB", help="Bring matching files back here; repeatable.")
@get_options
@member_option
@click.argument("job", shell_complete=complete_jobs)
def attach(job: str, on_exit: str, globs: tuple[str, ...], force: bool, executable: bool, member: int | None) -> None:
    """Follow a job to its end and exit with its exit code.

    JOB is an id, the beginning of one, a name, or `last`. Its output is printed from the beginning; while the output is
    not read, the job waits, as with a pipe. The first ^C interrupts the job, the second ends it, the third ends only
    this command; other signals leave the job running. Of a gang all members are followed, the output of all but the
    first after their rank, and ^C ends the gang. Of an array all members are followed, after their index, and the exit
    code is the highest of theirs. Exit code 125: bytes are missing.
    """
    invocation = current()
    invocation.failure = grid_failed()
    check_globs(globs)
    grid = invocation.connect(AWAY_SECONDS)
    grid.session.patience = AWAY_SECONDS
    job, group = _resolve(grid, job, member)
    if group is not None and group.kind is GroupKind.ARRAY and globs:
        raise BadValue(
            "--get cannot bring back the files of a whole array", hint=f"grid attach {group.id} --member N --get GLOB"
        )
    attached = _attached(invocation, grid, job, group, owner=on_exit == "cancel")
    code = attached.run()
    if globs:
        from distributed_grid.cli.attach.results import fetch_results

        code = fetch_results(attached, globs, force, executable, code)
    sys.exit(code)


@click.command(cls=Command)
@option("-f", "--follow", is_flag=True, help="Follow the output until the job ends.")
@option("--stdout", "only", flag_value="stdout", help="Only what it wrote to stdout.")
@option("--stderr", "only", flag_value="stderr", help="Only what it wrote to stderr.")
@option("--exit-code", is_flag=True, help="With -f: exit with the job's exit code.")
@option("--attempt", metavar="N", help="Output of this attempt (the last one); all: of each, one after another.")
@member_option
@option("--failed", is_flag=True, help="Of an array: only members that have failed.")
@click.argument("job", shell_complete=complete_jobs)
def logs(
    job: str,
    follow: bool,
    only: str | None,
    exit_code: bool,
    attempt: str | None,
    member: int | None,
    failed: bool,
) -> None:
    """Print the output of a job.

    JOB is an id, the beginning of one, a name, or `last`; JOB.N is its Nth attempt. The job's stdout is printed to
    stdout, its stderr to stderr. For an array the output of all members is printed, each line after its member's index.
    ^C ends only this command. The exit code is 125 if bytes are missing.
    """
    invocation = current()
    grid = invocation.connect()
    job, group = _resolve(grid, job, member)
    many = group is not None and group.kind is GroupKind.ARRAY
    if failed and not many:
        raise BadValue(f"--failed is for an array, and {job} is none", hint=f"grid logs {job}")
    if attempt is None and group is None and (named := _ATTEMPT.fullmatch(job)) and not _known(grid, job):
        job, attempt = named.groups()
    number = None
    if attempt is not None:
        if many:
            raise BadValue("the attempts of a whole array cannot be asked for", hint="name one with --member N")
        number = _attempt(grid, job, attempt)
    streams = (only,) if only else ("stdout", "stderr")
    more: dict[str, Any] = {"failed": failed} if many else {"attempt": number}
    attached = _attached(
        invocation,
        grid,
        job,
        group if many else None,
        owner=False,
        interactive=False,
        until_now=not follow,
        streams=streams,
        verdicts=exit_code,
        reads_along=False,
        **more,
    )
    sys.exit(attached.run())


def _attached(invocation: Invocation, grid: "GridClient", job: str, group: GroupView | None, **how: Any) -> "Attached":
    """Return the follower of a job or a group."""
    if group is None:
        from distributed_grid.cli.attach.attached import Attached

        return Attached(invocation, grid, job=job, **how)
    if group.kind is GroupKind.ARRAY:
        from distributed_grid.cli.attach.array import AttachedArray

        return AttachedArray(invocation, grid, group, **how)
    from distributed_grid.cli.attach.gang import AttachedGang

    return AttachedGang(invocation, grid, group.id, group.count, **how)


def _resolve(grid: "GridClient", ref: str, member: int | None) -> tuple[str, GroupView | None]:
    """Return the job that is meant, or the group. Raises BadValue for a member that does not exist."""
    from distributed_grid.cli.attach.gang import group_of

    group = group_of(grid, ref)
    if member is None:
        return ref, group
    if group is None:
        raise BadValue(
            f"--member {member} of what?", why=f"{ref} is no array and no gang", hint=f"leave it out for {ref}"
        )
    if member not in (indexes(group.array.parts) if group.array is not None else range(group.count)):
        which = words(group.array) if group.array is not None else f"0-{group.count - 1}"
        raise BadValue(f"{group.id} has no member {member}", hint=f"its members are {which.partition('%')[0]}")
    return member_id(group.id, member), None


def _known(grid: "GridClient", ref: str) -> bool:
    """Whether there is a job of that name, dot and number included."""
    from distributed_grid.coordinator.client.session import RequestRefused

    try:
        grid.show(ref)
    except RequestRefused:
        return False
    return True


def _attempt(grid: "GridClient", job: str, text: str) -> int:
    """The number of an attempt; 0: all. Raises BadValue."""
    if text == ALL:
        return 0
    if not text.isdecimal() or not int(text):
        raise BadValue(f"--attempt {text!r} is no attempt", hint="give its number, from 1 on, or all")
    view = grid.show(job)
    if int(text) > view.attempt:
        has = f"it has had {view.attempt}" if view.attempt else "it has had none"
        raise BadValue(f"{view.id} has no attempt {text}", why=has, hint=f"grid logs {view.id} --attempt all")
    return int(text)
