"""Who deals with each kind of event, and with each kind of deadline."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


def _hold(ledger: "Ledger", event: Hold) -> None:
    """Who came to wait and where room grew meanwhile is kept, and looked at when it is over."""
    ledger.holding = event.on


def _tick(ledger: "Ledger", event: Tick) -> None:
    """Time is looked at when settling."""


ON: dict[type, Callable[["Ledger", Any], None]] = {
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
DUE: dict[str, Callable[["Ledger", str], None]] = {
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
