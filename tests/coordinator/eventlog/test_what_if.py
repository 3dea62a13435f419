"""Another policy is asked turn by turn what it would have decided, in the world as it was."""

from pathlib import Path

import pytest

from distributed_grid.coordinator.core.commands import (
    BalancingConfigured,
    BalancingRequested,
    DemandReported,
    Event,
    HeartbeatReceived,
    MessageReceived,
    Tick,
)
from distributed_grid.coordinator.core.policy import DEFAULT, WEIGHTS, Policy
from distributed_grid.coordinator.core.rebalancing.view import RayLook, Waiting
from distributed_grid.coordinator.eventlog.what_if import changed, compare, lines
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Cause, Outcome, ServiceOrder
from distributed_grid.protocol.messages import Exited, Stale
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.placement import Strategy
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.sharing.policies import Balancing, OffloadingMode, PolicyName
from tests.coordinator.core.scene import facts, offer
from tests.coordinator.eventlog.stories import SILENT, asked, beats, came, in_order, written


def otherwise(path: Path, *pairs: str) -> list[str]:
    """What another policy would have decided, with the seconds."""
    return [f"{line.at:g} {line.text}" for line in lines(compare(path, pairs).differences)]


def test_less_patience_would_have_lost_the_node_earlier(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    assert otherwise(path, "lost_after=30") == ["42 lab1 would have been taken for lost 30s earlier, ending j1, j2"]
    assert otherwise(path, "lost_after=60") == []


def test_more_patience_would_not_have_lost_it_yet(tmp_path: Path) -> None:
    assert otherwise(written(tmp_path, SILENT), "lost_after=10m") == [
        "72 j1, j2 were ended as node-lost on lab1, and would not have been yet"
    ]


def test_a_node_that_came_back_in_time_would_have_been_lost(tmp_path: Path) -> None:
    story = in_order(SILENT, [(60.0, HeartbeatReceived("lab1", Sample(at=60.0)))], beats("lab1", 60.5, 89.5))
    assert otherwise(written(tmp_path, story), "lost_after=30") == [
        "42 lab1 would have been taken for lost, ending j1, j2; it never was"
    ]


def test_a_result_that_came_would_have_come_too_late(tmp_path: Path) -> None:
    over = Exited(allocation="j1.1", outcome=Outcome(cause=Cause.EXITED))
    story = in_order(SILENT, [(62.0, MessageReceived("lab1", over))], beats("lab1", 62.5, 89.5))
    assert otherwise(written(tmp_path, story), "lost_after=30")[0] == (
        "42 j1 would have been ended as node-lost on lab1 20s earlier, not ended as exited on lab1"
    )


def test_times_at_which_nothing_happened_are_looked_at_too(tmp_path: Path) -> None:
    """Not a heartbeat between 2 s and 71 s."""
    story = in_order(came(facts("lab1")), [asked("j1", 1.0), (2.0, Tick()), (71.0, Tick()), (75.0, Tick())])
    assert otherwise(written(tmp_path, story), "lost_after=30") == [
        "10 j1 would have been out of reach on lab1; it never was",
        "40 lab1 would have been taken for lost 31s earlier, ending j1",
    ]


def test_what_is_due_by_both_policies_is_decided_at_the_same_time_however_late_that_was(tmp_path: Path) -> None:
    """Deadlines at 8 s (suspect), 12 s (out of reach) and 72 s (lost), to which the coordinator came 0.3 s late."""
    late = [(at, Tick()) for at in (8.3, 12.3, 72.3)]
    path = written(tmp_path, in_order(came(facts("lab1")), [asked("j1", 1.0), (2.0, Tick())], late))
    assert otherwise(path, "candidates=4") == otherwise(path, "lost_after=60") == []
    assert otherwise(path, "lost_after=30") == ["40 lab1 would have been taken for lost 32s earlier, ending j1"]


def test_other_weights_would_have_taken_another_node(tmp_path: Path) -> None:
    """lab1 is the tighter fit, lab2 is what its owner gives more priority."""
    story = in_order(
        came(facts("lab1", cores=2)), came(facts("lab2", cores=4, priority=1.2)), [asked("j1", 1.0), asked("j2", 2.0)]
    )
    path = written(tmp_path, story)
    assert otherwise(path) == []
    assert otherwise(path, "weight.fit=0", "weight.priority=0.9") == [
        "1 j1 was granted on lab1, would go to lab2",
        "2 j2 was granted on lab1, would go to lab2",
    ]
    both = compare(path, ["weight.fit=0", "weight.priority=0.9"], job="j2")
    assert both.counts == {"elsewhere": 1} and [one.job for one in both.differences] == ["j2"]


def test_a_device_that_is_left_alone_for_less_would_have_been_tried_earlier(tmp_path: Path) -> None:
    stale = MessageReceived("lab1", Stale(allocation="j1.1", reason="busy", device=""))
    ticks = [(float(second), Tick()) for second in range(3, 12)]
    path = written(tmp_path, in_order(came(facts("lab1")), [asked("j1", 1.0), (2.0, stale)], ticks))
    assert otherwise(path, "decline_first=2") == ["4 j1 would have been granted on lab1 3.0s earlier"]
    assert otherwise(path, "decline_first=20s", "decline_most=20s") == [
        "7 j1 was granted on lab1, and would not have been yet"
    ]


def test_each_difference_is_told_once_however_often_it_is_met(tmp_path: Path) -> None:
    compared = compare(written(tmp_path, SILENT), ["lost_after=5"])
    assert compared.counts == {"earlier": 2}


def test_what_cannot_be_set_is_refused_with_what_can() -> None:
    with pytest.raises(BadValue, match="there is no setting 'lost_aftr'") as error:
        changed(DEFAULT, ["lost_aftr=30"])
    assert error.value.hint == "did you mean lost_after?" and "suspect_after" in error.value.why
    for wrong in ("lost_after", "lost_after=soon", "candidates=0", "candidates=2.5", "weight.fit=-1", "weight.fit=nan"):
        with pytest.raises(BadValue):
            changed(DEFAULT, [wrong])
    with pytest.raises(BadValue, match="all weights are zero"):
        changed(DEFAULT, [f"weight.{name}=0" for name in ("fit", "gpus_spared", "quiet", "preferred", "priority")])


def test_weights_are_made_to_be_one_together() -> None:
    policy = changed(DEFAULT, ["weight.fit=1.4"])
    packed = changed(DEFAULT, ["strategy=pack"])
    assert packed.strategy is Strategy.PACK and packed.weights == WEIGHTS[Strategy.PACK]
    halved = changed(DEFAULT, ["gpu_weight.fragmentation=0.24", "gpu_weight.fit=0.252"])
    assert halved.gpu_weights.fit == pytest.approx(0.252) and halved.weights == DEFAULT.weights
    assert policy.weights.fit == pytest.approx(0.7) and policy.weights.gpus_spared == pytest.approx(0.1)
    assert changed(DEFAULT, ["candidates=9", "decline_most=1m"]) == Policy(candidates=9, decline_most=60.0)


def test_the_order_of_service_is_set_by_its_name() -> None:
    assert changed(DEFAULT, ["order=share"]).sharing.order is ServiceOrder.SHARE
    assert changed(DEFAULT, ["order=Waiting"]) == DEFAULT
    with pytest.raises(BadValue, match="unknown order of service 'shares'") as error:
        changed(DEFAULT, ["order=shares"])
    assert "did you mean share" in error.value.hint


def demand(*at: float) -> list[tuple[float, Event]]:
    """What passes at these times are told: a task that asks for four cores waits in Ray."""
    waits = (Waiting("4 CPU", Resources(4000), 1, fits=False),)
    look = RayLook(target="head", address="192.0.2.1:6379", user="ann", ray="2.60.0", python="3.11.7", waiting=waits)
    return [(now, DemandReported(look, (f"j-{now:g}",))) for now in at]


def test_another_mode_or_policy_would_have_lent_by_itself(tmp_path: Path) -> None:
    ready = offer(of := facts("lab1", 8, 16 << 30, ray="2.60.0", ray_python="3.11.9"), idle_since=-1e6, expires_in=1e6)
    samples = [
        (now, HeartbeatReceived("lab1", Sample(at=now, memory_total=16 << 30))) for now, _ in beats("lab1", 0.5, 99.5)
    ]
    lends = (0.1, MessageReceived("lab1", ready))
    path = written(tmp_path, in_order(came(of), [lends], samples, demand(10.0, 40.0, 70.0)))
    assert otherwise(path) == []
    assert otherwise(path, "policy=aggressive") == [], "it shares on request only"
    assert otherwise(path, "mode=dynamic_balancing") == ["70 j-70 would have been granted on lab1; it never was"]
    assert otherwise(path, "mode=dynamic_balancing", "policy=aggressive")[0] == (
        "40 j-40 would have been granted on lab1; it never was"
    )
    assert otherwise(path, "mode=dynamic_balancing", "policy=conservative") == []


def test_an_order_in_the_log_does_not_replace_what_is_asked_for(tmp_path: Path) -> None:
    changes: list[tuple[float, Event]] = [
        (5.0, BalancingRequested(1, mode=OffloadingMode.OFFLOAD_ONLY, by="op")),
        (6.0, BalancingConfigured(Balancing(policy=PolicyName.CONSERVATIVE))),
    ]
    path = written(tmp_path, in_order(came(facts("lab1")), changes, beats("lab1", 0.5, 20.5), demand(10.0)))
    assert otherwise(path, "policy=aggressive") == []
    with pytest.raises(BadValue, match="there is no policy 'bold'"):
        changed(DEFAULT, ["policy=bold"])
    assert changed(DEFAULT, ["mode=offload-only"]).balancing.mode is OffloadingMode.OFFLOAD_ONLY
