"""`DynamicResourceManager`: resources of a node for a task, reserved by holds and compared by the grid's own placement,
over one client connection."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec.structs import replace

from distributed_grid.config.scaling import ScalingSection
from distributed_grid.config.settings import ClusterConfig
from distributed_grid.coordinator.client.aio import GridClient
from distributed_grid.coordinator.client.compat.connected import Connected
from distributed_grid.coordinator.client.compat.sharing import ResourceSharingManager
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.coordinator.client.submission import HOLD_DURATION
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.messages import NodeVerdict
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import GIB, MIB, MILLI, Resources, ResourceType
from distributed_grid.protocol.text import suggestion, unknown_node

_SCALING = ScalingSection()
DEFAULT_TARGET_UTILIZATION = _SCALING.target_utilization
DEFAULT_SCALE_UP_THRESHOLD = _SCALING.scale_up_threshold
DEFAULT_SCALE_DOWN_THRESHOLD = _SCALING.scale_down_threshold
DEFAULT_EVALUATION_WINDOW = _SCALING.evaluation_window
DEFAULT_SCALE_UP_COOLDOWN = _SCALING.scale_up_cooldown
DEFAULT_SCALE_DOWN_COOLDOWN = _SCALING.scale_down_cooldown
DEFAULT_WORKER_REASSESSMENT_INTERVAL = _SCALING.worker_reassessment_interval
DEFAULT_HISTORY_RETENTION = _SCALING.history_retention

CORES = {"cpu_cores": MILLI, "cores": MILLI, "available_cores": MILLI, "cpu": MILLI, "cpus": MILLI}
MEMORY = {"memory_mb": MIB, "total_mb": MIB, "available_mb": MIB, "memory_gb": GIB, "memory": GIB}
GPUS = {"gpus": MILLI, "gpu": MILLI, "gpu_count": MILLI, "devices": MILLI, "available_devices": MILLI}
GPU_MEMORY = {"gpu_memory_mb": MIB, "gpu_memory_gb": GIB, "total_memory_mb": MIB, "available_memory_mb": MIB}
PARTS = {"cpu": (*CORES, "physical_cores"), "memory": (*MEMORY,), "gpu": (*GPUS, *GPU_MEMORY)}
"""What may stand in each part of a report; `memory_mb` of GPUs is not that of the worker."""


SCALE_UP, SCALE_DOWN, NO_ACTION = "scale_up", "scale_down", "none"


@dataclass(frozen=True)
class ScalingDecision:
    """The grid's present plan for machines. `action`: `scale_up`, `scale_down` or `none`; `count` of machines. To
    create: `resource_requirements` of each (by the names that `create_worker` takes), its `worker_type` (as its pool
    names the type; else `gpu` or `cpu`), `pool` and `provider`. To end: `worker_ids`, with the `pool` and `provider` of
    all of them. `reasons`: first for the planned actions, then for those that are not planned."""

    action: str
    count: int = 0
    resource_requirements: dict[str, float] = field(default_factory=dict)
    worker_type: str = ""
    worker_ids: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    pool: str = ""
    provider: str = ""


class DynamicResourceManager(Connected):
    """Reserves resources of workers for tasks, and tells when to scale. A worker is a node of the grid, with an agent
    or registered here without one; a reservation is a hold: it expires, and the task's job takes it by `within=`
    (`grid run-shared --in`).

    Requirements are amounts by name: `cpu_cores`, `memory_mb` or `memory_gb`, `gpus`, `gpu_memory_mb`; or as workers
    report resources, `{"cpu": {"cores": 2}, "memory": {"available_mb": 1024}, "gpu": {"devices": 1}}`.

    It connects on first use; `async with` and `shutdown()` disconnect, and reservations stay. A given `client` is used
    as it is: its owner connects and closes it."""

    def __init__(self, cluster_config: ClusterConfig | None = None, client: GridClient | None = None) -> None:
        super().__init__(cluster_config, client)
        self._sharing = ResourceSharingManager(self.config, self.client)

    async def register_worker(self, worker_id: str, resources: Mapping[str, Any]) -> bool:
        """Declare what a worker has on which no agent runs, as the document's workers report it: `cores`, `total_mb`
        and `devices` are what it has, `available_cores`, `available_mb` and `available_devices` what of that nothing
        but reservations uses (else all). Reservations take of it; no job is ever started there. True once it is on the
        coordinator's disk. Raises RequestRefused for a worker that has an agent, and BadValue. For operators."""
        found = capacities(resources)
        await self._declare(worker_id, found.whole, found.free, gpu_memory=found.gpu_memory)
        return True

    async def update_worker_resources(self, worker_id: str, resources: Mapping[str, Any]) -> bool:
        """Set the available resources of a registered worker: of each kind the `available_…` amount, or, without one,
        the whole; a kind that is not named stays as it was. Reservations stay, and count as used. Raises as
        `register_worker`."""
        found = _told(resources)
        kept = [kind for kind in ResourceType if kind not in found.named]
        await self._declare(worker_id, found.whole, found.free, known=True, kept=kept)
        return True

    async def _declare(self, worker: str | int, whole: Resources, free: Resources, **more: Any) -> None:
        if isinstance(worker, bool) or not isinstance(worker, str | int):
            raise BadValue(f"{worker!r:.80} is no name of a worker", hint="give text")
        await self.initialize()
        try:
            await self.client.declare_node(str(worker), whole, free, **more)
        except RequestRefused as refused:
            if refused.code == "bad-value":
                raise BadValue(refused.what, refused.why, refused.hint) from None
            raise

    async def evaluate_scaling(self) -> ScalingDecision:
        """Return the first part of the present plan: the machines of one type that it creates, else those of one pool
        that it ends. With `scaling.mode: act` the grid executes it itself. For operators."""
        await self.initialize()
        status = await self.client.scaling()
        plan = status.plan
        if plan is None:
            return ScalingDecision(NO_ACTION, reasons=("no pool of machines is configured (docs/scaling.md)",))
        does = [*(one.why for one in plan.creates), *(one.why for one in plan.drains)]
        reasons = tuple(dict.fromkeys([*does, *(f"{one.what}: {one.why}" for one in plan.not_done)]))
        if plan.creates:
            first = plan.creates[0]
            alike = [one for one in plan.creates if (one.pool, one.type) == (first.pool, first.type)]
            return ScalingDecision(
                SCALE_UP,
                len(alike),
                plain_requirements(first.resources),
                first.type or ("gpu" if first.resources.gpu else "cpu"),
                reasons=reasons,
                pool=first.pool,
                provider=first.provider,
            )
        if plan.drains:
            providers = {one.name: one.provider for one in status.machines}
            pool, provider = plan.drains[0].pool, providers.get(plan.drains[0].machine, "")
            of_pool = (one.machine for one in plan.drains if one.pool == pool)
            names = tuple(name for name in of_pool if providers.get(name, "") == provider)
            return ScalingDecision(
                SCALE_DOWN, len(names), worker_ids=names, reasons=reasons, pool=pool, provider=provider
            )
        return ScalingDecision(NO_ACTION, reasons=reasons)

    async def reserve_resources(
        self,
        worker_id: str,
        task_id: str | int,
        resource_requirements: Mapping[str, Any],
        *,
        duration: float | str = HOLD_DURATION,
    ) -> str | None:
        """Hold this much of a worker for a task, for `duration` (seconds, or text such as `"30m"`). The reservation's
        id; None if the worker has it not now, or never: the log says why. Raises BadValue for an unknown worker or
        requirements that make no sense."""
        request = await self._request(worker_id, resource_requirements)
        asked = request.constraints
        memory = {"gpu_memory": str(asked.gpu_memory // MIB) + "M"} if asked is not None and asked.gpu_memory else {}
        name = str(task_id)
        return await self._sharing.hold(request.resources, only=(worker_id,), name=name, duration=duration, **memory)

    async def release_resources(self, reservation_id: str) -> bool:
        """Give a reservation back. True once that is on the coordinator's disk; False if it has ended or is unknown."""
        await self.initialize()
        return await self._sharing.release_resource(reservation_id)

    async def check_resource_availability(self, worker_id: str, resource_requirements: Mapping[str, Any]) -> bool:
        """Whether a task that needs this could start on the worker now."""
        verdict = await self._verdict(worker_id, resource_requirements)
        return verdict is not None and verdict.ok

    async def calculate_task_worker_fitness(self, worker_id: str, resource_requirements: Mapping[str, Any]) -> float:
        """Return how well the worker suits such a task, by the grid's strategy: from 0 (it could not start there now)
        to 1."""
        verdict = await self._verdict(worker_id, resource_requirements)
        return verdict.confidence if verdict is not None and verdict.ok else 0.0

    async def _verdict(self, worker: str, needs: Mapping[str, Any]) -> NodeVerdict | None:
        # Asked of a reservation, which is also possible where no job could start.
        asked = replace(await self._request(worker, needs), hold=True)
        why = await self.client.why(request=asked, lasts=HOLD_DURATION)
        return next((one for one in why.verdicts if one.node == worker), None)

    async def _request(self, worker: str, needs: Mapping[str, Any]) -> Request:
        """Raises BadValue."""
        wanted, gpu_memory = requirements(needs)
        await self.initialize()
        names = [node.facts.name for node in await self.client.nodes()]
        if worker not in names:
            raise unknown_node(str(worker), names)
        return Request(wanted, constraints=Constraints(only=(worker,), gpu_memory=gpu_memory))


def requirements(needs: Mapping[str, Any]) -> tuple[Resources, int]:
    """Return the required resources, and the free memory of each GPU in bytes. A task that needs no cores gets one.
    Raises BadValue."""
    found = {"cpu": 0, "memory": 0, "gpu": 0, "gpu_memory": 0}
    given: dict[str, str] = {}
    for name, value in _flat(needs):
        for kind, units in (("cpu", CORES), ("memory", MEMORY), ("gpu", GPUS), ("gpu_memory", GPU_MEMORY)):
            if name in units:
                if kind in given:
                    raise BadValue(f"{given[kind]} and {name} are the same requirement", hint="give one of them")
                found[kind], given[kind] = _whole(name, value, units[name]), name
                break
        else:
            known = ["cpu_cores", "memory_mb", "memory_gb", "gpus", "gpu_memory_mb"]
            hint = f"{suggestion(name, known)}there are {', '.join(known)}"
            raise BadValue(f"{name!r} cannot be required", hint=hint)
    if not any(found.values()):
        raise BadValue("nothing is required", hint='give amounts, such as {"cpu_cores": 2, "memory_mb": 1024}')
    if found["gpu_memory"] and not found["gpu"]:
        found["gpu"] = MILLI
    return Resources(found["cpu"] or MILLI, found["memory"], found["gpu"]), found["gpu_memory"]


class Capacities(NamedTuple):
    """The resources of a worker, the available part of them, the memory of each of its GPUs in bytes, and the kinds
    that it named."""

    whole: Resources
    free: Resources
    gpu_memory: int
    named: frozenset[str]


_WHOLE = {
    "cpu": ("cores", "cpu_cores", "cpus"),
    "memory": ("total_mb", "memory_mb", "memory_gb"),
    "gpu": ("devices", "gpus"),
}
_FREE = {"cpu": ("available_cores",), "memory": ("available_mb",), "gpu": ("available_devices",)}
_BESIDE = ("physical_cores", "available_memory_mb", "hostname", "platform", "python")
"""What workers report, too (`HardwareDetector.get_capabilities`), and nothing is held by."""


def capacities(resources: Mapping[str, Any]) -> Capacities:
    """Parse the report of a worker: in parts (`{"cpu": {"cores": 8, "available_cores": 6.5}, "memory": {…}, "gpu":
    {…}}`) or flat (`{"cpu_cores": 8, "memory_mb": 16384}`). Raises BadValue."""
    found = _told(resources)
    if not found.whole:
        raise BadValue("a worker without resources cannot be registered", hint='such as {"cpu": {"cores": 8}}')
    return found


def _told(resources: Mapping[str, Any]) -> Capacities:
    """Parse a report, also one of a worker that is busy. Raises BadValue."""
    said = dict(_flat(resources))
    known = {
        *_BESIDE,
        "total_memory_mb",
        "gpu_memory_mb",
        *(name for of in (_WHOLE, _FREE) for names in of.values() for name in names),
    }
    if unknown := next((name for name in said if name not in known), None):
        hint = f"{suggestion(unknown, sorted(known))}there are {', '.join(sorted(known))}"
        raise BadValue(f"{unknown!r} is no resource of a worker", hint=hint)
    units = CORES | MEMORY | GPUS | GPU_MEMORY
    whole, free = dict.fromkeys(_WHOLE, 0), dict.fromkeys(_WHOLE, 0)
    for kind in _WHOLE:
        most = next((_whole(name, said[name], units[name]) for name in _WHOLE[kind] if name in said), None)
        left = next((_whole(name, said[name], units[name]) for name in _FREE[kind] if name in said), None)
        whole[kind] = most if most is not None else left or 0
        free[kind] = min(left, whole[kind]) if left is not None else whole[kind]
    if whole["gpu"] % MILLI or free["gpu"] % MILLI:
        raise BadValue("a worker has whole GPUs", hint='such as {"gpu": {"devices": 2, "available_devices": 1}}')
    memory = _whole("gpu_memory_mb", said.get("gpu_memory_mb", 0), MIB)
    if not memory and whole["gpu"]:
        memory = _whole("total_memory_mb", said.get("total_memory_mb", 0), MIB) * MILLI // whole["gpu"]
    named = frozenset(kind for kind in _WHOLE if any(name in said for name in (*_WHOLE[kind], *_FREE[kind])))
    return Capacities(Resources(**whole), Resources(**free), memory, named)


def plain_requirements(of: Resources) -> dict[str, float]:
    """An amount by the names of requirements."""
    found = {"cpu_cores": of.cpu / MILLI, "memory_mb": of.memory / MIB, "gpus": of.gpu / MILLI}
    return {name: value for name, value in found.items() if value}


def _flat(needs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    if not isinstance(needs, Mapping):
        raise BadValue(f"{needs!r:.80} are no requirements", hint='give amounts, such as {"cpu_cores": 2}')
    flat: list[tuple[str, Any]] = []
    for name, value in needs.items():
        if isinstance(value, Mapping):
            flat += [(_of_part(name, inner), amount) for inner, amount in value.items()]
        else:
            flat.append((str(name), value))
    return flat


def _of_part(part: Any, name: Any) -> str:
    """The name, unless it belongs to another part. Raises BadValue."""
    if part not in PARTS:
        raise BadValue(f"{part!r:.80} is no part of a worker's resources", hint=f"there are {', '.join(PARTS)}")
    if name not in PARTS[part] and any(name in names for names in PARTS.values()):
        raise BadValue(f"{name!r} does not belong to {part}", hint=f"there are {', '.join(PARTS[part])}")
    return str(name)


def _whole(name: str, value: Any, unit: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise BadValue(f"{name} cannot be {value!r}", hint="give a number from 0 to below a thousand million")
    return round(value * unit)
