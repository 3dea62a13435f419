"""`grid boost request|status|release|extend|history|suggest`: capacity of other nodes, lent to a Ray cluster."""

import secrets
import time
from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, current, printable
from distributed_grid.cli.lazy import LazyGroup
from distributed_grid.cli.options import not_empty
from distributed_grid.protocol.boosts import DURATION, OVERHEAD, Boost, amount_words, group_name, needs, rounding
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.jobs import Cause, JobView, State, parse_priority
from distributed_grid.protocol.messages import (
    Boosts,
    BoostView,
    Cancel,
    Done,
    ExtendBoost,
    Jobs,
    ListBoosts,
    ListJobs,
    RayNode,
    RequestBoost,
    SuggestBoosts,
    Suggestions,
)
from distributed_grid.protocol.placement import Walls, parse_walls
from distributed_grid.protocol.resources import GIB, MILLI, ResourceType, format_bytes, parse_amount, parse_kind
from distributed_grid.protocol.sharing.moves import Move, MoveKind
from distributed_grid.protocol.sharing.policies import OffloadingMode
from distributed_grid.protocol.text import counted, format_duration, parse_duration


def held(node: RayNode) -> str:
    """Format what a node has: `2 CPU, 1 GPU, 4G memory`."""
    return amounts(node.total) or "nothing"


def amounts(shape: dict[str, float]) -> str:
    """Amounts in Ray's words, as people read them: what says only where something is, is left out."""
    parts = [f"{amount:g} {name}" for name, amount in sorted(shape.items()) if amount and _counted(name)]
    return ", ".join(parts + ([f"{format_bytes(int(shape['memory']))} memory"] if shape.get("memory") else []))


def _counted(name: str) -> bool:
    of_groups = "_group_" in name
    return not of_groups and name not in ("memory", "object_store_memory") and not name.startswith(("node:", "boost_"))


def ray_json(node: RayNode) -> dict[str, Any]:
    """A node of Ray's with all that is known of it."""
    return {
        "id": node.id,
        "name": node.name,
        "host": node.host,
        "ip": node.ip,
        "status": node.status,
        "total": node.total,
        "available": node.available,
        "boost": node.boost or None,
        "source": node.source or None,
        "target": node.target or None,
        "orphan": node.orphan or None,
    }


HEADER = ("BOOST", "SOURCE", "TARGET", "LENT", "STATE", "ALLOCATED", "EXPIRES", "IN RAY")
EXCLUSIVE = """only programs that use its placement group run there:
  ray.init(address="auto", namespace="grid")
  group = ray.util.get_placement_group("{group}")
  task.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()"""
HISTORY = ("BOOST", "SOURCE", "TARGET", "LENT", "BEGAN", "LASTED", "END")


@click.group(cls=LazyGroup)
def boost() -> None:
    """Lend idle capacity of other nodes to a Ray cluster: request, status, release, extend, history, suggest."""


@boost.command()
@click.option("--priority", default="normal", metavar="WORD", help="low, normal, high or critical (normal).")
@click.option("--duration", default="", metavar="TIME", help="For how long: seconds, or 30m, 2h (1h).")
@click.option(
    "--source", default="", metavar="NODE", help="From this node, if it has room; otherwise from the best one."
)
@click.option("--only-source", default="", metavar="NODE", help="From this node or from none.")
@click.option("--walls", metavar="LEVEL", help="From a node with these walls or stronger: user, namespace, landlock.")
@click.option("--wait", "patient", is_flag=True, help="If no node has it now, wait until one has.")
@click.option("--exclusive", is_flag=True, help="Only for programs that use its placement group.")
@click.argument("target")
@click.argument("kind", metavar="cpu|gpu|memory")
@click.argument("amount")
def request(
    priority: str, duration: str, source: str, only_source: str, walls: str | None, patient: bool, exclusive: bool,
    target: str, kind: str, amount: str,
) -> None:  # fmt: skip
    """Borrow AMOUNT cores, GPUs or GB for the node TARGET, through its Ray cluster.

    Cores and GPUs are lent as whole numbers, rounded up: 2 for 1.5.

    The command returns when Ray shows the boost; from then on any program of that cluster can use it. ^C before that
    cancels the request.
    """
    invocation = current()
    invocation.require_sharing()
    wanted = parse_kind(kind)
    asked = RequestBoost(
        id=0,
        key=secrets.token_hex(16),
        target=target,
        kind=wanted,
        amount=_amount(wanted, amount),
        priority=parse_priority(priority),
        duration=parse_duration(duration) if duration else DURATION,
        source=source,
        only_source=only_source,
        wait=patient,
        watch=True,
        exclusive=exclusive,
        walls=parse_walls(walls) if walls is not None else Walls.NONE,
    )
    if more := rounding(wanted, asked.amount):
        invocation.say(more)
    view = _ask_and_wait(invocation, asked)
    if view.state is not State.RUNNING:
        raise _not_lent(view)
    invocation.done = f"{view.id} is lent, until it expires or is released"
    if invocation.output in ("json", "jsonl"):
        formatting.emit_json(invocation, {"boost": formatting.job_json(view)}, rows="boost")
    else:
        formatting.emit(f"{view.id}\n")
    lent = view.spec.boost
    if lent is not None:
        what = amount_words(lent.kind, lent.amount)
        invocation.say(f"added {what} at {view.node} for {lent.target}, until {formatting.clock(_expires(view))}")
        if lent.exclusive:
            for line in EXCLUSIVE.format(group=group_name(view.id)).splitlines():
                invocation.say(line)


