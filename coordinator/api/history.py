"""Answers from the history: the use of nodes over time, in pages and computed in a thread; and who lent what to whom,
with the balances of the ledger."""

from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from distributed_grid.coordinator.api.lookup import LIST_BYTES
from distributed_grid.coordinator.core.lending import accounts
from distributed_grid.coordinator.core.lending.loans import DAY
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.history import trends
from distributed_grid.coordinator.history.database import MINUTE, QUARTER
from distributed_grid.coordinator.history.history import History, merged_loans
from distributed_grid.coordinator.history.idle import IdleWatch
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.history.buckets import SECONDS
from distributed_grid.protocol.history.trends import POINTS, WINDOWS, Measured, NodeTrends
from distributed_grid.protocol.messages import DayOfLoans, GetForecast, GetLoans, GetTrends, Loans, NodeForecast, Trends
from distributed_grid.protocol.messages.history import DAYS
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.resources import MILLI, Resources
from distributed_grid.protocol.text import unknown_node

RECENT = 60
"""Window that pressure is averaged over (s)."""
LASTS = 7200
"""The horizon of a node's line in lists (s)."""
OVERVIEW = (Measured.CPU, Measured.MEMORY, Measured.GPU)
"""The series in an answer about all nodes."""
OVERVIEW_POINTS = POINTS // 3
LINES = 1000
"""Maximum number of pairs of users, and of lines of days, in an answer."""


def step_of(window: float) -> int:
    """Seconds between the values of a window."""
    return SECONDS if window <= 3600 else MINUTE if window <= 86400 else QUARTER


class TrendAnswers:
    """`clock`: grid time."""

    def __init__(self, state: GridState, history: History, watch: IdleWatch, clock: Callable[[], float]) -> None:
        self._state = state
        self._idle = watch
        self._history = history
        self._clock = clock

    async def answer(self, asked: GetTrends) -> Trends:
        """The trends of one node, or a page of all. Raises BadValue for an unknown node or window."""
        if asked.window not in WINDOWS.values():
            raise BadValue(f"there is no window of {asked.window:g} s", hint=f"there are {', '.join(WINDOWS)}")
        found: list[NodeTrends] = []
        size, past = 0, ""
        for name in await self._names(asked):
            one = await self._node(name, asked)
            size += len(msgspec.msgpack.encode(one))
            if size > LIST_BYTES and found:
                past = found[-1].node
                break
            found.append(one)
        return Trends(asked.id, tuple(found), asked.window, self._clock(), self._history.trouble, past)

    def forecast(self, asked: GetForecast) -> NodeForecast:
        """Return how long a node is expected to stay idle. Raises BadValue for an unknown node."""
        if (node := self._state.nodes.get(asked.node)) is None:
            raise unknown_node(asked.node, list(self._state.nodes))
        if (found := self._idle.forecast(asked.node)) is not None:
            idle = max(0.0, self._clock() - found.made + found.idle)
            return NodeForecast(asked.id, asked.node, idle, found.lasting)
        if node.state is not NodeState.UP:
            why = f"the node is {node.state}"
        elif node.facts.declared is not None:
            why = "it has no agent, which would measure it"
        else:
            why = "its owner uses it, or it was measured for less than ten minutes"
        return NodeForecast(asked.id, asked.node, why=why)

    def lasting(self, nodes: Iterable[str]) -> dict[str, float]:
        """Return the probability that each of these nodes stays idle for two hours more, if there is a reliable
        forecast."""
        found = {}
        for name in nodes:
            forecast = self._state.index.forecasts.get(name)
            if forecast is not None and forecast.idle and (likely := forecast.at(LASTS)) is not None:
                found[name] = likely
        return found

    async def _names(self, asked: GetTrends) -> Iterable[str]:
        if not asked.node:
            return list(self._state.index.behind(asked.past))
        if asked.node not in self._state.nodes and asked.node not in await self._history.names():
            raise unknown_node(asked.node, list(self._state.nodes))
        return [asked.node]

    async def _node(self, name: str, asked: GetTrends) -> NodeTrends:
        history, node = self._history, self._state.nodes.get(name)
        wanted, points = (OVERVIEW, OVERVIEW_POINTS) if not asked.node else (tuple(Measured), POINTS)
        window = await history.window(name, int(asked.window), step_of(asked.window))
        found = await history.compute(partial(trends.trends, window, wanted, points))
        if asked.node:
            minutes = await history.window(name, trends.PAST, MINUTE)
            found = await history.compute(partial(trends.with_forecasts, found, minutes, asked.window))
        gpus = node is not None and bool(node.facts.gpus)
        found = tuple(
            one for one in found if one.buckets or gpus or one.what not in (Measured.GPU, Measured.GPU_MEMORY)
        )
        pressures = trends.pressure(history.recent(name, RECENT), gpus)
        newest = history.newest(name)
        return NodeTrends(
            node=name,
            state=node.state if node is not None else NodeState.LOST,
            total=_total(node),
            seen=max(0.0, self._clock() - newest[1]) if newest is not None else -1.0,
            all=pressures[0] if pressures is not None else None,
            owner=pressures[1] if pressures is not None else None,
            trends=found,
        )


def _total(node: Node | None) -> Resources:
    if node is None:
        return Resources()
    return Resources(len(node.facts.cores) * MILLI, node.facts.memory, len(node.facts.gpus) * MILLI)


class LoanAnswers:
    """`clock`: grid time."""

    def __init__(self, state: GridState, history: History, clock: Callable[[], float]) -> None:
        self._state = state
        self._history = history
        self._clock = clock

    async def answer(self, asked: GetLoans, only: str) -> Loans:
        """Return the loans; `only`: those of this user alone, who may see no others (empty: all). Raises BadValue for
        an unknown node."""
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
            for one in self._state.loans.unreported(now)
            if one.day >= since and asked.node in ("", one.node) and {*whose} <= {"", one.lender, one.borrower}
        ]
        return merged_loans([*kept, *fresh]), more
