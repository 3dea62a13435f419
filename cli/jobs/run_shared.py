"""`grid run-shared`: runs a command on borrowed resources, as if it ran here."""

import os
import sys
import time
from typing import Any

import click
from msgspec.structs import replace

from distributed_grid.cli.attach.results import check_globs, get_options, ship, shipping_options
from distributed_grid.cli.completion import complete_nodes
from distributed_grid.cli.context import Invocation, complete_files, current, grid_failed, option
from distributed_grid.cli.jobs.groups import many_options
from distributed_grid.cli.options import Sectioned, limit_options, not_empty, placing
from distributed_grid.coordinator.client.blocking import GridClient
from distributed_grid.coordinator.client.submission import describe_job
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import parse_gang
from distributed_grid.protocol.jobs import OutputFull
from distributed_grid.protocol.messages import Submission
from distributed_grid.protocol.resources import (
    Resources,
    parse_amount,
    parse_cpu,
    parse_gpu,
    parse_kind,
    parse_memory,
)
from distributed_grid.protocol.text import parse_duration

AS_THEY_ARE = (
    "name priority nodes time_limit warn_signal pids_limit cpu_limit immediate"
    " strategy only exclude labels gpu_model gpu_memory near apart walls"
    " output_full revocable keep_all retry_on retries retry_memory array max_fails"
    " after after_ok after_any begin finish_by"
).split()
"""Options that mean what `describe_job` calls so."""
NOT_PLACED = 75


class RunShared(Sectioned):
    """The command with its options, in the order in which they are matched."""

    sections = (
        ("What it needs", "kind amount cpus mem gpus auto features revocable keep_all".split()),
        ("Where it runs", "within nodes only exclude labels walls gpu_model gpu_memory near apart strategy".split()),
        (
            "The job",
            "name detach env workdir no_ship links ship_secrets no_stdin globs force executable".split()
            + "dry_run on_exit".split(),
        ),
        ("When", "priority immediate begin finish_by after after_ok after_any".split()),
        ("Its limits", "time_limit warn_signal grace cpu_limit pids_limit output_full".split()),
        ("Run again", "retry_on retries retry_memory no_requeue".split()),
        ("Many at once", "array max_fails gang".split()),
    )


@click.command(cls=RunShared, context_settings={"allow_interspersed_args": False})
@option("-t", "-r", "--type", "--resource-type", "kind", metavar="TYPE", help="cpu, memory (GB) or gpu.")
@option("-a", "--amount", metavar="N", help="Amount (1): cores, GB or GPUs; fractions such as 0.5, too.")
@option("--cpus", metavar="N", help="Number of cores (1).")
@option("--mem", metavar="SIZE", help="Memory, such as 4G or 512M.")
@option("--gpus", metavar="N", help="Number of GPUs; below 1: a fraction of one.")
@option("--auto", is_flag=True, help="Predict unset amounts from earlier runs like it.")
@option(
    "--feature", "features", multiple=True, metavar="NAME=N", help="A number by which its needs may grow; repeatable."
)
@option("--priority", default="medium", metavar="WORD", help="low, medium (normal), high or urgent (critical).")
@option(
    "-n", "--node", "nodes", multiple=True, metavar="NODE", shell_complete=complete_nodes, help="Preferred; repeatable."
)
@option("--in", "within", metavar="HOLD", help="Inside this hold of yours (see: grid hold request).")
@placing
@option("-d", "--detach", is_flag=True, help="Print the job's id and leave it running.")
@option("--name", default="", metavar="NAME", help="A name for the job.")
@option("-e", "--env", multiple=True, metavar="K=V", help="A variable for the job; K alone: with its value here.")
@option("--workdir", type=not_empty, metavar="PATH", help="Run in this directory of the node; ships nothing.")
@option("--no-ship", is_flag=True, help="Do not send the current directory along.")
@shipping_options
@option("--no-stdin", is_flag=True, help="Do not read standard input; the command's is empty.")
@option("--get", "globs", multiple=True, metavar="GLOB", help="Bring matching files back here; repeatable.")
@get_options
@option("--time", "time_limit", metavar="TIME", help="Time limit: seconds, 30m, 1h30m.")
@option("--grace", metavar="TIME", help="Time between SIGTERM and SIGKILL when it is ended (5).")
@limit_options
@option(
    "--output-full",
    type=click.Choice([one.value for one in OutputFull]),
    default=OutputFull.WAIT.value,
    help="If its output is not read fast enough: it waits, or the middle of it is dropped (wait).",
)
@option("--immediate", is_flag=True, help="Do not wait: exit with 75 if it cannot start now.")
@option(
    "--revocable",
    is_flag=True,
    help="May run on cores that another job holds and does not use, until that job needs them.",
)
@option("--keep-all", is_flag=True, help="Do not lend its unused cores to revocable jobs.")
@option("--finish-by", metavar="TIME", help="As --begin; shows how likely it ends by then, and refuses nothing.")
@option("--retry-on", multiple=True, metavar="END", help="Run it again if lost, failed, preempted or oom.")
@option("--retries", type=int, metavar="N", help="Maximum number of retries (1, with --retry-on).")
@option("--no-requeue", is_flag=True, help="If it is evicted, end it instead of queueing it again.")
@many_options
@option("--dry-run", is_flag=True, help="Only show where it would run; exit with 75 if nowhere now.")
@option(
    "--on-exit",
    type=click.Choice(["cancel", "keep"]),
    default="cancel",
    help="What happens to it if grid is ended (cancel).",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=complete_files)
