"""Placement by Ray around the ledger: its commands become questions to Ray, and the answers become events. What Ray has
reserved is compared with what jobs hold, and groups that an earlier coordinator left are released after the start."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from distributed_grid.coordinator.core.commands import Event, RayReported, Reserve, Reserved, ReserveRefused, Unreserve
from distributed_grid.coordinator.core.model import Allocation, Node, OnRay
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.ray.bridge_client import BOOSTS, JOBS, Bridge, NoRay
from distributed_grid.protocol.boosts import LABEL
from distributed_grid.protocol.resources import MILLI, Resources
from distributed_grid.runtime.logs import get_logger

NODE = "grid-node"
"""The label with which a node of Ray names the node of the grid that it is on."""
NODE_ID = "ray.io/node-id"
WITHIN = 2.0
"""Seconds that Ray may wait for room, which the ledger has seen to be there."""
ANSWER = 25.0
"""Time-out of an answer; the first comes from a process that has to load Ray (s)."""
AT_ONCE = 32
"""Reservations that are in progress at once."""
SOON, SELDOM = 0.5, 2.0
"""Interval between looks at Ray's nodes, while jobs wait, and while there are jobs (s)."""
FRESH = 1.0
"""A look that is no older than this is current (s)."""
COMPARED = 10.0
"""Interval between comparisons of what Ray has reserved with what jobs hold (s)."""
LOOPBACK = ("127.", "::1")

log = get_logger("placing")


