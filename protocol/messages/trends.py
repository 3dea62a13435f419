"""Messages between a client and the coordinator about what nodes use over time."""

from distributed_grid.protocol.history.trends import IdleChance, NodeTrends
from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.resources import Finite, Number, Span, Text, Word


class GetTrends(Message, frozen=True, tag="get-trends"):
    """How does the use of this node go (empty: of all nodes) over the last `window` seconds, one of WINDOWS? Answered
    by Trends. `past`: only the nodes behind the one of this name. Forecasts are made for a named node only."""

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
    """For how long will this node be idle? Answered by NodeForecast."""

    id: Number
    node: Word


class NodeForecast(Message, frozen=True, tag="node-forecast"):
    """The node has been idle for `idle_for` seconds, and how likely it is so for longer; `why`: why nothing is said."""

    id: Number
    node: Word
    idle_for: Span = 0.0
    lasting: tuple[IdleChance, ...] = ()
    why: Text = ""