def run_shared(command: tuple[str, ...], **options: Any) -> None:
    """Run a command on borrowed resources of another node.

    Output and exit code are the command's own, and signals are passed to it: the first ^C interrupts it, the second
    ends it, the third ends only grid. Options of grid come before COMMAND; all that follows belongs to the command. The
    current directory is sent along. Standard input is passed to the command unless it is a terminal; in a loop that
    reads a file use --no-stdin. With --array, --nodes and -d it is empty.

    Exit codes: the command's; 128+N for signal N; 124 time limit; 125 the grid failed; 126 not executable; 127 not
    found; 75 not placed.
    """
    invocation, since = current(), time.time()
    invocation.failure = grid_failed()
    submission = submission_of(command, options)
    _check_globs(options)
    invocation.require_sharing()
    if options["dry_run"]:
        submission = _with_prediction(invocation, submission, options)
        _dry_run(invocation, submission, bool(options["array"]))

    grid = invocation.connect()
    if not (options["no_ship"] or options["workdir"]):
        bundle = ship(invocation, grid, options["links"], options["ship_secrets"])
        submission = replace(submission, spec=replace(submission.spec, bundle=bundle))
    submission = _with_prediction(invocation, submission, options)
    if options["detach"]:
        _detach(invocation, grid, submission)
        return
    keep = options["on_exit"] == "keep"
    submission = replace(submission, spec=replace(submission.spec, attached=True))
    from distributed_grid.cli.attach.attached import Attached
    from distributed_grid.cli.attach.terminal import streams_stdin

    if options["array"]:
        from distributed_grid.cli.attach.array import AttachedArray, CollectedArray

        kind = CollectedArray if invocation.output in ("json", "jsonl") else AttachedArray
        sys.exit(kind(invocation, grid, submission=submission, keep=keep).run())
    stdin = not (options["no_stdin"] or submission.request.gang) and streams_stdin()
    submission = replace(submission, spec=replace(submission.spec, stdin=stdin))
    attached = Attached(invocation, grid, submission=submission, keep=keep, stdin=stdin)
    if submission.request.gang:
        from distributed_grid.cli.attach.gang import AttachedGang

        attached = AttachedGang(invocation, grid, "", submission.request.gang, submission=submission, keep=keep)
    code = attached.run()
    if options["globs"]:
        from distributed_grid.cli.attach.results import fetch_results

        code = fetch_results(attached, options["globs"], options["force"], options["executable"], code, since)
    sys.exit(code)


def _with_prediction(invocation: Invocation, submission: Submission, options: dict[str, Any]) -> Submission:
    """The submission with the needs that are predicted, if that is wanted; and say how likely it ends in time."""
    if not options["auto"] and options["finish_by"] is None:
        return submission
    from distributed_grid.cli.jobs.predict import filled, say_chance

    unshipped = bool(options["no_ship"] or options["workdir"])
    if options["auto"]:
        submission = filled(invocation, submission, bool(resources_of(options).cpu), unshipped)
    if options["finish_by"] is not None:
        say_chance(invocation, submission, unshipped)
    return submission


