"""Exclusive boosts: a placement group over all of a raylet, so that only programs which use it run there.

It is asked for while the raylet starts, as on a node that has just come it is before all tasks that wait for room
(reference/ray.md). It goes when the raylet is to end: Ray would wait for it as for a task, until the grace is over.
"""

import asyncio
import math
from collections.abc import Iterable

import structlog

from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.ray.bridge_client import Bridge, NoRay
from distributed_grid.coordinator.ray.compare import in_ray
from distributed_grid.protocol.boosts import LABEL, group_name
from distributed_grid.protocol.jobs import State

WITHIN = 60.0
"""How long Ray may take to have the group, from the start of the raylet on: no longer than the raylet itself."""
ASK_SECONDS = 15.0
AT_LEAST = 0.005
"""Seconds between two looks at what is to go."""

log = structlog.get_logger("boosts")


class Groups:
    """The groups of exclusive boosts, by boost. Made from those that live, as a coordinator before us may have left
    them."""

    def __init__(self, bridge: Bridge | None, jobs: Iterable[Job]) -> None:
        self._bridge = bridge
        self._there = {job.id for job in jobs if is_exclusive(job)}
        self._reserving: dict[str, asyncio.Task[None]] = {}
        self._releasing: dict[str, asyncio.Task[None]] = {}

    def __bool__(self) -> bool:
        """Whether there is any to look after."""
        return bool(self._there)

    def look(self, live: Iterable[Job], now: float) -> None:
        """Have groups asked for and let go of, as these boosts stand at this moment of grid time."""
        wanted = {job.id: job for job in live if is_exclusive(job) and not _ends(job, now)}
        for name, job in wanted.items():
            if job.state is State.STARTING and job.started and _free(self._reserving, name):
                self._there.add(name)
                self._reserving[name] = asyncio.create_task(self._reserve(job), name="groups")
        for name in self._there - wanted.keys():
            if _free(self._releasing, name):
                self._releasing[name] = asyncio.create_task(self._release(name), name="groups")

    def rest(self, live: Iterable[Job], now: float) -> float:
        """Seconds until the first of these boosts ends by its time, and its group is to go."""
        ends = (_end(job) - now for job in live if job.id in self._there)
        return max(AT_LEAST, min((left for left in ends if left > 0), default=math.inf))

    async def _reserve(self, job: Job) -> None:
        boost, grant, bridge = job.spec.boost, job.grant, self._bridge
        if boost is None or grant is None or bridge is None:
            return
        bundle = {what: amount for what, amount in in_ray(boost, grant).items() if amount}
        asked = {"bundles": [bundle], "strategy": "STRICT_PACK", "selectors": [{LABEL: job.id}], "within": WITHIN}
        try:
            await bridge.ask("reserve", seconds=WITHIN + ASK_SECONDS, name=group_name(job.id), **asked)
        except NoRay as error:  # it is asked for again, until the boost is there or ends for want of it
            if job.state is State.STARTING:
                log.warning("a boost has no placement group yet", boost=job.id, what=error.what, why=error.why)
            await asyncio.sleep(1.0)

    async def _release(self, name: str) -> None:
        try:
            if self._bridge is not None:
                await self._bridge.ask("release", seconds=ASK_SECONDS, name=group_name(name))
        except NoRay:  # again, when Ray is there: groups outlive their nodes, and us
            await asyncio.sleep(5.0)
            return
        if not _free(self._reserving, name):
            return  # it may be made a moment from now: once more at the next look
        self._there.discard(name)
        self._reserving.pop(name, None)

    def close(self) -> None:
        """Ask no more."""
        for task in (*self._reserving.values(), *self._releasing.values()):
            task.cancel()


def _free(tasks: dict[str, asyncio.Task[None]], name: str) -> bool:
    return name not in tasks or tasks[name].done()


def is_exclusive(job: Job) -> bool:
    """Whether this is a boost for programs that use its group alone."""
    return job.spec.boost is not None and job.spec.boost.exclusive


def _ends(job: Job, now: float) -> bool:
    """Whether its raylet is to end now: its node keeps its time by itself."""
    return job.state is State.STOPPING or now >= _end(job)


def _end(job: Job) -> float:
    """When it ends by its time."""
    limit = job.spec.time_limit
    return job.started + limit if job.started and limit else math.inf
