"""More nodes than one answer holds are told in several."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from distributed_grid.coordinator.api.lookup import Lookup
from distributed_grid.coordinator.client import GridClient
from distributed_grid.coordinator.core.commands import RecordGroup
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.core.views import Visibility
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import GetStatus, JobUpdate, ListJobs
from distributed_grid.protocol.messages.roles import Reach
from tests.coordinator.ends import (
    agent,
    client,
    coordinator,
    job,
    node,
    runs_on,
)


def shows_running(job: str, message: object) -> bool:
    return isinstance(message, JobUpdate) and (message.job.id, message.job.state) == (job, State.RUNNING)


async def test_more_nodes_than_one_answer_holds_are_told_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coordinator(tmp_path) as grid:
        workers = [await agent(grid.url, node(f"n{number}"), runs=runs_on) for number in range(7)]
        ann = await client(grid.url)
        jobs = await ann.submit(*(job("sleep 60") for _ in range(9)))
        for name in jobs:
            await ann.until(partial(shows_running, name))
        monkeypatch.setattr("distributed_grid.coordinator.api.lookup.LIST_BYTES", 1200)
        first = await ann.ask(GetStatus(301))
        assert [view.facts.name for view in first.nodes] == [f"n{number}" for number in range(len(first.nodes))]
        assert 0 < len(first.nodes) < 7 and first.past == first.nodes[-1].facts.name
        async with GridClient(grid.url) as everybody:
            whole, shared = await everybody.status(), await everybody.shared()
            one = await everybody.shared("n3")
        assert [view.facts.name for view in whole.nodes] == [f"n{number}" for number in range(7)]
        assert whole.counts == {"running": 9} and not whole.past
        assert [view.node for view in shared.offers] == [f"n{number}" for number in range(7)]
        assert {view.job for view in shared.allocations} == set(jobs)
        assert [view.node for view in one.offers] == ["n3"]
        await ann.close()
        for worker in workers:
            await worker.close()


async def test_an_array_is_listed_while_its_end_is_being_stored(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as everybody:
        worker = await agent(grid.url, runs=runs_on)
        array = await everybody.submit("true", array="0-1")
        await grid.stored()
        ending = RecordGroup(msgspec.structs.replace(grid.ledger.state.groups[array].group, ended=9.0))
        storing = SimpleNamespace(being_stored=lambda: iter([ending]))
        over = Lookup(GridState(1, Policy()), grid.store, storing)  # type: ignore[arg-type]
        for message, found in ((ListJobs(0, ended=True, fold=True), [array]), (ListJobs(0, fold=True), [])):
            answer = over.newest(Visibility("ann", Reach.ALL), message)
            assert [(one.id, one.ended) for one in answer.groups] == [(one, 0.0) for one in found]
        await worker.close()
