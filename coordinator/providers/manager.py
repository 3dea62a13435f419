"""`CloudProviderManager`: workers of the resource management document, over one client connection.

A provider of the coordinator's configuration creates machines of its pools through the ledger: they are recorded before
they are created, stay within their budgets, and are ended when they have nothing to do. A provider that a program adds
is called by that program itself: its workers join with a token of their own, are ordinary nodes, and end themselves.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from distributed_grid.coordinator.client.aio import GridClient
from distributed_grid.coordinator.client.compat.connected import WithClient
from distributed_grid.coordinator.client.compat.resources import plain_requirements, requirements
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.coordinator.core.scaling.state import Listed
from distributed_grid.coordinator.providers.base import CloudProviderBase, ProviderRefused, WorkerSpec
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import Failed, PoolView, ScalingStatus
from distributed_grid.protocol.resources import MILLI, Resources
from distributed_grid.protocol.scaling.machines import Machine, MachineState
from distributed_grid.protocol.scaling.pools import NAME_CHARS, Pool, Shape, is_pool_name
from distributed_grid.protocol.text import suggestion

T = TypeVar("T")
POOLS = "write a pool with `provider: {}` into the coordinator's configuration (docs/scaling.md)"
KINDS = ("cpu", "gpu")
"""The worker types of the document, beside the types that pools name."""
LIFE = 43_200.0
"""Seconds after which a worker of an added provider ends itself."""
JOIN_WITHIN, ABANDONED_AFTER = 600.0, 900.0
"""As of a pool (s)."""


class CloudProviderManager(WithClient):
    """Creates, lists and ends workers of providers. Worker ids are the names of machines, and of their nodes. When it
    disconnects, workers stay. For operators."""

    def __init__(self, client: GridClient | None = None) -> None:
        super().__init__(client or GridClient(), client is None)
        self._added: dict[str, CloudProviderBase] = {}

    def add_provider(self, name: str, provider: CloudProviderBase) -> None:
        """Register a provider for this manager, under a name that the configuration of the coordinator does not have.
        (A provider for pools is an entry point of the group `distributed_grid.providers`.) Raises BadValue."""
        if not isinstance(name, str) or not is_pool_name(_in_names(name)):
            hint = f"lower-case letters, digits, - and _ between them, up to {NAME_CHARS} characters, a letter first"
            raise BadValue(f"a provider cannot be called {name!r:.80}", hint=hint)
        if not isinstance(provider, CloudProviderBase):
            hint = "derive it from CloudProviderBase of distributed_grid.orchestration.cloud_provider_manager"
            raise BadValue(f"{type(provider).__name__} is no provider", hint=hint)
        if name in self._added:
            raise BadValue(f"there is a provider {name} already", hint="add it under another name")
        self._added[name] = provider

    async def create_worker(
        self, provider: str, resources: Mapping[str, Any] | None = None, worker_type: str = "cpu", *, life: float = LIFE
    ) -> str:
        """Create a worker that has at least these `resources` (as `DynamicResourceManager` takes requirements), and
        return its id, once that is on the coordinator's disk. `worker_type`: `cpu`, `gpu`, or a type that a pool of the
        provider names; of those that fit the cheapest that may be created now. An added provider has created it when
        this returns; `life` (seconds) is for those. Raises BadValue, and RequestRefused if a limit, a pause or a
        provider refuses it."""
        wanted = requirements(resources)[0] if resources else Resources()
        await self.initialize()
        if (added := self._added.get(provider)) is not None:
            return await self._create(provider, added, wanted, worker_type, life)
        status = await self._status(provider)
        pools = [one.pool for one in status.pools if one.pool.provider == provider]
        refused: list[RequestRefused] = []
        for pool, shape in _fitting(provider, pools, wanted, worker_type):
            try:
                return await self.client.create_machine(pool.name, shape.type, "ordered through CloudProviderManager")
            except RequestRefused as one:
                if one.code != "not-allowed":
                    raise
                refused.append(one)
        first, why = refused[0], "; ".join(dict.fromkeys(one.why for one in refused))
        raise RequestRefused(Failed(0, first.code, first.what, why, first.hint))

    async def _create(
        self, name: str, provider: CloudProviderBase, wanted: Resources, worker_type: str, life: float
    ) -> str:
        pool = _in_names(name)
        worker, now = f"{pool}-{secrets.token_hex(4)}", time.time()
        labels = {"provider": name}
        try:
            token = await self.client.make_token(Role.AGENT, worker, JOIN_WITHIN, labels)
            invitation = f"grid://{urlsplit(self.client.url).netloc}/{token}"
        except RequestRefused as refused:
            if refused.code != "no-authority":  # such a grid lets in who reaches it
                raise
            invitation = ""
        spec = WorkerSpec(
            name=worker,
            pool=pool,
            type="" if worker_type in KINDS else worker_type,
            born=now,
            ends_by=now + life,
            join_within=JOIN_WITHIN,
            abandoned_after=ABANDONED_AFTER,
            resources=wanted or Resources(MILLI),
            labels=labels,
            url=self.client.url,
            invitation=invitation,
        )
        await _ask(name, provider.create_worker, spec)
        return worker

    async def terminate_worker(self, provider: str, worker_id: str) -> bool:
        """End a worker: a machine of a pool as soon as no job runs on it, one of an added provider at once. False:
        there is none with this id, or it has ended."""
        await self.initialize()
        if (added := self._added.get(provider)) is not None:
            return await _ask(provider, added.terminate_worker, worker_id)
        found = _find(await self._status(provider), provider, worker_id)
        if found is None or not found.live:
            return False
        await self.client.end_machine(worker_id, "ordered through CloudProviderManager")
        return True

    async def get_worker_status(self, provider: str, worker_id: str) -> dict[str, Any]:
        """Plain values: `worker_id`, `provider`, `status` (as `grid scale status` has it; of an added provider
        `running`, `ending` or `gone`) and `text`; of a pool's also `pool`, `type`, `zone`, `resources`, `ran`."""
        await self.initialize()
        if (added := self._added.get(provider)) is not None:
            status = await _ask(provider, added.get_worker_status, worker_id)
            return {"worker_id": worker_id, "provider": provider, "status": status, "text": ""}
        found = _find(await self._status(provider), provider, worker_id)
        if found is None:
            gone = MachineState.GONE.value
            return {"worker_id": worker_id, "provider": provider, "status": gone, "text": "no record knows it"}
        return _plain(found)

    async def get_available_resources(self, provider: str) -> dict[str, Any]:
        """Plain values: what may still be created of each type of the provider's pools (`types`: `pool`, `type`,
        `resources`, `price`, `workers`, as far as all limits allow it, and why none: `paused`); what an added provider
        says itself."""
        await self.initialize()
        if (added := self._added.get(provider)) is not None:
            return await _ask(provider, added.get_available_resources)
        status = await self._status(provider)
        views = [one for one in status.pools if one.pool.provider == provider]
        return {"types": [_available(view, shape) for view in views for shape in view.pool.shapes]}

    async def list_workers(self, provider: str = "") -> list[dict[str, Any]]:
        """The workers that are there or on their way, of one provider or of all, as `get_worker_status` has them."""
        await self.initialize()
        found: list[dict[str, Any]] = []
        for name, added in self._added.items():
            if provider in ("", name):
                found += [_listed(name, one) for one in await _ask(name, added.list_workers) if not one.ended]
        if provider not in self._added:
            status = await (self._status(provider) if provider else self.client.scaling())
            found += [_plain(one) for one in status.machines if one.live and provider in ("", one.provider)]
        return found

    async def _status(self, provider: str) -> ScalingStatus:
        """Raises BadValue for a provider that there is not."""
        status = await self.client.scaling()
        known = {one.pool.provider for one in status.pools} | {one.provider for one in status.machines}
        if provider not in known:
            names = sorted(known | self._added.keys())
            there = f"{suggestion(provider, names)}there are {', '.join(names)}"
            hint = there if names else POOLS.format(provider)
            raise BadValue(f"no pool has a provider {provider!r}", "and none of that name was added", hint)
        return status