def _ask_and_wait(invocation: Invocation, asked: RequestBoost) -> JobView:
    """Return the view of a boost once it runs or has ended, printing a line for each state before."""
    from distributed_grid.cli.boosts.borrowing import Borrowing
    from distributed_grid.coordinator.client.session import RequestRefused

    try:
        return Borrowing(invocation, asked).run()
    except RequestRefused as error:
        if error.code == "never-fits":
            raise _nobody_has(f"{error.what}; {error.why}" if error.why else error.what) from None
        raise


def _amount(kind: ResourceType, text: str) -> float:
    """Cores, GPUs or GB. Raises BadValue."""
    found = parse_amount(kind, text)
    return found.memory / GIB if kind is ResourceType.MEMORY else (found.cpu or found.gpu) / MILLI


def _not_lent(view: JobView) -> GridError:
    outcome = view.outcome
    why = outcome.text if outcome is not None else ""
    if outcome is not None and outcome.cause is Cause.NOT_PLACED:
        return _nobody_has(why, "; or add --wait")
    return GridError(f"the boost {view.id} was not lent", why=why, hint=f"grid job events {view.id}")


def _nobody_has(why: str, more: str = "") -> GridError:
    hint = f"ask for less, of another kind or from another source{more}. See: grid cluster status"
    return GridError("No nodes have sufficient available resources", why=why, hint=hint)


@boost.command()
@click.option("--node", type=not_empty, metavar="NODE", help="Only those for this node.")
def status(node: str | None) -> None:
    """Show all boosts, and what Ray reports about them.

    IN RAY is the state in Ray's own list of nodes; differences from what was lent are listed below the table.
    """
    invocation = current()
    answer: Boosts = invocation.ask(lambda n: ListBoosts(n, node or ""))
    active = [one for one in answer.boosts if one.job.state is State.RUNNING]
    orphans = [one for one in answer.nodes if one.orphan]
    match invocation.output:
        case "json" | "jsonl":
            rows = [_json(one) for one in answer.boosts]
            sums = {str(kind): _number(kind, amount) for kind, amount in _sums(active).items()}
            content = {"active": len(active), "lent": sums, "boosts": rows, "orphans": list(map(ray_json, orphans))}
            content |= {"ray": answer.address, "trouble": answer.trouble}
            formatting.emit_json(invocation, content, rows="boosts")
        case "quiet":
            formatting.emit("".join(f"{one.job.id}\n" for one in answer.boosts if one.job.id))
        case _:
            known = _known(answer)
            total = ", ".join(amount_words(kind, amount) for kind, amount in _sums(active).items())
            count = f"{counted(len(active), 'active boost')}{f' for {node}' if node else ''}"
            formatting.emit(printable(count + (f": {total}" if total else "")) + "\n")
            if answer.boosts:
                formatting.emit(formatting.table(invocation, HEADER, [_row(one, known) for one in answer.boosts]))
            for one in answer.boosts:
                if one.ending:
                    formatting.emit(printable(f"{one.job.id} ends: {one.ending}") + "\n")
            for line in filter(None, map(_waits, answer.boosts)):
                formatting.emit(printable(line) + "\n")
            for line in filter(None, (*map(_wrong, answer.boosts), *map(orphan_words, orphans))):
                formatting.emit(f"! {printable(line)}\n")
            if not known:
                invocation.say(_unknown(answer))


