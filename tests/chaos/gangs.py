"""Gangs among the jobs of a campaign: they begin as one or not at all, and no attempt of one runs beside another."""

import asyncio
import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.groups import member_id
from distributed_grid.protocol.jobs import Cause, JobView, RetryOn
from tests.chaos.jobs import RETRIES, RunRecord
from tests.chaos.many import plain

if TYPE_CHECKING:
    from tests.chaos.clients import Told

SHARE = 0.05
"""How many submissions are gangs."""
SIZE = 2
LOST = {Cause.NODE_LOST, Cause.SUPERVISOR_LOST}


async def live(told: "Told", clients: tuple[GridClient, GridClient], records: Path, dice: random.Random) -> None:
    """Submit a gang, perhaps twice, and perhaps end it again by one of its members."""
    plan = dataclasses.replace(plain(dice, records), kind="gang")
    again = dice.random() < 0.5
    request = replace(
        plan.submission.request,
        gang=SIZE,
        retry_on=(RetryOn.LOST,) if again else (),
        retries=RETRIES if again else 0,
    )
    spec = replace(plan.submission.spec, env={**plan.submission.spec.env, "GANG": "1"})
    submission = replace(plan.submission, request=request, spec=spec)
    asks = [clients[0].submit_many([submission])]
    if dice.random() < 0.3:
        asks.append(clients[1].submit_many([submission]))
    answers = await asyncio.gather(*asks)
    if any(answer != answers[0] for answer in answers):
        told.broken.append(f"the same key gave different gangs: {answers}")
    members = tuple(member_id(answers[0][0], rank) for rank in range(SIZE))
    told.plans |= dict.fromkeys(members, dataclasses.replace(plan, submission=submission))
    told.gangs.append(members)
    told.habits["a gang"] += 1
    if dice.random() < 0.15:
        await asyncio.sleep(dice.uniform(0, 3))
        told.cancelled |= {*members}
        await clients[1].cancel(dice.choice(members), reason="the campaign wants it")


def not_as_one(
    members: tuple[str, ...], told: "Told", views: Mapping[str, JobView], of_job: Mapping[str, Mapping[str, RunRecord]]
) -> list[str]:
    """Return where a gang did not begin and end together, according to the records of its members."""
    ended = [view for name in members if (view := views.get(name)) is not None and view.outcome is not None]
    if len(ended) < len(members):
        return []  # it is told of by itself
    found: list[str] = []
    if len({view.attempt for view in ended}) > 1:
        found.append(f"its members are at the attempts {', '.join(str(view.attempt) for view in ended)}")
    begun: dict[str, set[str]] = {}
    for name in members:
        for allocation in of_job.get(name, {}):
            begun.setdefault(allocation.rpartition(".")[2], set()).add(name)
    whole = [attempt for attempt, names in begun.items() if len(names) == len(members)]
    if len(whole) > 1 + told.plans[members[0]].submission.request.retries:
        found.append(f"all of it began {len(whole)} times, at the attempts {', '.join(sorted(whole))}")
    causes = {view.outcome.cause for view in ended if view.outcome is not None}
    good = {view.id for view in ended if view.outcome and view.outcome.cause is Cause.EXITED and not view.outcome.code}
    last = begun.get(str(ended[0].attempt), set())
    if good and last != set(members) and not causes & LOST:
        found.append(f"{', '.join(sorted(good))} exited with 0, and only {', '.join(sorted(last)) or 'nobody'} began")
    if causes == {Cause.GANG}:
        found.append("all of its members were ended because of the others")
    if Cause.CANCELLED in causes and not told.cancelled & set(members):
        found.append("it was cancelled, and nobody wanted that")
    nodes = [view.node for view in ended if view.node]
    if len(set(nodes)) < len(nodes):
        found.append(f"two of its members were on {nodes[0]}")
    return found
