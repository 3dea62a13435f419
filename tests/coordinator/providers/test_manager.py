"""`CloudProviderManager`: machines of pools through the ledger, and workers of providers that a program adds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.coordinator.providers.base import ProviderRefused
from distributed_grid.core import BadValue, GridClient, RequestRefused
from distributed_grid.orchestration.cloud_provider_manager import CloudProviderBase, CloudProviderManager, WorkerSpec
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.pools import Limits, Pool, Shape
from tests.coordinator.client.compat.scene_pools import pools
from tests.coordinator.ends import coordinator

SMALL = Shape(type="c5", resources=Resources(4000, 8 * GIB), price=0.2)
CHEAP = Shape(type="c5a", resources=Resources(4000, 8 * GIB), price=0.1)
GPU = Shape(type="g4", resources=Resources(4000, 16 * GIB, 1000), price=0.5)
POOL = Pool(name="burst", provider="aws", shapes=(SMALL, CHEAP, GPU), max=2, idle=100.0, boot=1.0)


class Own(CloudProviderBase):
    """A provider that a program brings: it only remembers."""

    def __init__(self, grid: str = "g", settings: Mapping[str, Any] = {}) -> None:
        super().__init__(grid, settings)
        self.made: dict[str, WorkerSpec] = {}
        self.ended: list[str] = []

    def create_worker(self, spec: WorkerSpec) -> str:
        if spec.resources.gpu:
            raise ProviderRefused(Answer.CAPACITY, "no GPU is left")
        self.made[spec.name] = spec
        return spec.name

    def terminate_worker(self, name: str, handle: str = "") -> bool:
        self.ended.append(name)
        return self.made.pop(name, None) is not None

    def list_workers(self) -> list[Listed]:
        return [*(Listed(name, name) for name in self.made), *(Listed(name, name, ended=True) for name in self.ended)]


async def test_a_worker_of_a_pool_is_recorded_and_ended_by_the_ledger(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        manager = CloudProviderManager(client)
        await pools(grid, manager, POOL)
        worker = await manager.create_worker(provider="aws", resources={"cpu_cores": 2}, worker_type="cpu")
        machine = grid.ledger.state.scaling.machines[worker]
        assert (machine.pool, machine.type, machine.price) == ("burst", "c5a", 0.1), "the cheapest that fits"
        status = await manager.get_worker_status("aws", worker)
        assert (status["status"], status["type"], status["resources"]["cpu_cores"]) == ("creating", "c5a", 4.0)
        gpu = await manager.create_worker("aws", {"gpus": 1}, worker_type="gpu")
        assert grid.ledger.state.scaling.machines[gpu].type == "g4"
        assert [one["worker_id"] for one in await manager.list_workers("aws")] == [gpu, worker]
        with pytest.raises(RequestRefused, match="no machine is created") as refused:
            await manager.create_worker("aws", {"cpu_cores": 2})
        assert "pool burst has 2 of 2 machines (max)" in refused.value.why
        left = (await manager.get_available_resources("aws"))["types"]
        assert [(one["type"], one["workers"]) for one in left] == [("c5", 0), ("c5a", 0), ("g4", 0)]
        assert await manager.terminate_worker("aws", worker) is True
        assert (await manager.get_worker_status("aws", worker))["status"] == "ending"
        assert await manager.terminate_worker("aws", "burst-9-9") is False
        assert (await manager.get_worker_status("aws", "burst-9-9"))["status"] == "gone"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"provider": "awss"}, "no pool has a provider 'awss'"),
        ({"provider": "aws", "worker_type": "c6"}, "no worker type 'c6'"),
        ({"provider": "aws", "resources": {"cpu_cores": 8}}, "no cpu worker with 8 cpu"),
        ({"provider": "aws", "resources": {"cores_": 8}}, "cannot be required"),
    ],
)
async def test_what_no_pool_can_create_is_said(tmp_path: Path, asked: dict[str, Any], says: str) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        manager = CloudProviderManager(client)
        await pools(grid, manager, POOL)
        with pytest.raises(BadValue, match=says):
            await manager.create_worker(**asked)
        assert not grid.ledger.state.scaling.machines


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"provider": "awss"}, "did you mean aws? there are aws"),
        ({"provider": "aws", "worker_type": "tpu"}, "did you mean gpu? there are cpu, gpu, c5, c5a, g4"),
    ],
)
async def test_what_there_is_instead_is_said(tmp_path: Path, asked: dict[str, Any], hint: str) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        manager = CloudProviderManager(client)
        with pytest.raises(BadValue) as refused:
            await manager.create_worker("aws")
        assert refused.value.hint.startswith("write a pool with `provider: aws`")
        await pools(grid, manager, POOL)
        with pytest.raises(BadValue) as refused:
            await manager.create_worker(**asked)
        assert refused.value.hint == hint


async def test_an_added_provider_is_called_by_the_program_itself(tmp_path: Path) -> None:
    own = Own()
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        manager = CloudProviderManager(client)
        manager.add_provider("lab", own)
        worker = await manager.create_worker("lab", {"cpu_cores": 2, "memory_mb": 512}, life=600)
        spec = own.made[worker]
        assert (spec.resources, spec.url, spec.invitation) == (Resources(2000, GIB // 2), grid.url, "")
        assert spec.ends_by - spec.born == 600 and spec.labels == {"provider": "lab"}
        assert await manager.list_workers() == [
            {"worker_id": worker, "provider": "lab", "status": "running", "text": ""}
        ]
        assert await manager.get_available_resources("lab") == {}
        assert await manager.terminate_worker("lab", worker) is True and not own.made
        assert (await manager.get_worker_status("lab", worker))["status"] == "gone"
        assert await manager.list_workers("lab") == [], "its provider still knows how it ended"


async def test_a_provider_is_added_by_the_documents_own_name(tmp_path: Path) -> None:
    own = Own()
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        manager = CloudProviderManager(client)
        manager.add_provider("docker_local", own)
        worker = await manager.create_worker(provider="docker_local", resources={"cpu_cores": 2})
        assert worker.startswith("docker-local-"), "its node has the name of a host"
        assert (own.made[worker].pool, own.made[worker].labels) == ("docker-local", {"provider": "docker_local"})
        assert (await manager.get_worker_status("docker_local", worker))["status"] == "running"
        assert await manager.terminate_worker(provider="docker_local", worker_id=worker) is True and not own.made


async def test_what_an_added_provider_refuses_is_an_error_of_the_grid_as_for_a_pool(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        manager = CloudProviderManager(client)
        manager.add_provider("lab", Own())
        with pytest.raises(RequestRefused, match="provider lab refuses") as refused:
            await manager.create_worker("lab", {"gpus": 1}, "gpu")
        assert (refused.value.code, refused.value.why) == ("capacity", "no GPU is left")


async def test_the_next_cheapest_type_is_created_where_the_cheapest_may_not_be(tmp_path: Path) -> None:
    full = replace(POOL, name="full", shapes=(CHEAP,), max=0)
    dear = replace(POOL, name="dear", shapes=(replace(CHEAP, price=9.0),), max_cost_per_hour=1.0)
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        manager = CloudProviderManager(client)
        await pools(grid, manager, full, dear, replace(POOL, shapes=(SMALL,), max=1))
        worker = await manager.create_worker("aws", {"cpu_cores": 2})
        assert grid.ledger.state.scaling.machines[worker].type == "c5"
        with pytest.raises(RequestRefused, match="no machine is created") as refused:
            await manager.create_worker("aws", {"cpu_cores": 2})
        assert refused.value.why == (
            "pool full has 0 of 0 machines (max); pool burst has 1 of 1 machines (max); "
            "9 an hour would be more than 1 (pool dear: max_cost_per_hour)"
        )


async def test_what_may_still_be_created_is_what_all_limits_allow(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        manager = CloudProviderManager(client)
        for most, limits, left in (
            (2, Limits(), [2, 2, 2]),
            (9, Limits(max_workers=3), [3, 3, 3]),
            (9, Limits(max_workers=3, max_cost_per_hour=0.45), [2, 3, 0]),
        ):
            await pools(grid, manager, replace(POOL, max=most), limits=limits)
            types = (await manager.get_available_resources("aws"))["types"]
            assert [one["workers"] for one in types] == left


def test_what_cannot_be_added_is_said() -> None:
    manager = CloudProviderManager()
    manager.add_provider("lab", Own())
    with pytest.raises(BadValue, match="there is a provider lab already"):
        manager.add_provider("lab", Own())
    with pytest.raises(BadValue, match="object is no provider"):
        manager.add_provider("other", object())  # type: ignore[arg-type]
    for name in ("No Name", "_lab", "Lab", "x" * 25, ""):
        with pytest.raises(BadValue, match="a provider cannot be called"):
            manager.add_provider(name, Own())
