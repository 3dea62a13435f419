"""Who deals with each kind of event, and with each kind of deadline."""

from collections.abc import Callable
from typing import Any

from distributed_grid.coordinator.core import (
    accounts,
    agents,
    boosts,
    by_ray,
    declining,
    dependencies,
    failing,
    forgetting,
    losing,
    orders,
    preempting,
    requests,
)
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
from distributed_grid.coordinator.core.ray_events import RayLooked, Reserved, ReserveRefused
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
    JobsSubmitted: requests.submit,
    CancelAsked: requests.cancel,
    SignalAsked: requests.signal,
    Hold: _hold,
    Tick: _tick,
    DrainAsked: orders.drain,
    UndrainAsked: orders.undrain,
    LabelAsked: orders.label,
    Joined: boosts.joined,
    Left: boosts.left,
    ExtendAsked: boosts.extend,
    ForgetAsked: forgetting.forget,
    RayLooked: by_ray.looked,
    Reserved: by_ray.reserved,
    ReserveRefused: by_ray.refused,
    LossFound: losing.found,
    NodeDoubted: orders.doubted,
}
DUE: dict[str, Callable[[GridState, str], None]] = {
    "silence": agents.silence,
    "begin": dependencies.begin_due,
    "join": boosts.due,
    "reserve": by_ray.due,
    "offer": agents.offer_due,
    "decline": declining.due,
    "drain": orders.drain_due,
    "aside": failing.due,
    "kept": preempting.kept_due,
    "preempt": preempting.due,
    "shares": accounts.due,
}
