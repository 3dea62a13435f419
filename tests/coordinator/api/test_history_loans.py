"""Answers about loans, from a coordinator over real sockets: a client is told of their own loans alone."""

import itertools
from pathlib import Path
from typing import Any

import msgspec

from distributed_grid.coordinator.api.history import LoanAnswers
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lending.loans import DAY
from distributed_grid.coordinator.core.policy import Sharing
from distributed_grid.coordinator.history.database import HistoryDatabase
from distributed_grid.coordinator.history.history import History
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import DayOfLoans, Failed, GetLoans, Launch, Loans, Started
from tests.coordinator.ends import ClientEnd, agent, client, coordinator, job, node

numbers = itertools.count(1)


async def ask(end: ClientEnd, **asked: Any) -> Any:
    return await end.ask(GetLoans(next(numbers), **asked))


def pairs(answer: Loans) -> list[tuple[str, str]]:
    return sorted((one.lender, one.borrower) for one in answer.pairs)


async def test_a_client_is_told_of_what_they_lent_and_borrowed_and_others_of_all(tmp_path: Path) -> None:
    async with coordinator(tmp_path, founded=True) as grid:
        state = grid.ledger.state
        state.policy = msgspec.structs.replace(state.policy, sharing=Sharing(owners={"n1": "ann", "n2": "ben"}))

        def run(launch: Launch) -> list[Any]:
            return [Started(launch.allocation, 1)]

        nodes = [
            await agent(grid.url, node(name, cores=2), run, ssl=grid.member(Role.AGENT, name)) for name in ("n1", "n2")
        ]
        ends = {
            name: await client(grid.url, ssl=grid.member(role, name))
            for role, name in (
                (Role.CLIENT, "ann"), (Role.CLIENT, "ben"), (Role.CLIENT, "cleo"), (Role.OPERATOR, "op"),
                (Role.VIEWER, "eve"),
            )
        }  # fmt: skip
        for _ in range(4):
            await ends["cleo"].submit(job())
        every = [("ann", "cleo"), ("ben", "cleo")]
        for name, seen in (("ann", every[:1]), ("ben", every[1:]), ("cleo", every), ("op", every), ("eve", every)):
            answer = await ask(ends[name])
            assert pairs(answer) == seen, name
            assert {(one.lender, one.borrower) for one in answer.days} == {*seen}, name
        assert [one.user for one in (await ask(ends["ann"])).users] == ["ann"]
        assert pairs(await ask(ends["ann"], user="ben")) == []
        assert pairs(await ask(ends["op"], user="ben")) == every[1:]
        narrow: Loans = await ask(ends["op"], node="n1", days=1)
        assert pairs(narrow) == every[:1] and {one.node for one in narrow.days} == {"n1"}
        assert (await ask(ends["op"], days=0)).days == () and narrow.owned == 2
        assert isinstance(await ask(ends["op"], node="n3"), Failed)
        for end in (*ends.values(), *nodes):
            await end.close()


async def test_lines_that_an_answer_has_no_room_for_are_counted(tmp_path: Path) -> None:
    now = 20_000 * DAY + 60.0
    database = HistoryDatabase(tmp_path / "history.db", 1 << 30)
    database.lend([DayOfLoans(19_999, "ann", f"b{number}", "n1", 1.0, 1.0, 1.0, 0.0) for number in range(2500)])
    database.close()
    history = History(tmp_path / "history.db", 1 << 30, lambda: now)
    history.lend([DayOfLoans(20_000, "ann", "ben", "n1", 1.0, 1.0, 1.0, 0.0)])
    answer = await LoanAnswers(Ledger().state, history, lambda: now).answer(GetLoans(1), "")
    assert (len(answer.days), answer.days[0].day, answer.left_out) == (1000, 20_000, 1501)
    await history.close()