def _in_names(provider: str) -> str:
    """An added provider in the names of its workers, which are names of hosts: `docker-local` for `docker_local`."""
    return provider.replace("_", "-")


async def _ask(name: str, what: Callable[..., T], *words: Any) -> T:
    """The answer of an added provider. Raises RequestRefused."""
    try:
        return await asyncio.to_thread(what, *words)
    except ProviderRefused as refused:
        raise RequestRefused(Failed(0, refused.answer.value, f"provider {name} refuses", refused.text)) from refused


def _fitting(provider: str, pools: list[Pool], wanted: Resources, worker_type: str) -> list[tuple[Pool, Shape]]:
    """The types that are wanted, the cheapest first and those without a price last. Raises BadValue for none."""
    types = {shape.type for pool in pools for shape in pool.shapes if shape.type}
    if worker_type not in KINDS and worker_type not in types:
        names = [*KINDS, *sorted(types)]
        hint = f"{suggestion(worker_type, names)}there are {', '.join(names)}"
        raise BadValue(f"provider {provider} has no worker type {worker_type!r}", hint=hint)
    found = [
        (pool, shape)
        for pool in pools
        for shape in pool.shapes
        if wanted.fits(shape.resources)
        and (
            worker_type == shape.type or (worker_type in KINDS and bool(shape.resources.gpu) is (worker_type == "gpu"))
        )
    ]
    if not found:
        shapes = ", ".join(str(shape) for pool in pools for shape in pool.shapes)
        raise BadValue(f"provider {provider} has no {worker_type} worker with {wanted}", f"its pools have {shapes}")
    return sorted(found, key=lambda one: (one[1].price is None, one[1].price or 0.0, one[1].resources.cpu))


def _find(status: ScalingStatus, provider: str, name: str) -> Machine | None:
    return next((one for one in status.machines if one.name == name and one.provider == provider), None)


def _plain(one: Machine) -> dict[str, Any]:
    return {
        "worker_id": one.name,
        "provider": one.provider,
        "status": one.state.value,
        "text": one.text,
        "pool": one.pool,
        "type": one.type,
        "zone": one.zone,
        "resources": plain_requirements(one.resources),
        "ran": one.ran,
    }


def _listed(provider: str, one: Listed) -> dict[str, Any]:
    status = "ending" if one.ending else "running"
    return {"worker_id": one.name, "provider": provider, "status": status, "text": ""}


def _available(view: PoolView, shape: Shape) -> dict[str, Any]:
    return {
        "pool": view.pool.name,
        "type": shape.type,
        "resources": plain_requirements(shape.resources),
        "price": shape.price,
        "workers": 0 if view.paused else view.room.get(shape.type, 0),
        "paused": view.paused,
    }
