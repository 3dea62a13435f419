"""Boosts around the ledger: a request becomes a job, and what Ray shows of it becomes an event; and the placement
groups of exclusive boosts, which cover all resources of a raylet."""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from distributed_grid.coordinator.core.commands import Event, RayAnswered, RayletJoined, RayletLeft
from distributed_grid.coordinator.core.lifecycle import boosts as core_boosts
from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.core.views import Visibility
from distributed_grid.coordinator.ray.bridge_client import Bridge, NoRay
from distributed_grid.coordinator.ray.compare import compared, differs, in_ray, marked, ray_node
from distributed_grid.protocol.boosts import JOIN_WITHIN, LABEL, Boost, RayAuth, group_name, needs, parse_amount
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.jobs import JobView, Request, State
from distributed_grid.protocol.messages import Boosts, Demand, ListBoosts, RayNode, RequestBoost, Submission, Submit
from distributed_grid.protocol.placement import NO_CONSTRAINTS, Constraints, Walls
from distributed_grid.protocol.text import CHARS, format_duration, unknown_node
from distributed_grid.runtime.logs import get_logger

ASK_SECONDS = 15.0
GROUPS_AT_LEAST = 0.005
"""Seconds between two looks at what is to go."""

SOON, SELDOM = 0.1, 2.0
"""Seconds between two looks at what boosts there are: while one is on its way, and else."""
IMPORTED, EARLY = 0.5, 0.02
"""No raylet joins in its first half second, in which Ray is imported, nor in half the time that the fastest one has
taken; until then it is looked for this often (s)."""
AT_LEAST, OF_WAITING = 0.002, 1 / 1000
"""Interval between looks for a raylet that is to join (s): at least this, or this part of how long it has been on its
way. A look takes half a millisecond of CPU, Ray's share included."""
USUAL, OF_WAITING_LATE = 5.0, 1 / 50
"""A raylet that has been on its way for longer than this (s) is on a busy machine, and needs what looks would take:
from then on it is looked for by this part of that time."""
OF_CHECKING = 4.0
"""Where a raylet is there but not yet as it was lent, all nodes are listed: the interval is this multiple of how long
that takes."""
UNSEEN = 6.0
"""Seconds that Ray answers without a boost that had joined, after which the boost is gone."""
GONE = (
    "Ray does not show it any more: its head could not reach it for a while, or was started anew without its memory, "
    "or somebody drained it"
)
FIRST_SECONDS = 30.0
"""Time-out for an answer that may have to wait until the bridge has imported ray from a cold disk."""
RECENT, TOLD = 10.0, 60.0
"""Seconds after Ray's last answer to any question, and after its last one about the cluster, in which that is not
repeated for a request. A cluster that has gone since is noticed by the node that is to join it."""
ASK_NODES_SECONDS = 12.0
"""Time-out for Ray's answer to somebody who asks for the status."""

log = get_logger("boosts")


