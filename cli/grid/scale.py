"""`grid scale`: machines that the grid creates and ends by itself: their plan, state and history, and orders for
pools."""

import math
from collections.abc import Iterator
from typing import Any

import click
from msgspec.structs import asdict

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, current
from distributed_grid.cli.lazy import LazyGroup
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.messages import Done, GetScaling, OrderScaling, PoolView, ScalingStatus
from distributed_grid.protocol.scaling.machines import Machine
from distributed_grid.protocol.scaling.plans import ScaleOrder, ScalePlan
from distributed_grid.protocol.scaling.pools import Billing, ScalingMode
from distributed_grid.protocol.text import counted, format_duration

HOUR = 3600.0
NO_POOL = "no pool of machines is configured: pools, docs/scaling.md\n"


@click.group(cls=LazyGroup)
def scale() -> None:
    """Plan, create and end machines of pools: plan, apply, status, pause, resume, history."""


def _ask(invocation: Invocation) -> ScalingStatus:
    answer: ScalingStatus = invocation.ask(lambda n: GetScaling(n))
    return answer


@scale.command("plan")
def plan() -> None:
    """Show what would be created and ended now, and what would not, with reasons. Changes nothing."""
    invocation = current()
    answer = _ask(invocation)
    found = answer.plan
    quiet = "".join(f"create {one.pool} {one.type}".rstrip() + "\n" for one in found.creates) if found else ""
    formatting.show(invocation, lambda: _plan_json(answer), lambda: formatting.lines(_plan_lines(answer)), quiet)


def _plan_lines(answer: ScalingStatus) -> Iterator[str]:
    found = answer.plan
    if found is None:
        yield NO_POOL.rstrip()
        return
    for one in found.creates:
        price = f", {one.price:g} an hour" if one.price is not None else ""
        where = " in ".join(filter(None, (one.type, one.zone)))
        yield f"create  {one.pool}{f' {where}' if where else ''} ({one.resources}{price}): {one.why}"
    for back in found.returns:
        yield f"keep    {back.machine}: {back.why}"
    for gone in found.drains:
        yield f"end     {gone.machine} when it is empty: {gone.why}"
    for left in found.not_done:
        yield f"not     {left.what}: {left.why}"
    if found.quiet:
        yield "nothing is to be done"
    yield _sums(answer, found)
    if answer.mode is not ScalingMode.ACT and not found.quiet:
        yield f"scaling.mode is {answer.mode}: nothing of this is done; grid scale apply does it once"


def _plan_json(answer: ScalingStatus) -> dict[str, Any]:
    found = answer.plan
    if found is None:
        return {"mode": answer.mode.value, "plan": None}
    plan = {
        **asdict(found),
        "creates": [asdict(one) | {"resources": formatting.resources_json(one.resources)} for one in found.creates],
        "drains": [asdict(one) for one in found.drains],
        "returns": [asdict(one) for one in found.returns],
        "not_done": [asdict(one) for one in found.not_done],
    }
    return {"mode": answer.mode.value, "plan": plan}


def _sums(answer: ScalingStatus, found: ScalePlan) -> str:
    used = f"; {found.utilisation:.0%} of the grid used" if found.utilisation is not None else ""
    there = f"{counted(found.workers, 'machine')} now, {found.rate:g} an hour, {found.spent:.2f} spent today"
    return f"{there}{used}; limits: {answer.limits}"


@scale.command("status")
def status() -> None:
    """Show pools, and the machines that exist or are being created."""
    invocation = current()
    answer = _ask(invocation)
    live = [one for one in answer.machines if one.live]
    quiet = "".join(f"{one.name} {one.state}\n" for one in live)
    formatting.show(
        invocation, lambda: _json(answer, live), lambda: _screen(invocation, answer, live), quiet, "machines"
    )


def _screen(invocation: Invocation, answer: ScalingStatus, live: list[Machine]) -> str:
    if not answer.pools and not live:
        return NO_POOL
    pools = []
    for view in answer.pools:
        pool, there = view.pool, sum(one.pool == view.pool.name for one in live)
        boots = ", ".join(f"{type or 'boot'} {p50:.0f}-{p90:.0f} s" for type, (p50, p90) in view.boots.items())
        refused = "; ".join(
            f"{what or 'machines'} for {format_duration(left)}: {why}" for what, left, why in view.refused
        )
        said = f"paused {view.paused}" if view.paused else view.trouble or refused
        pools.append((pool.name, pool.provider, f"{there}", f"{pool.min}-{pool.max}", boots or "-", said))
    text = formatting.table(invocation, ("POOL", "PROVIDER", "THERE", "MIN-MAX", "BOOT", ""), pools)
    if live:
        rows = [
            (
                one.name, one.type or "-", str(one.state), formatting.age(one.since, answer.now), str(one.resources),
                f"{one.price:g}" if one.price is not None else "-", one.text or one.why,
            )
            for one in live
        ]  # fmt: skip
        header = ("MACHINE", "TYPE", "STATE", "SINCE", "LENDS", "PRICE/H", "WHY")
        text += "\n" + formatting.table(invocation, header, rows)
    return text + f"\nscaling.mode {answer.mode}; limits: {answer.limits}\n"


