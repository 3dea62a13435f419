"""Why a request cannot start on a node now: each code, and what is said of it."""

from collections.abc import Callable
from typing import Any

import pytest

from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.placement.blockers import blocker, blocker_words
from distributed_grid.coordinator.core.placement.catalogue import Bounds
from distributed_grid.coordinator.core.placement.constraints import unjoined_key
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.nodes import Aside, Drain, NodeOrders, NodeState, Withheld
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.core.scene import facts, join

TWO = Request(Resources(cpu=2000))
NEAR = Request(Resources(cpu=2000), constraints=Constraints(near=("j7",)))
ELSEWHERE = Request(Resources(cpu=2000), constraints=Constraints(exclude=("n1",)))
LARGE_GPU = Request(Resources(gpu=1000), constraints=Constraints(gpu_memory=15 * GIB))


def node(cores: int = 1, **parts: Any) -> Node:
    """One that offers so many of its four cores, and a GPU."""
    ledger = Ledger()
    of = facts("n1", gpus=1)
    join(ledger, of, cores=of.cores[:cores], **parts)
    return ledger.state.nodes["n1"]


def is_away(one: Node) -> None:
    one.state = NodeState.LOST


def is_drained(one: Node) -> None:
    one.orders = NodeOrders(drain=Drain(since=1.0, by="ann", reason="a new disk"))


def is_aside(one: Node) -> None:
    one.orders = NodeOrders(aside=Aside(until=9.0, seconds=60.0, failures=3, why="no such user"))


def is_on_trial(one: Node) -> None:
    one.orders = NodeOrders(aside=Aside(until=0.0, seconds=60.0, failures=3))


def is_left_alone(one: Node) -> None:
    one.closed = frozenset({""})


def refused_a_core(one: Node) -> None:
    one.closed = frozenset({"2"})


def did_not_join(one: Node) -> None:
    one.closed, one.unjoined = frozenset({unjoined_key("head:6379")}), {"head:6379": "Ray said no"}


def offers_nothing(one: Node) -> None:
    one.capacity = None


def uses_memory_of_its_gpu(one: Node) -> None:
    assert one.capacity is not None
    one.capacity.gpu_memory["n1-gpu0"] = 2 * GIB


def is_as_it_was(one: Node) -> None:
    pass


ANYWHERE, NEED = Bounds(), "2 cpu needed, 1 cpu free"
SUCH_A_GPU = "a node with a GPU of 15G or more needed, free are T4 with 2G"


@pytest.mark.parametrize(
    ("request_", "becomes", "bounds", "code", "words"),
    [
        (ELSEWHERE, is_away, ANYWHERE, "not-asked", "is excluded"),
        (Request(Resources(cpu=9000)), is_away, ANYWHERE, "too-small", "lends 1 gpu, 4 cpu, 8G memory at the most"),
        (TWO, is_away, ANYWHERE, "away", "is lost"),
        (TWO, is_drained, ANYWHERE, "drained", "is drained by ann: a new disk"),
        (TWO, is_aside, ANYWHERE, "set-aside", "is set aside for 60 s: 3 launches failed, no such user"),
        (NEAR, is_as_it_was, Bounds(near=frozenset({"n2"})), "not-near", "is not where j7 is"),
        (TWO, is_as_it_was, Bounds(apart=frozenset({"n1"})), "not-apart", "has a job that this is to be apart from"),
        (TWO, is_left_alone, ANYWHERE, "declined", "refused a moment ago and is left alone for a while"),
        (Request(TWO.resources, joins="head:6379"), did_not_join, ANYWHERE, "unjoined", "did not join: Ray said no"),
        (TWO, offers_nothing, ANYWHERE, "no-offer", "offers nothing now"),
        (TWO, refused_a_core, ANYWHERE, "declined", f"{NEED}; refused some of it a moment ago"),
        (TWO, is_on_trial, ANYWHERE, "busy", NEED),
        (LARGE_GPU, uses_memory_of_its_gpu, ANYWHERE, "busy", SUCH_A_GPU),
        (Request(Resources(cpu=1000)), is_as_it_was, ANYWHERE, "", ""),
    ],
)  # fmt: skip
def test_each_code_has_its_words(
    request_: Request, becomes: Callable[[Node], None], bounds: Bounds, code: str, words: str
) -> None:
    one = node()
    becomes(one)
    assert blocker(one, request_, bounds) == code
    assert blocker_words(one, request_, code) == words


def test_what_a_node_withholds_is_why_only_where_it_would_be_enough() -> None:
    why = Withheld("cpu", "others use 2 cores' worth")
    one = node(withheld=(why,))
    assert blocker(one, TWO) == "withheld"
    assert blocker_words(one, TWO, "withheld") == f"{NEED}; cpu: others use 2 cores' worth"
    assert blocker(node(withheld=(Withheld("memory", "a limit"),)), TWO) == "busy"