class Groups:
    """The placement groups of exclusive boosts, by boost; begun with the boosts that live, whose groups an earlier
    coordinator may have left."""

    def __init__(self, bridge: Bridge | None, jobs: Iterable[Job]) -> None:
        self._bridge = bridge
        self._there = {job.id for job in jobs if is_exclusive(job)}
        self._reserving: dict[str, asyncio.Task[None]] = {}
        self._releasing: dict[str, asyncio.Task[None]] = {}

    def __bool__(self) -> bool:
        """Whether there are groups to look after."""
        return bool(self._there)

    def reconcile(self, live: Iterable[Job], now: float) -> None:
        """Reserve and release groups, as these boosts stand at this moment of grid time."""
        wanted = {job.id: job for job in live if is_exclusive(job) and not _ends(job, now)}
        for name, job in wanted.items():
            if job.state is State.STARTING and job.started and _free(self._reserving, name):
                self._there.add(name)
                self._reserving[name] = asyncio.create_task(self._reserve(job), name="groups")
        for name in self._there - wanted.keys():
            if _free(self._releasing, name):
                self._releasing[name] = asyncio.create_task(self._release(name), name="groups")

    def rest(self, live: Iterable[Job], now: float) -> float:
        """Seconds until the first of these boosts ends by its time limit."""
        ends = (_end(job) - now for job in live if job.id in self._there)
        return max(GROUPS_AT_LEAST, min((left for left in ends if left > 0), default=math.inf))

    async def _reserve(self, job: Job) -> None:
        boost, grant, bridge = job.spec.boost, job.grant, self._bridge
        if boost is None or grant is None or bridge is None:
            return
        bundle = {what: amount for what, amount in in_ray(boost, grant).items() if amount}
        within = boost.join_within
        asked = {"bundle": bundle, "selector": {LABEL: job.id}, "within": within}
        try:
            await bridge.ask("reserve", seconds=within + ASK_SECONDS, name=group_name(job.id), **asked)
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
            return  # it may be made a moment from now: once more at the next check
        self._there.discard(name)
        self._reserving.pop(name, None)

    def close(self) -> None:
        """Cancel what is in progress."""
        for task in (*self._reserving.values(), *self._releasing.values()):
            task.cancel()


def _free(tasks: dict[str, asyncio.Task[None]], name: str) -> bool:
    return name not in tasks or tasks[name].done()


def is_exclusive(job: Job) -> bool:
    """Whether this is an exclusive boost."""
    return job.spec.boost is not None and job.spec.boost.exclusive


def _ends(job: Job, now: float) -> bool:
    """Whether its raylet ends now; its node keeps the time limit by itself."""
    return job.state is State.STOPPING or now >= _end(job)


def _end(job: Job) -> float:
    """Return when a boost ends by its time limit, which counts from when it is lent."""
    limit = job.spec.time_limit
    return job.started + limit if job.begun and job.started and limit else math.inf