def _known(answer: Boosts) -> bool:
    """Whether it is known what Ray shows."""
    return bool(answer.address) and not answer.trouble


def _unknown(answer: Boosts) -> str:
    if not answer.address:
        return "this coordinator knows of no Ray cluster (set ray.address there)"
    return f"what Ray shows is not known: {answer.trouble}"


def _sums(active: list[BoostView]) -> dict[ResourceType, int]:
    sums: dict[ResourceType, int] = {}
    for one in active:
        if (lent := one.job.spec.boost) is not None:
            sums[lent.kind] = sums.get(lent.kind, 0) + lent.amount
    return sums


def _number(kind: ResourceType, amount: int) -> float:
    """Return an amount for programs: cores and GPUs, or bytes."""
    return amount if kind is ResourceType.MEMORY else amount / MILLI


def _row(one: BoostView, known: bool) -> tuple[str, ...]:
    view, lent = one.job, one.job.spec.boost
    counts = view.started and view.spec.time_limit and view.state is not State.STARTING
    expires = formatting.clock(_expires(view)) if counts else "-"
    allocated = formatting.clock(view.started) if view.started else "-"
    target, what = (lent.target, _lent(lent)) if lent is not None else ("", "")
    name = view.id or f"{view.user}'s"
    return (name, view.node or "-", target, what, str(view.state), allocated, expires, _in_ray(one, known))


def _waits(one: BoostView) -> str:
    """Why it waits; empty: it does not."""
    reason = one.job.reason
    return f"{one.job.id or f'a boost of {one.job.user}'} waits: {reason.text or reason.code}" if reason else ""


def _in_ray(one: BoostView, known: bool) -> str:
    if one.differs:
        return f"not as lent: {one.differs}"
    return _shown(one) or ("-" if known else "not known")


def _wrong(one: BoostView) -> str:
    """Return what to do about a boost that Ray does not show as it was lent; empty: it does."""
    if not one.differs:
        return ""
    return f"{difference(one)} → grid job events {one.job.id}".rstrip()


def difference(one: BoostView) -> str:
    """Describe that Ray does not show a boost as it was lent, and how."""
    return f"{one.job.id or f'a boost of {one.job.user}'} is not in Ray as it was lent: {one.differs}"


def orphan_words(node: RayNode) -> str:
    """Return what to do about a raylet in Ray that has the label of a boost which does not belong to this grid."""
    host, name = node.source or node.host or node.ip, node.boost or "(not yours)"
    what = f"Ray has {held(node)} of {host} as boost {name}: {node.orphan}"
    return f"{what} → if it stays, end `ray start … --node-name={node.name}` there"


def _json(one: BoostView) -> dict[str, Any]:
    node = ray_json(one.node) if one.node is not None else None
    shown = {"in_ray": _shown(one), "differs": one.differs, "ending": one.ending, "ray_node": node}
    return {**formatting.job_json(one.job), **shown}


def _shown(one: BoostView) -> str:
    return f"{one.node.status} as {one.node.id[:12]}" if one.node is not None else ""


def _expires(view: JobView) -> float:
    return view.started + view.spec.time_limit


def _lent(lent: Boost) -> str:
    return amount_words(lent.kind, lent.amount) + (", exclusive" if lent.exclusive else "")


def _named(invocation: Invocation, ref: str) -> str:
    """The boost that is meant, by its whole id: a boost is a job, and whoever releases one never means another job.
    Raises BadValue."""

    def listed() -> list[JobView]:
        answer: Boosts = invocation.ask(lambda n: ListBoosts(n))
        return [one.job for one in answer.boosts]

    found = invocation.show(ref, "boost", "grid boost status", lambda: [one.id for one in listed()])
    newest = found.jobs[0] if found.jobs else None
    boost = newest is not None and newest.spec.boost is not None
    if newest is not None and boost and (ref != "last" or newest.state is not State.ENDED):
        return newest.id
    job, user = (found.jobs[0].id, found.jobs[0].user) if found.jobs else (found.groups[0].id, found.groups[0].user)
    # The newest of all jobs is no boost that lives: the newest such boost is meant.
    if ref == "last" and (mine := [one.id for one in listed() if one.user == user]):
        return mine[-1]
    if boost:
        return job
    raise BadValue(f"{job} is no boost", why="it is a job", hint="grid boost status shows the boosts there are")


