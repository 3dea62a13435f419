"""Lend to borrow, from outside: whose node it is says the master's file, and what was lent outlasts a kill."""

import pytest

from distributed_grid.coordinator.client import GridClient
from tests.grid_fixture import EVERYONE, running_grid, until

OWNED = EVERYONE + "nodes:\n- {name: n1, owner: ann}\nfair_share: {half_life: 60}\n"


async def test_who_lent_what_to_whom_is_told_and_outlasts_a_kill_of_the_coordinator(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_grid(tmp_path_factory.mktemp("ledger"), agents=1, config=OWNED) as grid:
        async with GridClient(grid.url, user="ben") as ben, GridClient(grid.url, user="ann") as ann:
            borrowed, own = await ben.submit("sleep 603"), await ann.submit("sleep 603")
            until(lambda: {grid.job(one)["state"] for one in (borrowed, own)} == {"running"}, "both run")
            until(lambda: grid.json("ledger")["users"][0]["credit"] > 0, "the loan counts")
            told = await ann.ledger()
            assert [(one.lender, one.borrower, one.loans) for one in told.pairs] == [("ann", "ben", 1)]
            assert {(one.lender, one.borrower, one.node) for one in told.days} == {("ann", "ben", "n1")}
            before = sum(one.cpu for one in told.days)
            grid.kill("coordinator")
            grid.start_coordinator()
            found = grid.json("ledger", "--node", "n1")
            assert [one["user"] for one in found["users"]] == ["ann", "ben"]
            assert sum(one["core_seconds"] for one in found["days"]) >= before
            assert "is owed" in grid.run("ledger").stdout
            mistyped = grid.run("ledger", "--node", "n2")
            assert mistyped.returncode != 0 and "n2" in mistyped.stderr
            await ben.cancel(borrowed)
            await ann.cancel(own)