class BoostService:
    """All boosts of this coordinator. `bridge` None: there is no Ray. Ray has to show a raylet within `join_within`
    seconds."""

    def __init__(
        self,
        state: GridState,
        bridge: Bridge | None,
        auth: RayAuth,
        put: Callable[[Event], None],
        clock: Callable[[], float] = time.time,
        join_within: float = JOIN_WITHIN,
    ) -> None:
        self._state = state
        self._join_within = join_within
        self._bridge = bridge
        self._auth = auth
        self._put = put
        self._watching: asyncio.Task[None] | None = None
        self._joining: asyncio.Task[None] | None = None
        self._stirred = asyncio.Event()
        self._warming: asyncio.Task[None] | None = None
        self._trouble = ""
        self._heard = -math.inf
        self._silent = False
        """Ray did not answer the last question."""
        self._told: dict[str, tuple[float, dict[str, Any]]] = {}
        """When Ray answered last; and what it told of the cluster, and when, by the name that it was asked for."""
        self._clock = clock
        self._groups = Groups(bridge, state.jobs.values())
        self._unseen: dict[str, float] = {}
        """Boosts that had joined and that Ray shows no more, and since when."""
        self._fastest = 0.0
        """Seconds from the start of the raylet that joined fastest until it was seen; 0: none has joined."""
        self._boosts = {name: None for name, job in state.jobs.items() if job.spec.boost is not None}

    # --- requests -----------------------------------------------------------------------------------------------------

    async def submission(self, asked: RequestBoost) -> Submission:
        """The job to submit for a boost. Raises GridError, BadValue."""
        amount = parse_amount(asked.kind, asked.amount)
        if not asked.duration > 0:  # as a job's time limit it would be none
            raise BadValue(f"a boost cannot last {asked.duration:g} s", hint="give seconds above 0")
        if asked.duration > core_boosts.MOST:
            what = f"a boost cannot last {format_duration(asked.duration)}"
            raise BadValue(what, f"{format_duration(core_boosts.MOST)} at most", "extend it before that is over")
        bridge = self._there()
        abroad = asked.target not in self._state.nodes
        cluster = await self._cluster(asked.target if abroad else "")
        if abroad and not cluster["knows"]:
            await self._known(asked.target)
        boost = Boost(
            target=asked.target,
            address=bridge.address,
            kind=asked.kind,
            amount=amount,
            auth=self._auth,
            ray=cluster["ray"],
            python=cluster["python"],
            exclusive=asked.exclusive,
            join_within=self._join_within,
        )
        if asked.exclusive:
            await bridge.ask("reserved", seconds=FIRST_SECONDS)  # whether Ray can be asked for groups at all
        constraints = Constraints(only=(asked.only_source,)) if asked.only_source else self._others(boost, asked.source)
        if asked.walls is not Walls.NONE:
            constraints = msgspec.structs.replace(constraints or NO_CONSTRAINTS, walls=asked.walls)
        request = Request(
            needs(asked.kind, amount),
            asked.priority,
            nodes=(asked.source,) if asked.source else (),
            immediate=not asked.wait,
            requeue=False,
            constraints=constraints,
            joins=bridge.address if asked.wait or not asked.only_source else "",
        )
        return Submission(asked.key, core_boosts.spec(boost, asked.duration), request)

    def _others(self, boost: Boost, source: str) -> Constraints | None:
        """Constrain to nodes whose Ray can join, if there are any; else the chosen node reports what it lacks. The
        target lends to itself only if it is named as the source."""
        wanted = boost.ray, boost.python.split(".")[:2]
        nodes = [node.facts for node in self._state.nodes.values()]
        itself = tuple(facts.name for facts in nodes if facts.name == boost.target != source)
        others = [facts for facts in nodes if facts.name not in itself]
        unable = tuple(facts.name for facts in others if (facts.ray, facts.ray_python.split(".")[:2]) != wanted)
        exclude = itself + unable if len(unable) < len(others) else itself
        return Constraints(exclude=exclude) if exclude else None

    async def _known(self, target: str) -> None:
        """Raise BadValue for an unknown target: no node of the grid, and no name, address or host name in Ray."""
        self._one_of(target, await self.nodes(), "Target node not found in cluster")

    def _one_of(self, name: str, nodes: Collection[RayNode], what: str = "") -> None:
        """Raise BadValue for a name that belongs neither to a node of the grid nor to one of these of Ray's."""
        if name in self._state.nodes or any(name in (node.name, node.host, node.ip) for node in nodes):
            return
        names = sorted({*self._state.nodes, *(node.name or node.host or node.ip for node in nodes if not node.boost)})
        among = f"{name[:CHARS]!r} is neither a node of the grid nor of Ray; there are"
        raise unknown_node(name, names, what, among, "grid cluster status")

    async def _ask(self, what: str, seconds: float = FIRST_SECONDS, **words: Any) -> Any:
        """Ray's answer. Raises GridError."""
        try:
            answer = await self._there().ask(what, seconds=seconds, **words)
        except NoRay:
            self._told.clear()
            self._silent = True
            raise
        self._heard = time.monotonic()
        if self._silent:
            self._silent = False
            self._put(RayAnswered(self.address))
        return answer

    async def _cluster(self, node: str = "") -> dict[str, Any]:
        """Return the versions of the cluster, and whether it knows this node, from Ray's last answer if that is recent,
        else from a new one. Raises GridError."""
        at, told = self._told.get(node, (-math.inf, {}))
        now = time.monotonic()
        if now < at + TOLD and now < self._heard + RECENT:
            return told
        answer: dict[str, Any] = await self._ask("cluster", node=node)
        if answer["knows"] or not node:
            self._told = {name: one for name, one in self._told.items() if now < one[0] + TOLD}
            self._told[node] = now, answer
        return answer

    def _there(self) -> Bridge:
        if self._bridge is None:
            raise GridError(
                "this coordinator knows of no Ray cluster",
                hint="set ray.address (or RAY_ADDRESS) to HOST:PORT of its head, and start again",
            )
        return self._bridge

    # --- what Ray shows -----------------------------------------------------------------------------------------------

    async def nodes(self) -> list[RayNode]:
        """Return all nodes that are alive in Ray. Raises GridError."""
        return [ray_node(one) for one in (await self._ask("nodes"))["nodes"]]

    async def shown(
        self, asked: ListBoosts, visibility: Visibility, views: Callable[[list[str]], list[JobView]]
    ) -> Boosts:
        """Live boosts beside what Ray shows, as this client may see them. Raises BadValue for an unknown target."""
        before = {job.id: job.state for job in self.live()}  # what comes or joins while Ray is asked is not judged
        nodes: tuple[RayNode, ...] | None = None
        seen: dict[str, Any] = {}
        cluster: dict[str, Any] = {}
        trouble = ""
        if self._bridge is not None:
            try:
                seen, cluster = await asyncio.gather(
                    self._bridge.ask("nodes", seconds=ASK_NODES_SECONDS),
                    self._bridge.ask("cluster", seconds=ASK_NODES_SECONDS),
                )
                nodes = tuple(map(ray_node, seen["nodes"]))
            except NoRay as error:
                trouble = f"{error.what}: {error.why}" if error.why else error.what
        after = self.live()
        wanted = [job.id for job in after if asked.target in ("", _target(job))]
        if asked.target and not wanted and not trouble:
            self._one_of(asked.target, nodes or ())
        ran = frozenset(job for job, state in before.items() if state is State.RUNNING) if nodes is not None else None
        boosts = compared(views(wanted), nodes or (), self.address, ran, self._state.now)
        nodes = marked(nodes or (), frozenset((*before, *(job.id for job in after))))
        return Boosts(
            id=asked.id,
            boosts=tuple(map(visibility.boost, boosts)),
            address=self.address,
            nodes=tuple(map(visibility.raylet, nodes)),
            trouble=trouble,
            ray=cluster.get("ray", ""),
            python=cluster.get("python", ""),
            demand=msgspec.convert(seen.get("demand", ()), tuple[Demand, ...]),
        )

    @property
    def address(self) -> str:
        """The address of the Ray cluster; empty: there is none."""
        return self._bridge.address if self._bridge is not None else ""

    def live(self) -> list[Job]:
        """The boosts that have not ended, the oldest first."""
        known = self._state.jobs
        self._boosts = {name: None for name in self._boosts if name in known}
        return [known[name] for name in self._boosts]

    def begin(self) -> None:
        """Watch the live boosts, and start the bridge before the first request: it takes a second."""
        self.stir()
        if self._bridge is not None:
            self._warming = asyncio.create_task(self._warm(), name="ray")

    async def _warm(self) -> None:
        with contextlib.suppress(NoRay):  # who asks for a boost is told
            await self._cluster()

    def stir(self, *jobs: str) -> None:
        """Watch these boosts too, from now on."""
        self._boosts |= dict.fromkeys(jobs)
        self._stirred.set()
        if self._bridge is not None and self._boosts and (self._watching is None or self._watching.done()):
            self._watching = asyncio.create_task(self._watch(), name="boosts")

    def stops(self, allocation: str) -> None:
        """The node of this allocation is told to end it: the group of a boost is released now."""
        held = self._state.allocations.get(allocation)
        if held is not None and held.job in self._boosts:
            self.stir()

    async def _watch(self) -> None:
        """While there are boosts, watch whether Ray still shows them, whether starting ones have joined, and the groups
        of exclusive ones."""
        clock, next_check = asyncio.get_running_loop().time, 0.0
        while (live := self.live()) or self._groups:
            self._stirred.clear()
            self._groups.reconcile(live, self._clock())
            settled = all(job.state in (State.RUNNING, State.STOPPING) for job in live)
            pause = min(SELDOM, self._groups.rest(live, self._clock())) if settled else SOON
            if self._awaited() and (self._joining is None or self._joining.done()):
                self._joining = asyncio.create_task(self._join(), name="boosts")
            running = [job for job in self._here() if job.state is State.RUNNING]
            if running and clock() >= next_check:
                await self._report_missing(running)
                next_check = clock() + SELDOM
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stirred.wait()

    def _here(self) -> list[Job]:
        """Live boosts that are lent to the Ray cluster of this coordinator."""
        return [job for job in self.live() if job.spec.boost is not None and job.spec.boost.address == self.address]

    def _awaited(self) -> list[Job]:
        """The boosts among them that have started and not joined yet."""
        return [job for job in self._here() if job.state is State.STARTING and job.started]

    async def _join(self) -> None:
        """Report each starting boost to the ledger once Ray shows it as it was lent."""
        clock = asyncio.get_running_loop().time
        since: dict[str, float] = {}
        shown: dict[str, RayNode] = {}
        while awaited := self._awaited():
            began = clock()
            since = {job.id: since.get(job.id, began) for job in awaited}
            wait = min(pace(began - start, self._fastest) for start in since.values())
            if differs_yet := any(job.id in shown for job in awaited):
                told = await self._shown("nodes")
            else:
                told = await self._shown("joined", names=list(since), within=SOON, pause=wait)
            if told is not None:
                shown = told
                for job in self._awaited():
                    if (node := shown.get(job.id)) is not None and not differs(job, node, self._state.now):
                        self._put(RayletJoined(job.allocation, node.id))
                        took = clock() - since.get(job.id, began)
                        self._fastest = min(self._fastest or took, took)
            if self._trouble:
                await asyncio.sleep(SOON)
            else:  # where the bridge did not wait for them, we do
                await asyncio.sleep(max(wait, OF_CHECKING * (clock() - began)) if differs_yet else 0)

    async def _shown(self, what: str, **words: Any) -> dict[str, RayNode] | None:
        """Return the raylets that Ray shows, by boost; None: it shows none of them, or cannot be queried."""
        try:
            told = await self._ask(what, **words)
        except NoRay as error:
            if error.why != self._trouble:
                self._trouble = error.why
                log.warning("ray cannot be asked", what=error.what, why=error.why)
            return None
        self._trouble = ""
        if told is None:
            return None
        return {node.boost: node for node in map(ray_node, told["nodes"]) if node.boost}

    async def _report_missing(self, running: list[Job]) -> None:
        """Report running boosts to the ledger that Ray does not show any more."""
        known = {job.allocation: job.id for job in running}
        shown = await self._shown("nodes")
        if shown is None:
            self._unseen.clear()
            return
        now = asyncio.get_running_loop().time()
        unseen = [allocation for allocation, job in known.items() if job not in shown]
        self._unseen = {allocation: self._unseen.get(allocation, now) for allocation in unseen}
        for allocation, since in self._unseen.items():
            if now >= since + UNSEEN:
                self._put(RayletLeft(allocation, GONE))

    async def close(self) -> None:
        """End the bridge."""
        for task in (self._watching, self._joining, self._warming):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._groups.close()
        if self._bridge is not None:
            await self._bridge.close()


def pace(waited: float, fastest: float = 0.0) -> float:
    """Interval between looks for a raylet that has been starting for this long (s), where the fastest one has taken
    that long (0: none has joined)."""
    if waited < max(IMPORTED, min(fastest / 2, USUAL)):
        return EARLY
    return max(AT_LEAST, (OF_WAITING if waited < USUAL else OF_WAITING_LATE) * waited)


def no_other_boost(asked: RequestBoost, one: Submission) -> None:
    """Raise BadValue for a key that was used for something else."""
    boost = one.spec.boost
    if boost is None or (boost.target, boost.kind) != (asked.target, asked.kind):
        raise BadValue(
            f"the key {asked.key!r} was used for something else",
            why="one key is one boost, or one job",
            hint="give each request a key of its own",
        )


def no_boosts(message: Submit) -> None:
    """Raise BadValue for a boost submitted as a job: the coordinator decides what a raylet joins, and how."""
    if any(one.spec.boost is not None for one in message.jobs):
        raise BadValue("a boost is not submitted as a job", hint="grid boost request")


def _target(job: Job) -> str:
    return job.spec.boost.target if job.spec.boost is not None else ""
