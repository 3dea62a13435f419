"""Messages about past use: the use of nodes over time, forecasts, and who lent how much to whom (docs/trends.md,
docs/shares.md)."""

import msgspec

from distributed_grid.protocol.history.trends import IdleChance, NodeTrends
from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.resources import Count, Finite, Number, Span, Text, Word

DAYS = 90
"""Days of which loans are kept."""


class GetTrends(Message, frozen=True, tag="get-trends"):
    """Request the trends of this node (empty: of all nodes) over the last `window` seconds, one of WINDOWS: answered by
    Trends. `past`: only the nodes behind the one of this name. Forecasts are made for a named node only."""

    id: Number
    node: Word = ""
    window: Span = 900.0
    past: Word = ""


class Trends(Message, frozen=True, tag="trends"):
    """The nodes in the order of their names; `past` is the last one's where there are more than one answer holds. `at`
    is the coordinator's clock; `trouble` says why nothing is written to the history now, if so."""

    id: Number
    nodes: tuple[NodeTrends, ...]
    window: Span
    at: Finite
    trouble: Text = ""
    past: Word = ""


class GetForecast(Message, frozen=True, tag="get-forecast"):
    """Request the forecast of how long this node stays idle: answered by NodeForecast."""

    id: Number
    node: Word


class NodeForecast(Message, frozen=True, tag="node-forecast"):
    """How long the node has been idle (`idle_for`, seconds), and how likely it stays idle; `why`: the reason if there
    is no forecast."""

    id: Number
    node: Word
    idle_for: Span = 0.0
    lasting: tuple[IdleChance, ...] = ()
    why: Text = ""


class GetLoans(Message, frozen=True, tag="get-loans"):
    """Request the loans: answered by Loans. `user`: only what this user lent or borrowed; `node`: of the days only what
    was lent there; `days`: how many days back, with today (0: none)."""

    id: Number
    user: Word = ""
    node: Word = ""
    days: Count = 7


class UserBalance(msgspec.Struct, frozen=True):
    """A user: the averages of what they have lent and borrowed (dominant shares of the grid, with the half-life of fair
    share), and the credit that counts in the order of service (below 0: a debit)."""

    user: Word
    lent: Finite
    borrowed: Finite
    credit: Finite


class UserLoans(msgspec.Struct, frozen=True):
    """The loans of one user to another: the part of the grid that is lent `now`, in how many `loans`, and the average
    of the `past`."""

    lender: Word
    borrower: Word
    now: Finite
    past: Finite
    loans: Count


class DayOfLoans(msgspec.Struct, frozen=True):
    """The loans of one user to another on a node on a day of UTC (days since the epoch): `share`, the dominant share of
    the grid times seconds, core-seconds, GiB-seconds of memory, GPU-seconds."""

    day: Count
    lender: Word
    borrower: Word
    node: Word
    share: Finite
    cpu: Finite
    memory: Finite
    gpu: Finite


class Loans(Message, frozen=True, tag="loans"):
    """The users by credit, descending; the loans between them; and the days, the newest first, with the number of lines
    that were `left_out`. `credit`: the most that a credit counts; `half_life` (s) of past loans; `owned`: the number of
    nodes with an owner; `trouble`: why days may be missing."""

    id: Number
    users: tuple[UserBalance, ...]
    pairs: tuple[UserLoans, ...]
    days: tuple[DayOfLoans, ...]
    credit: Finite
    half_life: Finite
    owned: Count = 0
    left_out: Count = 0
    trouble: Text = ""
