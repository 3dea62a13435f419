"""Arrays and jobs that wait for others, among those of a campaign: how they are submitted, and what must be true of
them beyond what is true of every job."""

import asyncio
import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.groups import Array, member_id
from distributed_grid.protocol.jobs import After, Cause, Dependency, JobView
from tests.chaos.jobs import Plan, RunRecord, Shipment, draw

if TYPE_CHECKING:
    from tests.chaos.clients import Told

SHARE = 0.06
"""How many submissions are of this kind."""


async def live(told: "Told", clients: tuple[GridClient, GridClient], records: Path, dice: random.Random) -> None:
    """Submit an array, one job that waits for all of it, and one that waits for that: together, and perhaps twice."""
    plans = [plain(dice, records) for _ in range(3)]
    size = dice.randint(2, 5)
    array = Array(((0, size - 1, 1),), most=dice.choice((0, 1, 2)))
    kinds = [dice.choice((After.OK, After.ENDED, After.ENDED)) for _ in range(2)]
    submissions = [replace(plans[0].submission, array=array)]
    for plan, kind in zip(plans[1:], kinds, strict=True):
        dependency = Dependency(submissions[-1].key, kind)
        submissions.append(replace(plan.submission, after=(dependency,)))
    asks = [clients[0].submit_many(submissions)]
    if dice.random() < 0.3:
        asks.append(clients[1].submit_many(submissions))
    answers = await asyncio.gather(*asks)
    if any(answer != answers[0] for answer in answers):
        told.broken.append(f"the same keys gave different jobs: {answers}")
    group, middle, last = answers[0]
    members = tuple(member_id(group, index) for index in range(size))
    told.plans |= dict.fromkeys(members, plans[0]) | {middle: plans[1], last: plans[2]}
    told.after |= {middle: (kinds[0], members), last: (kinds[1], (middle,))}
    told.habits["an array, and two that wait"] += 1
    if dice.random() < 0.15:
        await asyncio.sleep(dice.uniform(0, 3))
        told.cancelled |= {*members}
        await clients[1].cancel(group, reason="the campaign wants it")


def plain(dice: random.Random, records: Path) -> Plan:
    """Return a job that just exits, and that is not watched."""
    while (plan := draw(dice, records, Shipment())).kind != "exits":
        pass
    return dataclasses.replace(plan, watched=False, streamed=False)


def out_of_order(
    job: str, view: JobView, told: "Told", views: Mapping[str, JobView], of_job: Mapping[str, dict[str, RunRecord]]
) -> list[str]:
    """Return where a job began before its dependency was met, or ran or did not run against it."""
    if job not in told.after or view.outcome is None:
        return []
    kind, others = told.after[job]
    found = []
    starts = [start for record in of_job.get(job, {}).values() for start in record.starts]
    good = True
    for other in others:
        outcome = views[other].outcome if other in views else None
        if outcome is None:
            continue  # it is told of by itself
        good = good and outcome.cause is Cause.EXITED and outcome.code == 0
        ends = [end for record in of_job.get(other, {}).values() for end, _ in record.ends]
        if outcome.cause is Cause.EXITED and starts and ends and min(starts) < max(ends):
            found.append(f"began at {min(starts):.2f}, and {other}, which it waits for, ended at {max(ends):.2f}")
    if view.outcome.cause is Cause.DEPENDENCY_FAILED and (good or kind is not After.OK):
        found.append(f"was not run ({view.outcome.text}), and nothing that it waits for had failed")
    if starts and kind is After.OK and not good:
        found.append("ran, and what it waits for had not exited with 0")
    return found
