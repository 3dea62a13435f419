"""A ledger made from a checkpoint does what the first one does, for ever; nothing that decides is forgotten in it."""

import dataclasses
import random
from typing import Any

import msgpack
import msgspec
import pytest

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import (
    Command,
    Event,
    JobsSubmitted,
    MessageReceived,
    NodeUp,
    Publish,
    Tick,
)
from distributed_grid.coordinator.core.data import Deadlines
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lending.loans import Loans
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.queue.fairness import Shares
from distributed_grid.coordinator.core.queue.queue import Line, Queue, Rank, Standing
from distributed_grid.coordinator.core.queue.quotas import Quotas
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Request, RetryOn
from distributed_grid.protocol.messages.rights import Rules
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import decoded, facts, job, join, offer, resumed
from tests.coordinator.core.test_ledger_honest_agents import Grid, play
from tests.depth import tries

encode = msgspec.msgpack.Encoder().encode


def copied(ledger: Ledger) -> Ledger:
    """Through bytes, as the event log does it."""
    return resumed(ledger)


def same_event(event: Event) -> Event:
    """As another process would read it: jobs are changed by who takes them."""
    read: Event = msgspec.msgpack.decode(encode(event), type=Event)
    return read


def answers(commands: list[Command]) -> bytes:
    return encode([(type(command).__name__, command) for command in commands])


