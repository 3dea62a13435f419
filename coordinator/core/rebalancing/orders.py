"""The mode and policy in effect: those that operators have set, otherwise those of the configuration."""

from typing import Any

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    BalancingConfigured,
    BalancingRequested,
    Granted,
    RecordBalancing,
    Rejected,
)
from distributed_grid.coordinator.core.lifecycle import outcomes
from distributed_grid.coordinator.core.queue import rights
from distributed_grid.coordinator.core.rebalancing import passes
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.sharing.policies import NO_ORDER, BalancingOrder, OffloadingMode


def restore(state: GridState, order: BalancingOrder) -> None:
    """Load what operators have set; the ledger's policy has what is configured."""
    state.balancing.configured, state.balancing.order = state.policy.balancing, order
    _take_effect(state)


def configure(state: GridState, event: BalancingConfigured) -> None:
    """Take in a configuration that was read again. What operators have set still overrides it."""
    state.balancing.configured = event.balancing
    _take_effect(state)


def request(state: GridState, event: BalancingRequested) -> None:
    """Set mode and policy as an operator asks, or return to those of the configuration."""
    known = state.balancing
    if event.mode is None and event.policy is None and not event.unset:
        why = "neither a mode nor a policy, nor that they are to be as configured"
        hint = "grid policy set POLICY, --mode MODE or --unset"
        state.out.append(Rejected(event.token, "bad-value", "nothing is to be set", why, hint))
        return
    before = NO_ORDER if event.unset else known.order
    given: dict[str, Any] = {"mode": event.mode, "policy": event.policy}
    given = {name: value for name, value in given.items() if value is not None}
    order = replace(before, **given, since=state.now, by=event.by)
    known.order = NO_ORDER if order.mode is None and order.policy is None else order
    _take_effect(state)
    state.out.append(RecordBalancing(known.order))
    now = state.policy.balancing
    state.out.append(Granted(event.token, f"policy {now.policy}, mode {now.mode}{_from(known.order)}"))


def _from(order: BalancingOrder) -> str:
    return " (as configured)" if order == NO_ORDER else ""


def _take_effect(state: GridState) -> None:
    was, known = state.policy.balancing.mode, state.balancing
    state.policy = replace(state.policy, balancing=known.order.over(known.configured))
    now = state.policy.balancing.mode
    if was is not now and now is not OffloadingMode.DYNAMIC_BALANCING:
        passes.release_all(state, f"given back: the grid's mode is {now} now")
    if (refused := rights.boost_refusal(state, 0)) is not None:
        waiting = [job for job in state.jobs.values() if job.spec.boost is not None and job.state is State.WAITING]
        for job in waiting:
            text = f"{refused.what}: {refused.why}"
            outcomes.finish(state, job, Outcome(cause=Cause.NOT_PLACED, text=text, started=job.has_begun))
