"""`grid attach` and `grid logs`: the output of a job that is there already."""

import sys

import click

from distributed_grid.cli.completion_of import jobs as complete_jobs
from distributed_grid.cli.invocation import common, current

GRID_FAILED = 125


@click.command()
@common
@click.option("--on-exit", type=click.Choice(["cancel", "keep"]), default="keep", help="If we are ended (keep).")
@click.option("--get", "globs", multiple=True, metavar="GLOB", help="Bring matching files back here; repeatable.")
@click.argument("job", shell_complete=complete_jobs)
def attach(job: str, on_exit: str, globs: tuple[str, ...]) -> None:
    """Follow a job to its end and exit with its exit code.

    JOB is an id, the beginning of one, a name, or `last`. Its output is printed from the beginning. ^C interrupts the
    job, twice ends it, three times leaves; ended otherwise, we leave the job running. Of a gang all members are
    followed, those beside the first behind their rank, and ^C ends it.
    """
    from distributed_grid.cli.attached import Attached
    from distributed_grid.cli.attached_gang import AttachedGang, gang_of
    from distributed_grid.protocol.globs import parse_glob

    invocation = current()
    invocation.failure = GRID_FAILED
    for glob in globs:
        parse_glob(glob)
    owner, connection = on_exit == "cancel", invocation.connect()
    gang = gang_of(connection, job)
    attached = Attached(invocation, job=job, owner=owner)
    if gang is not None:
        attached = AttachedGang(invocation, gang.id, gang.count, owner=owner)
    code = attached.run(connection)
    if globs and attached.view is not None and attached.view.outcome and attached.view.outcome.started:
        from distributed_grid.cli.run_shared import bring_back

        code = bring_back(invocation, attached.connection, attached.view.allocation, globs, code)
    sys.exit(code)


@click.command()
@common
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("--stdout", "only", flag_value="stdout", help="Only what it wrote to stdout.")
@click.option("--stderr", "only", flag_value="stderr", help="Only what it wrote to stderr.")
@click.option("--exit-code", is_flag=True, help="With -f: exit with the job's exit code.")
@click.argument("job", shell_complete=complete_jobs)
def logs(job: str, follow: bool, only: str | None, exit_code: bool) -> None:
    """Print what a job wrote.

    JOB is an id, the beginning of one, a name, or `last`. What it wrote to stdout goes to stdout, the rest to stderr.
    ^C leaves; the job goes on.
    """
    from distributed_grid.cli.attached import Attached

    invocation = current()
    streams = (only,) if only else ("stdout", "stderr")
    attached = Attached(
        invocation, job=job, owner=False, interactive=False, until_now=not follow, streams=streams, verdicts=exit_code
    )
    code = attached.run(invocation.connect())
    sys.exit(code)
