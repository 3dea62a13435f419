"""Rebalancing around the ledger: at each interval Ray is asked for waiting demand and idle raylets, and the answer
becomes one event. Without Ray, a pass runs only if the policy moves jobs before the owners of their nodes come."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import DemandReported, Event
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.rebalancing import passes
from distributed_grid.coordinator.core.rebalancing.view import RayLook, Waiting
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.ray.bridge_client import Bridge, NoRay
from distributed_grid.coordinator.ray.reservations import found_on
from distributed_grid.protocol.boosts import JOIN_WITHIN, LABEL, RayAuth, custom_resource
from distributed_grid.protocol.resources import MILLI, Resources, format_bytes
from distributed_grid.protocol.sharing.moves import Pass
from distributed_grid.protocol.sharing.policies import MOST_MOVES, OffloadingMode
from distributed_grid.runtime.accounts import name_of

ANSWER = 30.0
"""Time-out for an answer that may have to wait until the bridge has imported ray from a cold disk (s)."""
CHECK = 5.0
"""Interval between checks whether a pass is due (s): mode and interval may change."""
SHAPES = 100
"""Maximum number of different demands in one pass: the most frequent ones."""


class Balancer:
    """Tells the ledger at each interval what waits in Ray. `bridge` None: there is no Ray; `ids`: new ids of jobs."""

    def __init__(
        self,
        state: GridState,
        bridge: Bridge | None,
        auth: RayAuth,
        put: Callable[[Event], None],
        ids: Callable[[int], list[str]],
        join_within: float = JOIN_WITHIN,
    ) -> None:
        self._state = state
        self._bridge = bridge
        self._auth = auth
        self._put = put
        self._ids = ids
        self._join_within = join_within
        self._user = name_of(os.getuid())
        self._passing: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address of the Ray cluster; empty: there is none."""
        return self._bridge.address if self._bridge is not None else ""

    def begin(self) -> None:
        """Pass from now on."""
        self._passing = asyncio.create_task(self._pass_on(), name="rebalancing")

    async def close(self) -> None:
        """Pass no more."""
        if self._passing is not None:
            self._passing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._passing

    async def _pass_on(self) -> None:
        clock = asyncio.get_running_loop().time
        last = clock()
        while True:
            left = last + self._state.policy.balancing.interval - clock()
            if left > 0:
                await asyncio.sleep(min(CHECK, left))
                continue
            last = clock()
            balancing = self._state.policy.balancing
            if self._bridge is not None and balancing.mode is not OffloadingMode.OFFLOAD_ONLY:
                await self._report()
            elif balancing.mode is OffloadingMode.DYNAMIC_BALANCING and balancing.values.horizon:
                self._put(DemandReported(None))

    async def _report(self) -> None:
        try:
            look = await self.look()
        except NoRay as error:
            self._put(DemandReported(None, trouble=f"{error.what}: {error.why}" if error.why else error.what))
        else:
            self._put(DemandReported(look, tuple(self._ids(MOST_MOVES))))

    async def proposed(self, now: Callable[[], float]) -> Pass:
        """Return what a pass would do now, without doing it. Without a Ray cluster it has only the jobs that would
        move, and says why it has no more. Raises NoRay if the cluster does not answer."""
        if self._bridge is not None:
            look = await self.look()
            return passes.proposed(self._state, look, now())
        found = passes.proposed(self._state, passes.NO_RAY, now())
        return replace(found, trouble="this coordinator knows of no Ray cluster (set ray.address there)")

    async def look(self) -> RayLook:
        """Query Ray for its demand and raylets. Raises NoRay."""
        bridge = self._bridge
        if bridge is None:
            raise NoRay(
                "this coordinator knows of no Ray cluster",
                hint="set ray.address (or RAY_ADDRESS) to HOST:PORT of its head, and start again",
            )
        told, cluster = await asyncio.gather(bridge.ask("nodes", seconds=ANSWER), bridge.ask("cluster", seconds=ANSWER))
        return RayLook(
            target=_target(self._state.nodes, told["nodes"]),
            address=bridge.address,
            user=self._user,
            auth=self._auth,
            ray=cluster["ray"],
            python=cluster["python"],
            join_within=self._join_within,
            total=_sum(one["total"] for one in told["nodes"]),
            used=_sum(one["total"] for one in told["nodes"]) - _sum(one["available"] for one in told["nodes"]),
            waiting=waiting(told, custom_resource(_target(self._state.nodes, told["nodes"]))),
            idle={one["labels"][LABEL]: one["idle"] for one in told["nodes"] if LABEL in one["labels"]},
            members=tuple(found_on(self._state.nodes, told["nodes"])),
        )