@boost.command()
@click.argument("boost_id", metavar="BOOST")
def release(boost_id: str) -> None:
    """Give a boost back before it expires. BOOST is an id, the beginning of one, or `last`."""
    invocation = current()
    named = _named(invocation, boost_id)
    answer: Done = invocation.ask(lambda n: Cancel(n, (named,), "released"))
    invocation.say(f"{named}: {answer.text or 'released; Ray drains it, then its node has it back'}")


@boost.command()
@click.argument("boost_id", metavar="BOOST")
@click.argument("time_", metavar="TIME")
def extend(boost_id: str, time_: str) -> None:
    """Extend a boost by this time: seconds, or 30m, 2h."""
    invocation = current()
    seconds = parse_duration(time_)
    named = _named(invocation, boost_id)
    answer: Done = invocation.ask(lambda n: ExtendBoost(n, named, seconds))
    invocation.say(answer.text)


@boost.command()
@click.option("--limit", type=click.IntRange(1, 100_000), default=200, help="Maximum number (200).")
def history(limit: int) -> None:
    """Show boosts that have ended, the newest first."""
    invocation = current()
    answer: Jobs = invocation.ask(lambda n: ListJobs(n, True, (State.ENDED,), "", limit, boosts=True))
    ended = [view for view in answer.jobs if view.spec.boost is not None]
    content = {"boosts": [formatting.job_json(view) for view in ended], "more": answer.more}
    text = formatting.table(invocation, HISTORY, [_past(view) for view in ended])
    formatting.show(invocation, content, text, "".join(f"{view.id}\n" for view in ended), "boosts")
    if answer.more and invocation.output == "table":
        invocation.say(f"there are more; see them with --limit {2 * limit}")


@boost.command()
def suggest() -> None:
    """Show which boosts the grid would lend and take back now, and why, without doing it.

    In the mode dynamic_balancing the grid does this by itself; see: grid policy show, grid resource-sharing status.
    Without a Ray cluster nothing can be lent; the output says so, and which jobs would be moved before owners come.
    """
    from distributed_grid.cli.boosts.sharing import MOVES, UNSERVED, move_row, pass_json, unserved_rows

    invocation = current()
    answer: Suggestions = invocation.ask(lambda n: SuggestBoosts(n))
    found = answer.found
    content = {"mode": str(answer.balancing.mode), "policy": str(answer.balancing.policy), **pass_json(found)}
    parts = [formatting.table(invocation, MOVES, map(move_row, found.moves)) if found.moves else "no moves\n"]
    for one in found.moves:
        parts.append(printable(f"{one.source}: {one.reason}; undone by: {one.undone_by}") + "\n")
        if (order := _by_hand(one)) and answer.balancing.mode is not OffloadingMode.DYNAMIC_BALANCING:
            parts.append(f"  {order}\n")
    if found.unserved:
        parts += ["\n", formatting.table(invocation, UNSERVED, unserved_rows(found))]
    parts += [f"! {printable(f'{one.boost} of {one.user}: {one.text}')}\n" for one in found.hints]
    quiet = "".join(f"{order}\n" for one in found.moves if (order := _by_hand(one)))
    formatting.show(invocation, content, "".join(parts), quiet, "moves")
    if found.trouble:
        invocation.say(f"there is nothing to lend to: {found.trouble}")


def _by_hand(move: Move) -> str:
    """The command that does the same; empty: a boost cannot be asked for with just that."""
    if move.kind is MoveKind.GIVE_BACK:
        return f"grid boost release {move.boost}" if move.boost else ""
    wanted = move.resources
    for kind, amount in (
        (ResourceType.GPU, wanted.gpu),
        (ResourceType.MEMORY, wanted.memory - OVERHEAD if wanted.memory else 0),
        (ResourceType.CPU, wanted.cpu),
    ):
        if amount and needs(kind, amount) == wanted:
            much = amount / GIB if kind is ResourceType.MEMORY else amount / MILLI
            return f"grid boost request {move.target} {kind} {much:g} --only-source {move.source}"
    return ""


def _past(view: JobView) -> tuple[Any, ...]:
    lent, outcome = view.spec.boost, view.outcome
    target, what = (lent.target, _lent(lent)) if lent is not None else ("", "")
    end = outcome.text or outcome.cause.value if outcome is not None else ""
    lasted = format_duration(round((view.ended or time.time()) - view.started)) if view.started else "-"
    return (view.id, view.node or "-", target, what, formatting.clock(view.started or view.submitted), lasted, end)
