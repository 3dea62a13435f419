"""`grid hold request|list|release`: capacity of one node, kept for one's own jobs until it expires."""

from functools import partial
from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.completion import complete_nodes
from distributed_grid.cli.context import current, printable
from distributed_grid.cli.jobs.run_shared import resources_of
from distributed_grid.cli.lazy import LazyGroup
from distributed_grid.cli.options import placing
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.jobs import Cause, JobView, State
from distributed_grid.protocol.messages import AskWhy, Cancel, Done, Jobs, ListJobs, Submit, Why

HEADER = ("HOLD", "NAME", "USER", "HOLDS", "STATE", "NODE", "EXPIRES", "NOW")
MOST = 1000
"""Maximum number of holds listed."""
ASKED = 50
"""Maximum number of holds whose free capacity is queried."""


@click.group(cls=LazyGroup)
def hold() -> None:
    """Keep capacity of a node for your jobs: request, list, release."""


@hold.command()
@click.option("-t", "-r", "--type", "--resource-type", "kind", metavar="TYPE", help="cpu, memory (GB) or gpu.")
@click.option("-a", "--amount", metavar="N", help="Amount (1): cores, GB or GPUs.")
@click.option("--cpus", metavar="N", help="Number of cores (1).")
@click.option("--mem", metavar="SIZE", help="Memory, such as 4G or 512M.")
@click.option("--gpus", metavar="N", help="Number of GPUs; below 1: a fraction of one.")
@click.option("--time", "duration", default="1h", metavar="TIME", help="For how long: seconds, or 30m, 2h (1h).")
@click.option("--name", default="", metavar="NAME", help="A name for it, to use with --in.")
@click.option("--priority", default="medium", metavar="WORD", help="low, medium (normal), high or urgent (critical).")
@click.option(
    "-n", "--node", "nodes", multiple=True, metavar="NODE", shell_complete=complete_nodes, help="Preferred; repeatable."
)
@placing
@click.option("--wait", "patient", is_flag=True, help="If no node has it now, wait until one has.")
def request(patient: bool, duration: str, name: str, priority: str, nodes: tuple[str, ...], **options: Any) -> None:
    """Keep cores, memory and GPUs of one node for your jobs.

    Prints the id of the hold when it has the resources. Jobs use them with `grid run-shared --in HOLD`; nobody else
    gets them until the hold expires or is released. A hold counts against your share and quotas, used or not.
    """
    from distributed_grid.cli.boosts.borrowing import Borrowing
    from distributed_grid.coordinator.client.submission import describe_hold

    invocation = current()
    invocation.require_sharing()
    where = {one: options[one] for one in "only exclude labels gpu_model gpu_memory near apart walls strategy".split()}
    submission = describe_hold(
        resources=resources_of(options), duration=duration, priority=priority, name=name,
        immediate=not patient, nodes=nodes, **where,
    )  # fmt: skip
    view = Borrowing(invocation, Submit(id=0, jobs=(submission,), watch=True)).run()
    if view.state is not State.RUNNING:
        raise _not_held(view)
    invocation.done = f"{view.id} is held, until it expires or is released"
    if invocation.output in ("json", "jsonl"):
        formatting.emit_json(invocation, {"hold": _json(view)}, rows="hold")
        return
    formatting.emit(f"{view.id}\n")
    held = view.grant.resources if view.grant is not None else view.request.resources
    invocation.say(f"held: {held} of {view.node} until {formatting.clock(_expires(view))}: --in {name or view.id}")


def _not_held(view: JobView) -> GridError:
    outcome = view.outcome
    why = outcome.text if outcome is not None else ""
    if outcome is not None and outcome.cause is Cause.NOT_PLACED:
        hint = "ask for less, or add --wait. See: grid shared-status"
        return GridError("No nodes have sufficient available resources", why=why, hint=hint)
    return GridError(f"the hold {view.id} was not made", why=why, hint=f"grid job events {view.id}")


@hold.command("list")
def list_() -> None:
    """List the holds, what is free of each, and when it expires."""
    invocation = current()
    answer: Jobs = invocation.ask(lambda n: ListJobs(n, holds=True, limit=MOST))
    match invocation.output:
        case "json" | "jsonl":
            formatting.emit_json(invocation, {"holds": [_json(view) for view in answer.jobs]}, rows="holds")
        case "quiet":
            formatting.emit("".join(f"{view.id}\n" for view in answer.jobs if view.id))
        case _:
            now: dict[str, str] = {}
            for view in [view for view in answer.jobs if view.id][:ASKED]:
                why: Why = invocation.ask(partial(_why, view.id))
                now[view.id] = why.reason.text.partition("; ")[2] or why.reason.text
            rows = [_row(view, now.get(view.id, "")) for view in answer.jobs]
            formatting.emit(formatting.table(invocation, HEADER, rows) if rows else "no holds\n")


def _why(job: str, number: int) -> AskWhy:
    return AskWhy(number, job=job)


def _row(view: JobView, now: str) -> tuple[str, ...]:
    held = view.grant.resources if view.grant is not None else view.request.resources
    expires = formatting.clock(_expires(view)) if view.started else "-"
    name = printable(view.spec.name) or "-"
    return (view.id or "-", name, view.user, str(held), str(view.state), view.node or "-", expires, printable(now))


def _expires(view: JobView) -> float:
    return view.started + view.spec.time_limit


def _json(view: JobView) -> dict[str, Any]:
    expires = formatting.iso(_expires(view)) if view.started else None
    return {**formatting.job_json(view), "expires": expires}


@hold.command()
@click.argument("hold_id", metavar="HOLD")
def release(hold_id: str) -> None:
    """Give a hold back before it expires. HOLD is an id, the beginning of one, its name or `last`.

    Jobs that run in it continue as ordinary jobs; those that wait for room in it are ended.
    """
    invocation = current()

    def listed(user: str = "") -> Jobs:
        answer: Jobs = invocation.ask(lambda n: ListJobs(n, holds=True, user=user, limit=MOST))
        return answer

    found = invocation.show(hold_id, "hold", "grid hold list", lambda: [one.id for one in listed().jobs])
    view = found.jobs[0] if found.jobs else None
    newest = view or found.groups[0]
    if view is None or not view.spec.hold or view.state is State.ENDED:  # an older one of that name may be meant
        view = next((one for one in listed(newest.user).jobs if hold_id in ("last", one.spec.name)), view)
    if view is None or not view.spec.hold:
        hint = "grid hold list shows the holds there are"
        raise BadValue(f"{newest.id} is no hold", why="it runs a command", hint=hint)
    answer: Done = invocation.ask(lambda n: Cancel(n, (view.id,), "released"))
    invocation.say(f"{view.id}: {answer.text or 'released'}")
