"""Rights of the configuration and of operators, from outside: what is refused, what waits with its numbers, and what
outlives a restart."""

from collections.abc import Iterator

import pytest

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.errors import GridError
from tests.grid_fixture import EVERYONE, Grid, running_grid, until

RIGHTS = (
    EVERYONE
    + """
rights:
  users:
    ann: {cores: 1, highest_priority: high}
  groups:
    lab: {members: [ann, ben], jobs_waiting: 3}
"""
)


@pytest.fixture
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with running_grid(tmp_path_factory.mktemp("quota"), agents=1, config=RIGHTS) as made:
        yield made


async def test_a_quota_holds_a_job_back_until_an_operator_allows_more_also_after_a_restart(grid: Grid) -> None:
    async with GridClient(grid.url, user="ann") as ann:
        first = await ann.submit("sleep 603")
        until(lambda: grid.job(first)["state"] == "running", "the first runs")
        second = await ann.submit("true")
        until(lambda: grid.job(second)["reason"] == "Quota", "it is said why the second waits")
        assert grid.job(second)["reason_text"] == "ann may hold 1 cpu at once and holds 1; it needs 1"
        with pytest.raises(GridError, match="asks 2 cpu; ann may hold 1") as refused:
            await ann.submit("true", cpus=2)
        assert refused.value.hint.endswith("have an operator run: grid quota set ann --cores 2")
        with pytest.raises(GridError, match="ann may not ask for priority urgent"):
            await ann.submit("true", priority="critical")
        (mine,) = [one for one in (await ann.quota("ann")).quotas if one.name == "ann"]
        assert (mine.rights.cores, mine.holds.cpu, mine.waiting) == (1000, 1000, 1)
        done = grid.run("quota", "set", "ann", "--cores", "2")
        assert "ann has: --highest-priority high --cores 2" in done.stderr
        assert (await ann.wait(second)).state.value == "ended"
        grid.kill("coordinator")
        grid.start_coordinator()
        shown = {one["name"]: one for one in grid.json("quota", "ann")["quotas"]}
        assert (shown["ann"]["limits"]["cores"], shown["ann"]["used"]["cores"]) == (2.0, 1.0)
        assert (shown["lab"]["limits"]["jobs_waiting"], shown["lab"]["members"]) == (3, ["ann", "ben"])
        assert "by the configuration again" in grid.run("quota", "unset", "ann").stderr
        await ann.cancel(first)