def submission_of(command: tuple[str, ...], options: dict[str, Any]) -> Submission:
    """Return the submission of these options. Raises BadValue."""
    workdir, gang, grace = options["workdir"] or "", parse_gang(options["gang"]), options["grace"]
    if workdir and not workdir.startswith("/"):
        why, hint = "it names a directory of the node", "write it from / on; without it, the files here are shipped"
        raise BadValue(f"--workdir {workdir} is not an absolute path", why=why, hint=hint)
    for text in (*command, workdir, options["name"]):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadValue(f"{text!r} cannot be sent", why="commands, paths and names must be UTF-8") from None
    if options["within"] == "":  # such as an unset variable of a script: the job would run outside of its hold
        raise BadValue("--in names no hold", why="it is empty", hint="grid hold list shows yours")
    if options["array"] is not None and options["gang"] is not None:
        raise BadValue("an array of gangs cannot be asked for", hint="submit each gang by itself, or leave out --nodes")
    if options["max_fails"] is not None and options["array"] is None:
        raise BadValue(f"--max-fails {options['max_fails']} of what?", hint="say it with --array")
    submission = describe_job(
        command,
        resources=resources_of(options),
        env=dict(_variable(one) for one in options["env"]),
        grace=parse_duration(grace) if grace is not None else 5.0,
        requeue=not options["no_requeue"],
        features=_features(options["features"]),
        within=options["within"] or "",
        workdir=workdir,
        **{name: options[name] for name in AS_THEY_ARE},
    )
    return replace(submission, request=replace(submission.request, gang=gang))


def _features(words: tuple[str, ...]) -> dict[str, float]:
    if not words:
        return {}
    from distributed_grid.cli.jobs.predict import parse_features

    return parse_features(words)


def resources_of(options: dict[str, Any]) -> Resources:
    """Return the resources of --type with --amount, --cpus, --mem and --gpus. Raises BadValue."""
    kind, amount = options["kind"], options["amount"]
    wanted = Resources()
    if kind is not None:
        wanted = parse_amount(parse_kind(kind), amount if amount is not None else "1")
    elif amount is not None:
        raise BadValue(f"--amount {amount} of what?", hint="say it with --type cpu, memory or gpu")
    given = Resources(
        parse_cpu(options["cpus"]) if options["cpus"] is not None else 0,
        parse_memory(options["mem"]) if options["mem"] is not None else 0,
        parse_gpu(options["gpus"]) if options["gpus"] is not None else 0,
    )
    for name, flag in (("cpu", "--cpus"), ("memory", "--mem"), ("gpu", "--gpus")):
        if getattr(wanted, name) and getattr(given, name):
            raise BadValue(f"{name} is asked for twice", why=f"by --type {name} and by {flag}", hint="keep one of them")
    return wanted + given


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name:
        raise BadValue(f"-e {text!r} has no name", hint="write it as NAME=VALUE")
    if not equals:
        if name not in os.environ:
            raise BadValue(f"-e {name}: there is no such variable here to pass on", hint=f"write -e {name}=VALUE")
        value = os.environ[name]
    return name, value


def _detach(invocation: Invocation, grid: GridClient, submission: Submission) -> None:
    from distributed_grid.cli import formatting
    from distributed_grid.protocol.messages import Submit, Submitted

    reply: Submitted = grid.call(Submit(id=0, jobs=(submission,)))
    job = reply.jobs[0]
    invocation.done = f"{job} was submitted"
    if invocation.output in ("json", "jsonl"):
        formatting.emit_json(invocation, {"job": {"id": job}, "nodes": reply.nodes, "nodes_that_fit": reply.fit})
    else:
        formatting.emit(job + "\n")
        if sys.stderr.isatty() or invocation.verbose:
            invocation.say(f"queued · follow it with: grid attach {job} · end it with: grid cancel {job}")
    grid.close()


def _check_globs(options: dict[str, Any]) -> None:
    """Raise BadValue where --get could bring nothing back, before anything runs."""
    if not options["globs"]:
        return
    check_globs(options["globs"])
    if options["array"] or options["detach"]:
        many = options["array"]
        what = "the files of a whole array" if many else "files with -d, which does not wait for any"
        name = "ARRAY_7" if many else "JOB"
        raise BadValue(
            f"--get cannot bring back {what}", hint=f"leave it out, and later: grid attach {name} --get GLOB"
        )


def _dry_run(invocation: Invocation, submission: Submission, array: bool) -> None:
    from distributed_grid.cli.jobs.jobs import show_why
    from distributed_grid.protocol.messages import AskWhy

    request, limit = submission.request, submission.spec.time_limit
    lasts = limit and limit + submission.spec.grace
    why = invocation.ask(lambda number: AskWhy(id=number, request=request, lasts=lasts))
    show_why(invocation, why, request)
    if array:
        invocation.say("that is for one job of the array; the others start where there is room then")
    sys.exit(0 if why.chosen else NOT_PLACED)
