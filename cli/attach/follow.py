"""`grid attach` and `grid logs`: the output of a job that is there already."""

import sys

import click

from distributed_grid.cli.attach.results import get_options
from distributed_grid.cli.completion import complete_jobs
from distributed_grid.cli.context import AWAY_SECONDS, current

GRID_FAILED = 125


@click.command()
@click.option("--on-exit", type=click.Choice(["cancel", "keep"]), default="keep", help="If we are ended (keep).")
@click.option("--get", "globs", multiple=True, metavar="GLOB", help="Bring matching files back here; repeatable.")
@get_options
@click.argument("job", shell_complete=complete_jobs)
def attach(job: str, on_exit: str, globs: tuple[str, ...], force: bool, executable: bool) -> None:
    """Follow a job to its end and exit with its exit code.

    JOB is an id, the beginning of one, a name, or `last`. Its output is printed from the beginning. ^C interrupts the
    job, twice ends it, three times leaves; ended otherwise, we leave the job running. Of a gang all members are
    followed, those beside the first behind their rank, and ^C ends it.
    """
    from distributed_grid.cli.attach.attached import Attached
    from distributed_grid.cli.attach.gang import AttachedGang, gang_of
    from distributed_grid.protocol.globs import parse_glob

    invocation = current()
    invocation.failure = GRID_FAILED
    for glob in globs:
        parse_glob(glob)
    owner = on_exit == "cancel"
    grid = invocation.connect(AWAY_SECONDS)
    grid.session.patience = AWAY_SECONDS
    gang = gang_of(grid, job)
    attached = Attached(invocation, grid, job=job, owner=owner)
    if gang is not None:
        attached = AttachedGang(invocation, grid, gang.id, gang.count, owner=owner)
    code = attached.run()
    if globs:
        from distributed_grid.cli.attach.results import bring_back

        code = bring_back(attached, globs, force, executable, code)
    sys.exit(code)


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("--stdout", "only", flag_value="stdout", help="Only what it wrote to stdout.")
@click.option("--stderr", "only", flag_value="stderr", help="Only what it wrote to stderr.")
@click.option("--exit-code", is_flag=True, help="With -f: exit with the job's exit code.")
@click.argument("job", shell_complete=complete_jobs)
def logs(job: str, follow: bool, only: str | None, exit_code: bool) -> None:
    """Print the output of a job.

    JOB is an id, the beginning of one, a name, or `last`. What it wrote to stdout goes to stdout, the rest to stderr.
    ^C leaves; the job goes on.
    """
    from distributed_grid.cli.attach.attached import Attached

    invocation = current()
    streams = (only,) if only else ("stdout", "stderr")
    attached = Attached(
        invocation,
        invocation.connect(),
        job=job,
        owner=False,
        interactive=False,
        until_now=not follow,
        streams=streams,
        verdicts=exit_code,
    )
    sys.exit(attached.run())
