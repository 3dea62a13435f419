"""What waits in a simulated Ray gets boosts by itself, keeps them while it waits on, and its lenders have them back."""

from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Command, Event, Rebalanced
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy, Preempting
from distributed_grid.protocol.resources import GIB
from distributed_grid.protocol.sharing.moves import MoveKind
from distributed_grid.protocol.sharing.policies import POLICIES, Balancing, OffloadingMode, PolicyName
from distributed_grid.simulator.plan import DemandPlan
from distributed_grid.simulator.workload import BOOSTS
from distributed_grid.simulator.world import World
from tests.simulator.plans import fault, node, run_until, world

WAITS = DemandPlan(at=5.0, until=60.0, count=3, cores=1)
NODES = (node(0, cores=4), node(1, cores=4), node(2, cores=1, memory=GIB))


def lending(policy: PolicyName, *demands: DemandPlan, **other: Any) -> World:
    numbers = replace(POLICIES[policy], sustained=1.0, min_hold=8.0, cooldown=0.5, horizon=0.0)
    mode = OffloadingMode.DYNAMIC_BALANCING
    balancing = Balancing(mode=mode, policy=policy, interval=0.5, numbers=numbers)
    return world(nodes=NODES, balancing=balancing, demands=demands, **other)


def kinds(of: World) -> list[MoveKind]:
    return [one.kind for one in of.coordinator.ledger.state.balancing.recent]


def raylets(of: World) -> list[str]:
    return [run.node for run in of.judge.runs.values() if run.alive and int(run.job[1:4]) >= BOOSTS]


@pytest.mark.parametrize("policy", PolicyName)
def test_what_waits_is_lent_once_kept_and_given_back_under_every_policy(policy: PolicyName) -> None:
    of = lending(policy, WAITS)
    run_until(of, lambda: of.engine.now > 20.0)
    lent = raylets(of)
    assert lent and set(lent) <= {"n0", "n1"}, "a node of the cluster itself lends nothing"
    made = kinds(of)
    run_until(of, lambda: of.engine.now > 59.0)
    assert kinds(of) == made == [MoveKind.LEND] * len(lent), "nothing moves while nothing changes"
    of.go()
    assert kinds(of)[len(made) :] == [MoveKind.GIVE_BACK] * len(lent) and not raylets(of)


def test_a_coordinator_that_was_killed_lends_nothing_twice() -> None:
    of = lending(PolicyName.AGGRESSIVE, WAITS, faults=(fault("kill-coordinator", 20.0, 2.0),))
    run_until(of, lambda: of.engine.now > 19.0)
    before = sorted(raylets(of))
    run_until(of, lambda: of.engine.now > 50.0)
    assert before and sorted(raylets(of)) == before and of.faults == {"kill-coordinator": 1}
    of.go()
    assert not raylets(of)


def test_a_second_coordinator_on_a_copy_of_the_store_gives_its_boosts_up_and_nobody_minds() -> None:
    faults = fault("kill-coordinator", 11.5, 0.3), fault("second-coordinator", 12.4, 38.0)
    of = lending(PolicyName.AGGRESSIVE, WAITS, faults=faults, lost_after=5.0)
    of.go()
    assert of.faults == {"kill-coordinator": 1, "second-coordinator": 1} and not raylets(of)


def test_the_same_events_make_the_same_moves() -> None:
    of = lending(PolicyName.BALANCED, WAITS, replace(WAITS, odd=True, count=1))
    heard: list[tuple[Event | None, float, list[Command]]] = []
    ledger = of.coordinator.ledger
    handle, settle = ledger.handle, ledger.settle

    def handled(event: Event, now: float) -> list[Command]:
        heard.append((event, now, handle(event, now)))
        return heard[-1][2]

    def settled(now: float) -> list[Command]:
        heard.append((None, now, settle(now)))
        return heard[-1][2]

    ledger.handle, ledger.settle = handled, settled  # type: ignore[method-assign]
    epoch, plan = ledger.state.epoch, of.plan
    of.go()
    again = Ledger(
        epoch,
        policy=Policy(
            lost_after=plan.lost_after,
            owner_rule=True,
            balancing=plan.balancing,
            preempting=Preempting(badput_budget=plan.badput),
        ),
    )
    moves = 0
    for event, now, commands in heard:
        told = again.handle(event, now) if event is not None else again.settle(now)
        was, now_is = ([one for one in each if isinstance(one, Rebalanced)] for each in (commands, told))
        assert now_is == was
        moves += sum(len(one.moves) for one in was)
    assert moves >= 4
