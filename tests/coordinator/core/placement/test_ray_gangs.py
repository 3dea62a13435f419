"""Gangs under `placement: ray`: what Ray reserves member by member never holds up another gang, nor is left over."""

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import (
    Command,
    Event,
    MessageReceived,
    RayReported,
    Reserve,
    Reserved,
    ReserveRefused,
    Send,
    Unreserve,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import OnRay
from distributed_grid.protocol.jobs import Cause, Outcome, Request, State
from distributed_grid.protocol.messages import Exited, Stop
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.lifecycle.test_outcomes import submitted
from tests.coordinator.core.placement.test_ray import BY_RAY, WHOLE, launches
from tests.coordinator.core.scene import facts, join, step


def scene() -> Ledger:
    """Two nodes of four cores, all of them Ray's too."""
    ledger = Ledger(policy=BY_RAY)
    for name in ("lab", "lib"):
        join(ledger, facts(name))
    step(ledger, RayReported({name: OnRay(f"ray-{name}", WHOLE) for name in ("lab", "lib")}), 0.5)
    return ledger


def gang(ledger: Ledger, name: str, cpu: int) -> list[Command]:
    return submitted(ledger, name, Request(Resources(cpu=cpu), gang=2))


def reserves(out: list[Command]) -> list[str]:
    return sorted(one.allocation for one in out if isinstance(one, Reserve))


def lets_go(out: list[Command]) -> list[str]:
    return sorted(one.allocation for one in out if isinstance(one, Unreserve))


def test_of_two_gangs_that_do_not_fit_at_once_the_second_asks_ray_for_nothing() -> None:
    ledger = scene()
    assert reserves(gang(ledger, "g", 3000)) == ["g_0.1", "g_1.1"]
    assert reserves(gang(ledger, "h", 3000)) == []
    out = step(ledger, Reserved("g_0.1"), 2.0) + step(ledger, Reserved("g_1.1"), 2.1)
    assert launches(out) == ["g_0.1", "g_1.1"]


def test_two_gangs_of_which_ray_reserves_half_each_let_go_of_all_and_say_why() -> None:
    ledger = scene()
    assert len(reserves(gang(ledger, "g", 2000) + gang(ledger, "h", 2000))) == 4
    out: list[Command] = []
    events: tuple[Event, ...] = (
        Reserved("g_0.1"),
        Reserved("h_1.1"),
        ReserveRefused("g_1.1", "it was not free within 2 s"),
        ReserveRefused("h_0.1", "it was not free within 2 s"),
    )
    for number, event in enumerate(events):
        out += step(ledger, event, 2.0 + 0.1 * number)
    assert lets_go(out) == ["g_1.1", "h_0.1"]
    stops = [one.message.allocation for one in out if isinstance(one, Send) and isinstance(one.message, Stop)]
    assert stops == ["g_0.1", "h_1.1"], "what had been launched ends"
    out = []
    for node, allocation in (("lab", "g_0.1"), ("lib", "h_1.1")):
        out += step(ledger, MessageReceived(node, Exited(allocation, Outcome(Cause.GANG))), 3.0)
    assert set(lets_go(out)) >= {"g_0.1", "h_1.1"}
    assert not ledger.state.allocations, "neither holds anything that the other waits for"
    for name in ("g_0", "h_1"):
        view = views.job(ledger.state, name)
        assert view is not None and view.state is State.WAITING
        assert any("it was not free within 2 s" in one.text for one in view.story), view.story