def _json(answer: ScalingStatus, machines: list[Machine]) -> dict[str, Any]:
    return {
        "mode": answer.mode.value,
        "limits": answer.limits,
        "pools": [_pool_json(one) for one in answer.pools],
        "machines": [_machine_json(one, answer) for one in machines],
        "left_out": answer.left,
    }


def _pool_json(one: PoolView) -> dict[str, Any]:
    shapes = [asdict(shape) | {"resources": formatting.resources_json(shape.resources)} for shape in one.pool.shapes]
    return asdict(one) | {"pool": asdict(one.pool) | {"shapes": shapes}}


def _machine_json(one: Machine, answer: ScalingStatus) -> dict[str, Any]:
    return {
        "name": one.name,
        "pool": one.pool,
        "provider": one.provider,
        "type": one.type,
        "zone": one.zone,
        "state": one.state.value,
        "handle": one.handle,
        "born": formatting.iso(one.born),
        "joined": formatting.iso(one.joined),
        "ended": formatting.iso(one.over),
        "ends_by": formatting.iso(one.ends_by),
        "resources": formatting.resources_json(one.resources),
        "price": one.price,
        "cost": _cost(one, answer),
        "ran": one.ran,
        "why": one.why,
        "text": one.text,
        "jobs": list(one.jobs),
    }


def _cost(one: Machine, answer: ScalingStatus) -> float | None:
    """Return what a machine has cost; hours that have begun count in full where its pool is billed by them."""
    if one.price is None or not one.born:
        return None
    if one.refused:
        return 0.0
    hours = max(0.0, (one.over or answer.now) - one.born) / HOUR
    by_hour = any(view.pool.name == one.pool and view.pool.billing is Billing.HOUR for view in answer.pools)
    return one.price * (math.ceil(hours) if by_hour else hours)


@scale.command("history")
def history() -> None:
    """Show ended machines: why they were created, how long they took and lived, and which ran no job."""
    invocation = current()
    answer = _ask(invocation)
    gone = [one for one in answer.machines if not one.live]
    quiet = "".join(f"{one.name} {one.state}\n" for one in gone)
    formatting.show(invocation, lambda: _json(answer, gone), lambda: _past(invocation, answer, gone), quiet, "machines")


def _past(invocation: Invocation, answer: ScalingStatus, gone: list[Machine]) -> str:
    if not gone:
        return "no machine has ended that is remembered (scaling.history_retention)\n"
    rows = []
    for one in gone:
        boot = format_duration(round(one.joined - one.born)) if one.joined else "-"
        lived = format_duration(round(one.over - one.born)) if one.born and one.over else "-"
        cost = _cost(one, answer)
        ran = "yes" if one.ran else "no"
        rows.append((
            one.name, one.type or "-", str(one.state), boot, lived, f"{cost:.3f}" if cost is not None else "-", ran,
            one.text,
        ))  # fmt: skip
    text = formatting.table(invocation, ("MACHINE", "TYPE", "STATE", "BOOT", "LIVED", "COST", "RAN", "WHY"), rows)
    wasted = [one for one in gone if not one.ran and one.joined]
    cost = sum(_cost(one, answer) or 0.0 for one in wasted)
    return text + f"\n{counted(len(gone), 'machine')}; {len(wasted)} joined and ran no job, which cost {cost:.2f}\n"


def _order(order: ScaleOrder, pool: str | None, why: str = "") -> None:
    """`pool` None: all of them."""
    if pool == "":  # as of a variable of the shell that is not set
        raise BadValue("the name of the pool is empty", "without a name all pools would be meant", "leave it out")
    invocation, pool = current(), pool or ""
    answer: Done = invocation.ask(lambda n: OrderScaling(n, order, pool, why))
    invocation.say(answer.text)


@scale.command("apply")
@click.argument("pool", required=False, metavar="[POOL]")
def apply(pool: str | None) -> None:
    """Carry out the current plan once; only that of a POOL, if it is named."""
    _order(ScaleOrder.APPLY, pool)


@scale.command("pause")
@click.option("--reason", default="", metavar="TEXT", help="Why, for others.")
@click.argument("pool", required=False, metavar="[POOL]")
def pause(reason: str, pool: str | None) -> None:
    """Create no machine in a POOL, or in any, until it is resumed. Existing machines stay, and end as usual."""
    _order(ScaleOrder.PAUSE, pool, reason)


@scale.command("resume")
@click.argument("pool", required=False, metavar="[POOL]")
def resume(pool: str | None) -> None:
    """Create machines in a POOL, or in all, again; earlier refusals of its provider are forgotten."""
    _order(ScaleOrder.RESUME, pool)
