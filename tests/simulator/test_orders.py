"""Each promise about drained nodes and those set aside is broken, and some simulated grid has to show it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.core import ledger
from distributed_grid.coordinator.core.commands import Command, Granted, RecordOrders
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.nodes import operator, quarantine
from distributed_grid.coordinator.core.pipeline import Pipeline
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.nodes import NodeOrders
from distributed_grid.simulator.disk import Disk
from distributed_grid.simulator.judging.judge import Judge
from tests.simulator.shown import Patch, shown

MOST = 400
"""Seeds that are looked through for one that shows it."""


def forget_what_is_ordered(patch: Patch) -> None:
    """A coordinator that starts gives drained nodes jobs again."""
    patch(Disk, "orders", lambda self: {})
    patch(Judge, "drain_acknowledged", lambda self, node: None)


def give_jobs_to_drained_nodes(patch: Patch) -> None:
    patch(NodeOrders, "open", True)
    patch(Judge, "ordered", ordered_as_drained)


def ordered_as_drained(self: Judge, node: str, orders: NodeOrders) -> None:
    """As it is, whatever `open` says."""
    assert self.disk is not None
    if orders.drain is None:
        self.closed.pop(node, None)
    else:
        self.closed.setdefault(node, frozenset(row.allocation for row in self.disk.rows.values()))


def answer_a_drain_before_it_is_on_disk(patch: Patch) -> None:
    take = Pipeline.take

    def hasty(self: Pipeline, commands: list[Command]) -> None:
        self._due += [one for one in commands if isinstance(one, Granted)]
        take(self, [one for one in commands if not isinstance(one, Granted)])

    patch(Pipeline, "take", hasty)


def take_nothing_back_at_the_deadline(patch: Patch) -> None:
    patch(ledger, "DUE", {**ledger.DUE, "drain": lambda state, name: None})


def forget_deadlines_at_a_restart(patch: Patch) -> None:
    restore = operator.restore

    def forgetful(state: GridState, ordered: Any) -> None:
        restore(state, ordered)
        state.deadlines.armed = {key: at for key, at in state.deadlines.armed.items() if key[0] != "drain"}

    patch(operator, "restore", forgetful)


def set_nobody_aside_for_long(patch: Patch) -> None:
    """What is set aside on disk is given jobs all the same."""
    patch(quarantine, "_order", order_on_disk_only)
    patch(quarantine, "EVERYWHERE", "nowhere")


def order_on_disk_only(state: GridState, node: Node, aside: Any) -> None:
    ordered = msgspec.structs.replace(node.orders, aside=aside)
    state.out.append(RecordOrders(node.facts.name, ordered))


BREACHES: dict[Callable[[Patch], None], int] = {
    forget_what_is_ordered: 17,
    give_jobs_to_drained_nodes: 1,
    answer_a_drain_before_it_is_on_disk: 1,
    take_nothing_back_at_the_deadline: 33,
    forget_deadlines_at_a_restart: 176,
    set_nobody_aside_for_long: 168,
}


@pytest.mark.parametrize("breach", BREACHES, ids=[one.__name__ for one in BREACHES])
def test_it_shows(breach: Callable[[Patch], None]) -> None:
    what = shown(breach, ((seed, ()) for seed in (BREACHES[breach], *range(MOST))))
    print(what)
    assert what, f"{MOST} seeds show nothing"
