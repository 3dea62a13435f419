"""`grid submit`: many jobs at once, from a file."""

import os
import sys
from pathlib import Path

import click

from distributed_grid.cli.context import common, current
from distributed_grid.protocol.errors import BadValue


@click.command()
@common
@click.option("-f", "--file", "path", required=True, metavar="FILE", help="The jobs; - for standard input.")
def submit(path: str) -> None:
    """Submit the jobs of a file, all or none, and print their ids.

    FILE is YAML with a list `jobs` and a section `defaults`, or JSON Lines with a job a line. A job has a `command` and
    whatever else the long options of run-shared say, with _ for -. Jobs that ship get the current directory.
    """
    from distributed_grid.cli import formatting
    from distributed_grid.cli.jobs.jobs_file import read

    invocation = current()
    jobs = read(_raw(path), "standard input" if path == "-" else path)
    config = invocation.config()
    if config is not None:
        config.require_sharing()

    import msgspec

    from distributed_grid.cli.attach.results import here, ship
    from distributed_grid.protocol.codec import BULK_BYTES, encode
    from distributed_grid.protocol.messages import Submission, Submit, Submitted

    connection = invocation.connect()
    bundle = ship(invocation, connection, here()) if any(job.shipped for job in jobs) else ""
    call = os.urandom(12).hex()
    submissions = tuple(
        Submission(
            key=f"{call}{number:08x}",
            spec=msgspec.structs.replace(job.spec, bundle=bundle) if job.shipped else job.spec,
            request=job.request,
            **job.many,
        )
        for number, job in enumerate(jobs)
    )
    message = Submit(id=connection.number(), jobs=submissions)
    if (size := len(encode(0, [message]))) > BULK_BYTES:
        raise BadValue(
            f"the {len(jobs)} jobs of {path} have {size} bytes",
            why=f"{BULK_BYTES} are the most that are taken or refused as one",
            hint="split the file, or describe equal jobs once",
        )
    reply: Submitted = connection.call(message)
    connection.close()
    if invocation.output in ("json", "jsonl"):
        rows = [{"id": job, "name": one.spec.name} for job, one in zip(reply.jobs, jobs, strict=True)]
        formatting.emit_json(invocation, {"jobs": rows}, rows="jobs")
    else:
        formatting.emit("".join(f"{job}\n" for job in reply.jobs))


def _raw(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadValue(f"{path} cannot be read", why=(error.strerror or str(error)).lower()) from None
