"""What an operator asks of nodes, looked through and made an event for the ledger."""

import math
from collections.abc import Callable

from distributed_grid.coordinator.core.model import DrainAsked, ForgetAsked, LabelAsked, UndrainAsked
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.messages import DrainNodes, ForgetNodes, LabelNodes, UndrainNodes
from distributed_grid.protocol.nodes import REASON_CHARS, check_labels
from distributed_grid.protocol.text import MOST

NODES_MOST = 10_000
"""Nodes that one request may name."""


def order(
    message: DrainNodes | UndrainNodes | LabelNodes | ForgetNodes, user: str, token: Callable[[], int]
) -> DrainAsked | UndrainAsked | LabelAsked | ForgetAsked:
    """The event, with a `token` that is drawn once all is in order. Raises BadValue."""
    if not message.nodes:
        raise BadValue("no node is named", hint="see `grid nodes`")
    if len(message.nodes) > NODES_MOST:
        raise BadValue(f"{len(message.nodes)} nodes in one request", why=f"{NODES_MOST} are the most")
    match message:
        case DrainNodes(nodes=nodes, deadline=deadline):
            if deadline > MOST or not math.isfinite(deadline):
                raise BadValue(f"a deadline in {deadline:g} s cannot be used", hint="give seconds, below ten years")
            return DrainAsked(token(), nodes, user, message.reason[:REASON_CHARS], deadline)
        case UndrainNodes(nodes=nodes):
            return UndrainAsked(token(), nodes, user)
        case LabelNodes(nodes=nodes, labels=labels):
            check_labels(labels)
            return LabelAsked(token(), nodes, labels, user)
        case ForgetNodes(nodes=nodes):
            return ForgetAsked(token(), nodes, user)
