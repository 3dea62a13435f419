"""Answers about loans: the balances from the ledger, the days from the history."""

from collections.abc import Callable

from distributed_grid.coordinator.core.lending import accounts
from distributed_grid.coordinator.core.lending.loans import DAY
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.history.history import History, merged_loans
from distributed_grid.protocol.messages import DayOfLoans, GetLoans, Loans
from distributed_grid.protocol.messages.loans import DAYS
from distributed_grid.protocol.text import unknown_node

LINES = 1000
"""Maximum number of pairs of users, and of lines of days, in an answer."""


class LoanAnswers:
    """`clock`: grid time."""

    def __init__(self, state: GridState, history: History, clock: Callable[[], float]) -> None:
        self._state = state
        self._history = history
        self._clock = clock

    async def answer(self, asked: GetLoans, only: str) -> Loans:
        """Who lent what to whom; `only`: just the loans of this user, who may see no others (empty: all). Raises
        BadValue for an unknown node."""
        state, now = self._state, self._clock()
        sharing = state.policy.sharing
        if asked.node and asked.node not in state.nodes and asked.node not in sharing.owners:
            raise unknown_node(asked.node, list(state.nodes))
        whose = {asked.user, only} - {""}
        days, more = await self._days(asked, only, now) if asked.days else ([], 0)
        found = [one for one in accounts.pairs(state, now) if whose <= {one.lender, one.borrower}]
        pairs = [one for one in found if not asked.node or one.lender == sharing.owners.get(asked.node)]
        shown = whose or {one.user for one in accounts.balances(state, now)}
        users = [one for one in accounts.balances(state, now) if one.user in shown and only in ("", one.user)]
        return Loans(
            asked.id,
            tuple(users[:LINES]),
            tuple(pairs[:LINES]),
            tuple(days[:LINES]),
            sharing.credit,
            sharing.half_life,
            owned=len(sharing.owners),
            left_out=more + max(0, len(days) - LINES),
            trouble=self._history.trouble,
        )

    async def _days(self, asked: GetLoans, only: str, now: float) -> tuple[list[DayOfLoans], int]:
        since = int(now // DAY) - min(asked.days, DAYS) + 1
        whose = (asked.user, only)
        kept, more = await self._history.lent(since, asked.node, whose, LINES)
        fresh = [
            one
            for one in self._state.loans.untold(now)
            if one.day >= since and asked.node in ("", one.node) and {*whose} <= {"", one.lender, one.borrower}
        ]
        return merged_loans([*kept, *fresh]), more
