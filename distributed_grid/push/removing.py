"""`grid node remove`: the node ends its work, its host is cleaned, and the coordinator forgets it."""

import asyncio
from collections.abc import Callable

from distributed_grid.protocol.errors import GridError
from distributed_grid.push.coordinating import Coordinator
from distributed_grid.push.far import Far

POLL_SECONDS = 0.5
FORGET_SECONDS = 150.0
"""So long what a silent node holds is waited for: longer than the default of `coordinator.lost_after`."""

Say = Callable[[str], None]


async def remove(far: Far, coordinator: Coordinator, name: str, now: bool, say: Say) -> None:
    """Take a node out, on its host as well. Nothing changes where the host cannot be reached, or is not that node;
    until its jobs have ended, whoever interrupts has the node back. Raises GridError."""
    found = await far.call("survey", name=name, host="", port=0)
    known = await coordinator.known(name)
    if found["grid"] and found["grid"] != known.grid:
        raise GridError(f"{found['hostname']} is a node of another grid ({found['grid']})")
    if not (found["grid"] or found["builds"] or found["state_there"]):
        raise GridError(
            f"there is nothing of a node {name} on {found['hostname']}",
            why="it is another host, or nothing is left there",
            hint=f"grid node remove {name} --forget, if only the coordinator knows it still",
        )
    if known.there:
        await _emptied(coordinator, name, now, say)
    say("stopping its agent")
    await far.call("stop", name=name, service=found["service"])
    say("taking its certificate back")
    await coordinator.revoke(name)
    say("removing what was installed, its identity and its state")
    await far.call("remove", name=name)
    await _forgotten(coordinator, name)


async def forget(coordinator: Coordinator, name: str, say: Say) -> None:
    """Take a node out on our side only, at once: what runs there counts as lost. Raises GridError."""
    known = await coordinator.known(name)
    if not known.there and not known.certified:
        raise GridError(f"the coordinator knows no node {name}", hint="see `grid nodes`")
    if known.there:
        await coordinator.drain(name, now=True)
    if known.certified:
        say("taking its certificate back")
        await coordinator.revoke(name)
    await _forgotten(coordinator, name, say)


async def _emptied(coordinator: Coordinator, name: str, now: bool, say: Say) -> None:
    """The node has no jobs any more, and gets none."""
    view = await coordinator.seen(name)
    drained = view is not None and view.orders.drain is not None
    say("draining it" + (", its jobs are taken back" if now else ""))
    await coordinator.drain(name, now)
    told = -1
    try:
        while (view := await coordinator.seen(name)) is not None and view.jobs:
            if view.jobs != told:
                told = view.jobs
                say(
                    f"waiting for {told} job{'s' if told > 1 else ''} to end there"
                    + ("" if now else "; --now ends them")
                )
            await asyncio.sleep(POLL_SECONDS)
    except BaseException:
        if not drained:
            await coordinator.undrain(name)
            say("undone: it gets jobs again")
        raise


async def _forgotten(coordinator: Coordinator, name: str, say: Say | None = None) -> None:
    """The coordinator knows it no more; that may take until it has given up what the node held."""
    loop = asyncio.get_running_loop()
    until, told = loop.time() + FORGET_SECONDS, False
    while (view := await coordinator.seen(name)) is not None:
        try:
            await coordinator.forget(name)
        except GridError:
            if loop.time() > until:
                raise
            if say is not None and not told:
                told = True
                say(f"waiting until what it holds ({view.jobs} jobs) counts as lost")
            await asyncio.sleep(POLL_SECONDS)
