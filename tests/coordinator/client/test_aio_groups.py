"""Many jobs of one call leave in groups, of which two are under way at a time."""

from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.client import GridClient, RequestRefused, describe_job, requests
from distributed_grid.protocol.errors import BadValue
from tests.coordinator.ends import coordinator


async def test_jobs_leave_in_groups_two_at_a_time_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_GROUP_JOBS", 10)
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        asked, waiting = client._ask, []

        async def ask(message: Any, repeatable: bool = True) -> Any:
            waiting.append(len(client._answers) + 1)
            return await asked(message, repeatable)

        monkeypatch.setattr(client, "_ask", ask)
        ids = await client.submit_many([describe_job("true", name=f"n{number}") for number in range(95)])
        assert [grid.ledger.state.jobs[job].spec.name for job in ids] == [f"n{number}" for number in range(95)]
        assert len(waiting) == 10 and max(waiting) == 2
        waiting.clear()
        chain = [describe_job("true", key="k0")]
        chain += [describe_job("true", key=f"k{number}", after=[f"k{number - 1}"]) for number in range(1, 30)]
        assert len(await client.submit_many(chain)) == 30
        assert max(waiting) == 1, "a job can name one of the group before"


async def test_a_group_that_is_refused_is_the_last_that_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_GROUP_JOBS", 10)
    jobs = [describe_job("true", name=f"n{number}", key="x" * 200 if number == 35 else "") for number in range(90)]
    async with coordinator(tmp_path) as grid:
        async with GridClient(grid.url) as client:
            with pytest.raises(RequestRefused, match="key must have"):
                await client.submit_many(jobs)
            there = {job.spec.name for job in grid.ledger.state.jobs.values()}
        assert {f"n{number}" for number in range(30)} <= there
        assert not there & {f"n{number}" for number in [*range(30, 40), *range(60, 90)]}


@pytest.mark.parametrize("job", ["true", ["true"], None])
async def test_what_is_not_a_described_job_is_told_from_one(tmp_path: Path, job: Any) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        with pytest.raises(BadValue, match="is not a described job") as caught:
            await client.submit_many([describe_job("true"), job])
        assert "describe_job" in caught.value.hint
        assert not grid.ledger.state.jobs