class Twins(Grid):
    """The grid of honest agents, with a second ledger beside the first that hears the same and must say the same."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.again = 0
        self.rng = rng
        self.twin: Ledger | None = None
        self.compared = 0

    def happen(self, event: Event) -> None:
        if self.rng.random() < 0.02:
            forked = self.rng.random() < 0.5
            self.twin = checkpoint.fork(self.ledger, self.ledger.state.policy) if forked else copied(self.ledger)
            assert_equal(self.twin, self.ledger)
        if isinstance(event, JobsSubmitted) and self.rng.random() < 0.5:
            for one in event.jobs:
                one.request = msgspec.structs.replace(one.request, retry_on=tuple(RetryOn), retries=2)
        self.now += 0.01
        again = same_event(event)
        commands = self.ledger.handle(event, self.now) + self.ledger.settle(self.now)
        if self.twin is not None:
            said = answers(self.twin.handle(again, self.now) + self.twin.settle(self.now))
            assert said == answers(commands), f"at {self.now}, after {event}"
            assert self.twin.next_deadline() == self.ledger.next_deadline()
            self.compared += len(commands)
            self.again += sum(job.retried > 0 for job in self.twin.state.jobs.values())
        for command in commands:
            self.perform(command)


def assert_equal(one: Ledger, other: Ledger) -> None:
    assert encode(canonical(one)) == encode(canonical(other))
    assert one.state.index.flush() == other.state.index.flush()
    one.check()


def canonical(ledger: Ledger) -> Any:
    plain = msgspec.msgpack.decode(checkpoint.encode(checkpoint.take(ledger)))
    for node in plain["nodes"].values():
        for part in filter(None, (node, node["capacity"])):
            part["closed"].sort()  # a set has no order
            if "parts" in part:  # nor is that of cores in parts asked for: the smallest that fits is taken
                part["parts"] = dict(sorted(part["parts"].items()))
    return plain


@pytest.mark.parametrize("seed", range(tries(8, 2)))
def test_a_ledger_that_was_written_down_and_made_again_answers_the_same_for_ever(seed: int) -> None:
    rng = random.Random(seed)
    grid = Twins(rng)
    for _ in range(300):
        play(grid, rng)
    grid.teardown()
    assert grid.twin is not None
    assert (grid.compared > 200 and grid.again) or seed >= 8, "little was compared, as one of many more seeds may"
    assert_equal(grid.twin, grid.ledger)


def test_the_msgpack_package_reads_it_too() -> None:
    grid = Twins(random.Random(1))
    for _ in range(200):
        play(grid, grid.rng)
    data = checkpoint.encode(checkpoint.take(grid.ledger))
    plain = msgpack.unpackb(data, strict_map_key=False)
    assert_equal(checkpoint.resume(checkpoint.convert(plain)), grid.ledger)


# --- nothing is forgotten ---------------------------------------------------------------------------------------------

REBUILT = {
    "allocations": "their order is kept, they themselves are with their nodes",
    "deadlines": "as due, armed and number",
    "feasible_nodes": "a memory of what can_fit says of the nodes",
    "facts": "empty between two events",
    "index": "made of the rooms of the nodes that are usable; its mix of requests as mix",
    "keys": "those of the jobs",
    "rendezvous": "where the gangs of the allocations meet",
    "on_slack": "those of the allocations",
    "out": "empty between two events",
    "placements": "explain what was decided, and decide nothing",
    "watched": "decides who is told, and nothing else",
}
INSTEAD = {"allocations", "due", "armed", "number", "mix"}


def test_every_field_of_the_state_is_kept_or_said_to_be_rebuilt() -> None:
    kept = set(checkpoint.Checkpoint.__struct_fields__)
    assert set(vars(GridState())) == (kept - INSTEAD) | set(REBUILT)


def test_every_field_of_what_it_is_made_of_is_kept() -> None:
    assert set(vars(Deadlines())) == {"heap", "armed", "number"}
    # A line by its jobs; of the queue everything follows from the lines and the ranks but for two.
    derived = {"request", "need", "lasts", "operator", "standing", "heap", "count", "entered", "jobs"}
    derived |= {"scale", "scale_at"}
    assert {name.strip("_") for name in Line.__slots__} == derived ^ {*checkpoint.LineAt.__struct_fields__}
    derived = {"user", "priority", "lines", "place", "count", "included", "blocks", "open", "by_need", "by_need_size"}
    derived |= {"excluded", "needs"}
    ranked = {"lane", "served_at"} | {*Rank.__struct_fields__}
    assert set(Standing.__slots__) == derived | ranked
    derived = {"turns", "_line_of", "order", "standings", "ranks", "of_user", "needs", "_sharing"}
    assert set(vars(Queue())) == derived ^ {*checkpoint.QueueAt.__struct_fields__}
    derived = {"rules", "limited", "with_first", "counted", "_pools", "_allowed", "_groups"}
    assert set(vars(Quotas(Rules()))) == (derived | {*checkpoint.QuotasAt.__struct_fields__}) - {"first", "resting"}
    assert set(vars(Loans())) == {*checkpoint.LoansAt.__struct_fields__}
    assert set(vars(Shares())) == {"capacity", "negligible_at"} | set(checkpoint.SharesAt.__struct_fields__)


def test_every_field_of_a_node_comes_back() -> None:
    ledger = Ledger()
    join(ledger, facts("n1", gpus=2))
    ledger.handle(JobsSubmitted(1, (job("j1", Request(Resources(cpu=1500))),)), 1.0)
    ledger.settle(1.0)
    before, after = ledger.state.nodes["n1"], copied(ledger).state.nodes["n1"]
    for field in dataclasses.fields(before):
        assert getattr(before, field.name) == getattr(after, field.name), field.name
    assert after.allocations and after.capacity is not None


def test_room_that_was_given_back_is_chosen_in_the_same_order() -> None:
    """The offer alone says nothing of that order."""
    ledger = Ledger()
    of = facts("n1", cores=4)
    join(ledger, of)
    ledger.handle(MessageReceived("n1", offer(of, 2, cores=(3, 1))), 1.0)
    capacity = ledger.state.nodes["n1"].capacity
    assert capacity is not None
    capacity.take(capacity.choose(Resources(cpu=1000)))
    other = copied(ledger).state.nodes["n1"].capacity
    assert other is not None and other.choose(Resources(cpu=1000)) == capacity.choose(Resources(cpu=1000))


# --- with another policy ----------------------------------------------------------------------------------------------


def test_a_ledger_made_again_with_less_patience_loses_a_silent_node_at_once() -> None:
    ledger = Ledger()
    join(ledger, facts("n1"))
    ledger.handle(JobsSubmitted(1, (job("j1", Request(Resources(cpu=1000))),)), 1.0)
    ledger.settle(1.0)
    ledger.handle(Tick(), 30.0)
    ledger.settle(30.0)
    other = checkpoint.resume(decoded(checkpoint.take(ledger)), Policy(lost_after=15.0))
    said = [command.view for command in other.settle(30.0) if isinstance(command, Publish)]
    assert [(view.id, view.outcome and view.outcome.cause) for view in said] == [("j1", "node-lost")]
    assert other.state.nodes["n1"].state is NodeState.LOST
    assert ledger.state.nodes["n1"].state is NodeState.DISCONNECTED
    assert not ledger.settle(40.0)


def test_what_was_written_down_stays_as_it_was() -> None:
    ledger = Ledger()
    ledger.handle(NodeUp(facts("n1"), "s1"), 1.0)
    at = decoded(checkpoint.take(ledger))
    join(ledger, facts("n2"), 2.0)
    assert list(checkpoint.resume(at).state.nodes) == ["n1"]
