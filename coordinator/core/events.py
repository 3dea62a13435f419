"""Who deals with each kind of event, and with each kind of deadline."""

from collections.abc import Callable
from typing import Any

from distributed_grid.coordinator.core import boosts
from distributed_grid.coordinator.core.commands import RayLooked, Reserved, ReserveRefused
from distributed_grid.coordinator.core.model import (
    CancelAsked,
    DrainAsked,
    ExtendAsked,
    ForgetAsked,
    Heard,
    Hold,
    JobsSubmitted,
    Joined,
    LabelAsked,
    Left,
    LossFound,
    NodeDoubted,
    NodeDown,
    NodeUp,
    SignalAsked,
    Tick,
    Told,
    UndrainAsked,
)
from distributed_grid.coordinator.core.nodes import agents, backoff, contradictions, operator, quarantine
from distributed_grid.coordinator.core.placement import ray
from distributed_grid.coordinator.core.preemption import execute
from distributed_grid.coordinator.core.queue import accounts, admission, dependencies
from distributed_grid.coordinator.core.state import GridState


def _hold(state: GridState, event: Hold) -> None:
    """Who came to wait and where room grew meanwhile is kept, and looked at when it is over."""
    state.holding = event.on


def _tick(state: GridState, event: Tick) -> None:
    """Time is looked at when settling."""


ON: dict[type, Callable[[GridState, Any], None]] = {
    NodeUp: agents.node_up,
    NodeDown: agents.node_down,
    Heard: agents.heard,
    Told: agents.told,
    JobsSubmitted: admission.submit,
    CancelAsked: admission.cancel,
    SignalAsked: admission.signal,
    Hold: _hold,
    Tick: _tick,
    DrainAsked: operator.drain,
    UndrainAsked: operator.undrain,
    LabelAsked: operator.label,
    Joined: boosts.joined,
    Left: boosts.left,
    ExtendAsked: boosts.extend,
    ForgetAsked: operator.forget,
    RayLooked: ray.looked,
    Reserved: ray.reserved,
    ReserveRefused: ray.refused,
    LossFound: contradictions.found,
    NodeDoubted: operator.doubted,
}
DUE: dict[str, Callable[[GridState, str], None]] = {
    "silence": agents.silence,
    "begin": dependencies.begin_due,
    "join": boosts.due,
    "reserve": ray.due,
    "offer": agents.offer_due,
    "decline": backoff.due,
    "drain": operator.drain_due,
    "aside": quarantine.due,
    "kept": execute.kept_due,
    "preempt": execute.due,
    "shares": accounts.due,
}
