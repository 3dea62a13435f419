"""One node with three GPUs, idle but for what a test says."""

from typing import Any

import msgspec

from distributed_grid.agent.core.spare.lender import Lender
from distributed_grid.agent.core.spare.thresholds import Holding, Limits
from distributed_grid.protocol.nodes import GpuFacts, GpuProcess, GpuSample, NodeFacts, Offer, Sample
from distributed_grid.protocol.resources import GIB, Grant, Resources

GPUS = ("GPU-0", "GPU-1", "GPU-2")


FACTS = NodeFacts(
    name="n1",
    hostname="n1",
    boot_id="b",
    incarnation=1,
    cores=(0, 1, 2, 3),
    memory=16 * GIB,
    lendable=Resources(4000, 16 * GIB, 3000),
    gpus=tuple(GpuFacts(uuid, index, "model", 8 * GIB) for index, uuid in enumerate(GPUS)),
)


AT_ONCE = Limits(offer_after=0.0, reserve_memory=0)


def sample(at: float = 100.0, cores: dict[int, int] | None = None, memory: int = 2 * GIB, **more: Any) -> Sample:
    """An idle node, but for what is said."""
    busy = dict.fromkeys(FACTS.cores, 0) | (cores or {})
    given = {
        "foreign_cpu": sum(busy.values()) / 100,
        "memory_total": 16 * GIB,
        "gpus": tuple(gpu(uuid) for uuid in GPUS),
    } | more
    return msgspec.convert(given | {"at": at, "cores": busy, "memory_foreign": memory}, Sample)


def gpu(uuid: str, used: int = 0, utilisation: float = 0.0, error: str = "", *processes: GpuProcess) -> GpuSample:
    return GpuSample(uuid, utilisation, used, 8 * GIB, 40.0, processes, error)


def gpus(first: GpuSample) -> tuple[GpuSample, ...]:
    return (first, *(gpu(uuid) for uuid in GPUS[1:]))


def holding(name: str = "j-a.1", rss: int = 0, **grant: Any) -> Holding:
    return Holding(name, Grant(**grant), rss)


def why(offer: Offer, what: str) -> str:
    return "; ".join(one.why for one in offer.withheld if one.what == what)


def seen(lender: Lender, now: float, holdings: tuple[Holding, ...] = (), **said: Any) -> Offer | None:
    return lender.observe(sample(now, **said), holdings, now)