def _target(nodes: Mapping[str, Node], told: list[dict[str, Any]]) -> str:
    """The target of boosts: the node of the grid that the head runs on, otherwise the head by its name in Ray."""
    heads = [one for one in told if one["head"]]
    on = next(iter(found_on(nodes, heads)), "")
    return on or next((one["name"] or one["host"] or one["ip"] for one in heads), "")


def _sum(of: Iterable[dict[str, float]]) -> Resources:
    cpu = memory = gpu = 0.0
    for one in of:
        cpu, memory, gpu = cpu + one.get("CPU", 0.0), memory + one.get("memory", 0.0), gpu + one.get("GPU", 0.0)
    return Resources(round(cpu * MILLI), round(memory), round(gpu * MILLI))


def waiting(told: dict[str, Any], own: str) -> tuple[Waiting, ...]:
    """Return the waiting demand in Ray, as its bridge reports it. `own`: the custom resource that boosts for the target
    bring. Of similar groups only the first is reported: the next one follows when that is served."""
    found: dict[str, Waiting] = {}
    for one in told["demand"]:
        shape, group = one["shape"], one.get("group", False)
        each, odd = _each(shape, own)
        if one.get("labels"):
            odd = "it asks for labels of its node"
        flags = [word for word in ("together", "apart") if one.get(word)]
        text = ", ".join([_words(shape), *["in one group"] * group, *flags, *["with labels"] * ("labels" in one)])
        fits = any(all(node["total"].get(kind, 0.0) >= much for kind, much in shape.items()) for node in told["nodes"])
        same = found.get(text)
        if same is not None and group:
            continue
        count = one["count"] + (same.count if same is not None else 0)
        found[text] = Waiting(text, each, count, group, "together" in flags, "apart" in flags, fits, odd)
    most = sorted(found.values(), key=lambda one: (-one.count, one.text))[:SHAPES]
    return tuple(sorted(most, key=lambda one: one.text))


def _each(shape: dict[str, float], own: str) -> tuple[Resources, str]:
    """Return what a task of this shape requests, and why no boost can serve it (empty: one can)."""
    cpu, gpu, memory = shape.get("CPU", 0.0), shape.get("GPU", 0.0), shape.get("memory", 0.0)
    if much := shape.get(own, 0.0):  # of it a boost has as many as GPUs, or cores where it has none
        gpu, cpu = (max(gpu, much), cpu) if gpu else (0.0, max(cpu, much))
    others = sorted(kind for kind in shape if kind not in ("CPU", "GPU", "memory", own))
    odd = ""
    if others:
        odd = f"it asks for {', '.join(others)[:200]}, which no boost brings"
    elif not (cpu or gpu or memory):
        odd = "it asks for no core, GPU or memory, and so does not wait for room"
    elif not all(0 <= much < 1e15 for much in (cpu, gpu, memory)):
        odd = "it asks for an impossible amount"
        cpu = gpu = memory = 0.0
    return Resources(round(cpu * MILLI), round(memory), round(gpu * MILLI)), odd


def _words(shape: dict[str, float]) -> str:
    parts = [
        f"{format_bytes(int(much))} memory" if kind == "memory" else f"{much:g} {kind}"
        for kind, much in sorted(shape.items())
    ]
    return ", ".join(parts)[:500] or "nothing"