class RayReservations:
    """All that Ray reserves for this coordinator's jobs. `bridge` None: there is no Ray."""

    def __init__(self, state: GridState, bridge: Bridge | None, put: Callable[[Event], None]) -> None:
        self._state = state
        self._bridge = bridge
        self._put = put
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed = self._compared = -FRESH - COMPARED
        self._unsure = state.policy.by_ray or any(one.ray is not None for one in state.allocations.values())
        """Reservations may differ from the ledger: the coordinator or Ray was away for a while."""
        self._reserved_again: set[str] = set()
        """Allocations whose reservation is being made again."""
        self._trouble = self._warned = ""

    # --- what the ledger commands -------------------------------------------------------------------------------------

    def perform(self, command: Reserve | Unreserve) -> None:
        """Perform a command; the outcome is an event."""
        doing = self._reserve(command) if isinstance(command, Reserve) else self._release(command.allocation)
        self._do(doing)
        self.stir()

    def _do(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(doing, name="placing")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reserve(self, command: Reserve) -> None:
        name = command.allocation
        if not self._state.policy.by_ray or not command.node:
            why = "it has no node there" if self._state.policy.by_ray else "jobs are not placed by Ray any more"
            self._put(ReserveRefused(name, why))
            return
        async with self._gate:
            if name not in self._state.allocations:
                return  # it was ended while it waited for its turn
            try:
                await self._ask_for(name, command.node, command.resources)
            except NoRay as error:
                self._unsure = True
                self._put(ReserveRefused(name, _words(error)))
            else:
                self._put(Reserved(name))

    async def _ask(self, what: str, **words: Any) -> Any:
        if self._bridge is None:
            raise NoRay("this coordinator knows of no Ray cluster")
        return await self._bridge.ask(what, seconds=ANSWER, **words)

    async def _ask_for(self, allocation: str, node: str, resources: Resources) -> None:
        await self._ask(
            "reserve",
            name=JOBS + allocation,
            bundle=_bundle(resources),
            selector={NODE_ID: node},
            within=WITHIN,
        )

    async def _release(self, allocation: str) -> None:
        try:
            await self._ask("release", name=JOBS + allocation)
        except NoRay:
            self._unsure = True

    # --- looking ------------------------------------------------------------------------------------------------------

    def stir(self) -> None:
        """Watch Ray while there are jobs, or reservations to correct."""
        if self._bridge is not None and self._busy() and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.create_task(self._keep_fresh(), name="placing")

    async def refresh_now(self) -> None:
        """Make sure that the ledger has current figures of Ray, for a request that is placed now or never."""
        if self._bridge is not None and self._state.policy.by_ray and self._age(self._refreshed) > FRESH:
            await self._refresh()

    def _busy(self) -> bool:
        """Whether there is something to look at. Without placement by Ray, only old reservations are released."""
        return self._unsure or (self._state.policy.by_ray and bool(self._state.jobs))

    def _age(self, since: float) -> float:
        return asyncio.get_running_loop().time() - since

    async def _keep_fresh(self) -> None:
        while self._busy():
            if self._state.policy.by_ray:
                await self._refresh()
            if not self._trouble and (self._unsure or self._age(self._compared) > COMPARED):
                await self._compare()
            await asyncio.sleep(SOON if self._state.queue.lines else SELDOM)

    async def _refresh(self) -> None:
        try:
            usage = (await self._ask("usage"))["nodes"]
        except NoRay as error:
            self._unsure = True
            self._in_trouble(_words(error))
            return
        if self._trouble:
            self._trouble = ""
            log.info("ray can be asked again")
        self._refreshed = asyncio.get_running_loop().time()
        nodes = self._state.nodes
        found = matched(nodes, usage)
        changed = {name: found.get(name) for name, node in nodes.items() if node.ray != found.get(name)}
        if changed or self._state.ray_trouble:
            self._put(RayReported(changed))

    def _in_trouble(self, why: str) -> None:
        if why != self._trouble:
            self._trouble = why
            log.warning("ray cannot be asked", why=why)
            self._put(RayReported({}, why))

    async def _compare(self) -> None:
        """Release reservations of no job, and make lost ones again: a head that was restarted has forgotten them, and
        those on a node that is gone wait for that node."""
        try:
            there = await self._ask("reserved")
            held = {JOBS + name: one for name, one in self._state.allocations.items() if one.ray is not None}
            for name in there:
                if name.startswith(JOBS) and name not in held:
                    log.info("let go of what was reserved for a job that is over", group=name)
                    await self._ask("release", name=name)
        except NoRay as error:
            if _words(error) != self._warned:
                self._warned = _words(error)
                log.warning("what ray has reserved may not be what jobs hold", why=self._warned)
            return
        finally:
            self._compared = asyncio.get_running_loop().time()
        self._unsure, self._warned = False, ""
        for name, one in held.items():
            if not one.awaits_ray and there.get(name) != "CREATED" and one.id not in self._reserved_again:
                self._do(self._reserve_again(one, name in there))

    async def _reserve_again(self, lost: Allocation, waits: bool) -> None:
        """Reserve again, on the present node of Ray, what a launched allocation holds. If Ray has given it to others,
        this is repeated at the next look."""
        on = self._state.nodes[lost.node].ray
        if lost.ray is None or on is None:
            return
        self._reserved_again.add(lost.id)
        try:
            async with self._gate:
                if waits:
                    await self._ask("release", name=JOBS + lost.id)
                await self._ask_for(lost.id, on.id, lost.ray.resources)
            log.info("reserved once more what ray had lost", allocation=lost.id)
            if lost.id not in self._state.allocations:
                await self._release(lost.id)
        except NoRay as error:
            log.warning("ray does not reserve once more what a job holds", allocation=lost.id, why=_words(error))
        finally:
            self._reserved_again.discard(lost.id)

    async def close(self) -> None:
        """Stop asking. Reservations stay, and are found again."""
        tasks = [*self._tasks, *([self._refreshing] if self._refreshing is not None else [])]
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def matched(nodes: Mapping[str, Node], usage: Iterable[dict[str, Any]]) -> dict[str, OnRay]:
    """Return what Ray has on the nodes of the grid."""
    return {name: _on_ray(one) for name, one in found_on(nodes, usage).items()}


def found_on(nodes: Mapping[str, Node], usage: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The nodes of Ray on our nodes: on the one that its node's label `grid-node` says, else on the one that has the
    name of its node, or its address; an agent that is on our own machine is found by that machine's name. A raylet that
    we lent, and one that is drained, takes no jobs."""
    labelled: dict[str, dict[str, Any]] = {}
    named: dict[str, dict[str, Any]] = {}
    at: dict[str, dict[str, Any]] = {}
    on: dict[str, dict[str, Any]] = {}
    for one in usage:
        if LABEL in one["labels"] or one["status"] == "draining":
            continue
        if (label := one["labels"].get(NODE)) is not None:
            labelled.setdefault(label, one)
            continue
        named.setdefault(one["name"], one)
        at.setdefault(one["ip"], one)
        on.setdefault(one["host"], one)
    found = {}
    for name, node in nodes.items():
        address = node.facts.address
        here = not address or address.startswith(LOOPBACK)
        its = labelled.get(name) or named.get(name) or (on.get(node.facts.hostname) if here else at.get(address))
        if its is not None:
            found[name] = its
    return found


def _on_ray(one: dict[str, Any]) -> OnRay:
    def amounts(of: dict[str, float]) -> tuple[int, int, int]:
        return round(of.get("CPU", 0.0) * MILLI), round(of.get("memory", 0.0)), round(of.get("GPU", 0.0) * MILLI)

    total, free, ours = amounts(one["total"]), amounts(one["available"]), amounts(one["ours"])
    others = (max(0, a - b - c) for a, b, c in zip(total, free, ours, strict=True))
    return OnRay(one["id"], Resources(*total), Resources(*others))


def _bundle(resources: Resources) -> dict[str, float]:
    """A bundle in Ray's units."""
    amounts = {"CPU": resources.cpu / MILLI, "memory": float(resources.memory), "GPU": resources.gpu / MILLI}
    return {kind: amount for kind, amount in amounts.items() if amount}


def _words(error: NoRay) -> str:
    if not error.why or error.what.startswith("Ray did not reserve"):
        return error.why or error.what
    return f"{error.what}: {error.why}"


SWEEP_FIRST, SWEEP_LONGEST = 10.0, 600.0
"""Seconds until Ray is asked again after a failure, doubled from the first to the second."""
SWEEP_SECONDS = 60.0

sweep_log = get_logger("ray")


async def sweep_until_done(state: GridState, bridge: Bridge) -> None:
    """Release leftover groups as soon as Ray can be asked."""
    pause = SWEEP_FIRST
    while True:
        try:
            left = await sweep(state, bridge)
            break
        except NoRay:  # who asks for a boost or a job is told why
            pass
        await asyncio.sleep(pause)
        pause = min(2 * pause, SWEEP_LONGEST)
    if left:
        sweep_log.warning("placement groups were left over, and are gone", groups=left)


async def sweep(state: GridState, bridge: Bridge) -> list[str]:
    """Release groups of jobs and boosts that no longer exist; their names. Where there are some, this takes a bridge of
    its own: one that releases groups is a driver of the cluster, which few coordinators need. Raises NoRay."""
    listed = await bridge.ask("listed", seconds=SWEEP_SECONDS)
    left = [name for name in listed if _is_for_nobody(state, name)]
    if left:
        own = bridge.another()
        try:
            for name in left:
                await own.ask("release", seconds=SWEEP_SECONDS, name=name)
        finally:
            await own.close()
    return left


def _is_for_nobody(state: GridState, name: str) -> bool:
    if name.startswith(JOBS):
        held = state.allocations.get(name.removeprefix(JOBS))
        return held is None or held.ray is None
    return name.startswith(BOOSTS) and name.removeprefix(BOOSTS) not in state.jobs
