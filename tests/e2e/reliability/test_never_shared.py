"""Many jobs at once on few devices: no core and no GPU ever has two of them."""

import asyncio
from itertools import pairwise
from typing import Any

from distributed_grid.coordinator.client import GridClient, JobResult, describe_job
from distributed_grid.protocol.jobs import JobView
from tests.depth import tries
from tests.e2e.scenes import scene

JOBS = tries(200, 80)
SCRIPT = (
    "date +%s%N; while read name cores; do case $name in Cpus_allowed_list:) echo $cores; esac; done < /proc/$$/status;"
    " echo $CUDA_VISIBLE_DEVICES; sleep 0.0$(($$ % 7 + 1)); date +%s%N"
)


def cores(listed: str) -> tuple[int, ...]:
    """The cores of the kernel's list: `0,2-3`."""
    found: list[int] = []
    for part in listed.split(","):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return tuple(found)


async def test_many_jobs_at_once_never_share_a_core_or_a_gpu() -> None:
    async with scene() as grid:
        await grid.agent("real", cores=[0, 1], gpus=2)
        await grid.agent("many", cores=list(range(12)), virtual=True, gpus=4)
        async with GridClient(grid.url) as client:
            wishes: list[dict[str, Any]] = [
                {"cpus": 1 + n % 2, "gpus": (0, 1, 1, 2)[n % 4] or None, "nodes": ["real"] if n % 5 == 0 else []}
                for n in range(JOBS)
            ]
            jobs = await client.submit_many([describe_job(["sh", "-c", SCRIPT], **wish) for wish in wishes])
            ends = await asyncio.wait_for(asyncio.gather(*map(client.result, jobs)), 100)
            views = [await client.show(job) for job in jobs]
        assert [end.exit_code for end in ends] == [0] * JOBS, [end for end in ends if end.exit_code]
        held: dict[tuple[str, object], list[tuple[int, int, str]]] = {}
        for view, end in zip(views, ends, strict=True):
            note(view, end, held)
        assert len(held) > 12 and {view.node for view in views} == {"real", "many"}
        for device, spans in held.items():
            for one, other in pairwise(sorted(spans)):
                assert one[1] <= other[0], f"{device} had {one[2]} and {other[2]} at once"


def note(view: JobView, end: JobResult, held: dict[tuple[str, object], list[tuple[int, int, str]]]) -> None:
    """Note what one job had, and from when until when by its own clock; it had what it was granted and nothing else."""
    began, mask, devices, ended = end.stdout.split("\n")[:4]
    assert view.grant is not None
    assert devices.split(",") == [gpu.uuid for gpu in view.grant.gpus] or (devices == "" and not view.grant.gpus)
    if view.node == "real":
        assert cores(mask) == view.grant.affinity
    for device in [*view.grant.cores, *(gpu.uuid for gpu in view.grant.gpus)]:
        held.setdefault((view.node, device), []).append((int(began), int(ended), view.id))


async def test_fractions_share_a_core_with_fractions_only() -> None:
    async with scene() as grid:
        await grid.agent("real", cores=[0, 1])
        async with GridClient(grid.url) as client:
            script = "taskset -cp $$ | sed 's/.*: //'; sleep 0.3"
            wishes = [0.5, 0.25, 0.25, 1]
            jobs = await client.submit_many([describe_job(["sh", "-c", script], cpus=wish) for wish in wishes])
            masks = [(await asyncio.wait_for(client.result(job), 60)).stdout.strip() for job in jobs]
        assert masks[0] == masks[1] == masks[2] != masks[3]
