"""Every grant is held against the quotas, counted from the allocations alone."""

from typing import Any

import pytest

from distributed_grid.coordinator.core.commands import CancelRequested, JobsSubmitted, RightsSet
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.messages.rights import GroupRights, Rights, Rules, Whose
from distributed_grid.protocol.resources import Resources
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.judging.quotas import (
    exceeded,
    nobody_passes_a_quota,
    nobody_waits_for_nothing,
    rightly_waits,
    whole,
)
from tests.coordinator.core.scene import facts, job, join, step

CPU = Request(Resources(cpu=1000))


def grid(rules: Rules, *jobs: str, **spec: Any) -> Ledger:
    """These jobs of one core are submitted; their users are named by the letters before the dash."""
    ledger = Ledger(policy=Policy(rights=rules))
    join(ledger, facts("n1", 8))
    for name in jobs:
        step(ledger, JobsSubmitted(1, (job(name, CPU, user=name.partition("-")[0], **spec),)), 1.0)
    return ledger


def test_a_grant_beyond_what_a_user_may_hold_is_seen() -> None:
    state = grid(Rules(users={"ann": Rights(cores=1000)}), "ann-1", "ann-2").state
    with pytest.raises(Violation, match="ann-2: it is granted more than ann may hold: cores 1000, 1000 are held"):
        nobody_passes_a_quota(state, state.jobs["ann-2"], CPU.resources)


def test_what_the_members_of_a_group_hold_together_is_counted() -> None:
    rules = Rules(groups={"lab": GroupRights(("ann", "ben"), Rights(cores=1500))})
    state = grid(rules, "ann-1", "ben-1", "eve-1").state
    with pytest.raises(Violation, match="more than group lab may hold"):
        nobody_passes_a_quota(state, state.jobs["ben-1"], CPU.resources)
    nobody_passes_a_quota(state, state.jobs["ben-1"], Resources(cpu=500))
    nobody_passes_a_quota(state, state.jobs["eve-1"], Resources(cpu=9000))


def test_hours_beyond_those_of_the_day_are_seen() -> None:
    state = grid(Rules(users={"ann": Rights(core_hours=2000)}), "ann-1", "ann-2", time_limit=3600.0).state
    state.now += 1.0
    nobody_passes_a_quota(state, state.jobs["ann-2"], CPU.resources)
    with pytest.raises(Violation, match="more core_hours than ann may use today"):
        nobody_passes_a_quota(state, state.jobs["ann-2"], Resources(cpu=2000))


def test_one_that_is_being_stopped_uses_hours_for_its_grace_only() -> None:
    ledger = grid(Rules(), "ann-1", "ann-2", grace=5.0)
    step(ledger, CancelRequested(1, ("ann-1",)), 2.0)
    step(ledger, RightsSet(2, Whose.USER, "ann", Rights(core_hours=1000)), 2.0)
    short = job("ann-3", CPU, 2.0, "ann", time_limit=3600.0)
    with pytest.raises(Violation, match="more core_hours than ann may use today"):
        nobody_passes_a_quota(ledger.state, short, CPU.resources)
    step(ledger, CancelRequested(1, ("ann-2",)), 2.0)
    nobody_passes_a_quota(ledger.state, short, CPU.resources)


def test_what_operators_grant_counts() -> None:
    ledger = grid(Rules(), "ann-1")
    step(ledger, RightsSet(2, Whose.USER, "ann", Rights(cores=1000)), 2.0)
    with pytest.raises(Violation):
        nobody_passes_a_quota(ledger.state, ledger.state.jobs["ann-1"], CPU.resources)


def test_who_waits_for_a_quota_that_allows_a_start_is_seen() -> None:
    state = grid(Rules(users={"ann": Rights(cores=1000)}), "ann-1", "ann-2").state
    line = state.queue.line("ann-2")
    nobody_waits_for_nothing(state, line)
    state.allocations.clear()
    with pytest.raises(Violation, match="ann-2: it waits for a quota, and all of them would allow it to start"):
        nobody_waits_for_nothing(state, line)


def test_only_who_could_never_start_may_wait_for_ever() -> None:
    for cores, rightly in ((500, True), (1000, False)):
        state = grid(Rules(), "ann-1").state
        state.quotas.granted["user/ann"] = Rights(cores=cores)
        assert rightly_waits(state, state.jobs["ann-1"]) is rightly


def test_a_gang_counts_with_all_of_its_members() -> None:
    gang = Request(Resources(cpu=1000), gang=3)
    assert whole(gang) == Resources(cpu=3000)
    assert exceeded(Rights(cores=2000), Resources(), whole(gang)) == "cores 2000, 0 are held and 3000 asked for"
