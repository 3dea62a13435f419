"""Where a gang goes: places on different nodes for all of its members, or for none; and where they meet."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Placement, Refusal
from distributed_grid.coordinator.core.placement.matching import gang_places, meeting
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import environment, parse_gang, parse_ports
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.resources import MILLI, Resources
from tests.coordinator.core.scene import facts, join


def grid(*cores: int, **more: Any) -> Ledger:
    """Nodes n0, n1, … with so many cores."""
    ledger = Ledger()
    for number, count in enumerate(cores):
        join(ledger, facts(f"n{number}", count, **more))
    return ledger


def found(ledger: Ledger, gang: int, cpu: int = MILLI, nodes: tuple[str, ...] = ()) -> list[str] | None:
    """The nodes of a gang's members by rank; None: it has to wait."""
    request = Request(Resources(cpu), gang=gang, nodes=nodes)
    answer = gang_places(ledger.state.nodes, ledger.state.index, request)
    if isinstance(answer, Refusal):
        return None
    assert all(isinstance(one, Placement) and len(one.grant.cores) == cpu // MILLI for one in answer)
    return [one.node for one in answer]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(1, 5), st.integers(1, 4))
def test_there_are_places_if_and_only_if_so_many_nodes_have_room(cores: list[int], gang: int, wanted: int) -> None:
    ledger = grid(*(max(1, count) for count in cores))
    able = {f"n{number}" for number, count in enumerate(cores) if max(1, count) >= wanted}
    chosen = found(ledger, gang, wanted * MILLI)
    if len(able) < gang:
        assert chosen is None
    else:
        assert chosen is not None and len(set(chosen)) == gang and set(chosen) <= able


def test_preferred_nodes_come_first_and_others_make_up_the_number() -> None:
    ledger = grid(*[4] * 12)
    chosen = found(ledger, 3, nodes=("n7", "n9"))
    assert chosen is not None and {"n7", "n9"} <= set(chosen) and len(set(chosen)) == 3
    assert set(found(ledger, 2, nodes=("n7", "n9", "n3")) or ()) <= {"n3", "n7", "n9"}


def test_a_gang_larger_than_the_nodes_compared_for_a_job_finds_them_all() -> None:
    assert len(found(grid(*[1] * 40), 40) or ()) == 40


def test_looking_for_places_holds_nothing() -> None:
    ledger = grid(2, 2)
    assert found(ledger, 3) is None
    assert sorted(found(ledger, 2, 2 * MILLI) or ()) == ["n0", "n1"]
    ledger.check()


# --- where they meet --------------------------------------------------------------------------------------------------


def test_all_members_are_told_the_same_but_for_their_rank() -> None:
    members = [facts("a", address="192.0.2.1"), facts("b", address="192.0.2.2")]
    one, other = meeting("j-g.1", members, ()) or ()
    assert (one.rank, other.rank) == (0, 1)
    assert one.addresses == other.addresses == ("192.0.2.1", "192.0.2.2")
    assert one.port == other.port and 29500 <= one.port <= 29999
    assert environment(other) == {
        "GRID_NODE_RANK": "1",
        "GRID_NNODES": "2",
        "GRID_NODES": "a,b",
        "GRID_NODE_ADDRESSES": "192.0.2.1,192.0.2.2",
        "MASTER_ADDR": "192.0.2.1",
        "MASTER_PORT": str(one.port),
        "NODE_RANK": "1",
        "RANK": "1",
        "WORLD_SIZE": "2",
    }


def test_no_port_is_given_twice_at_one_address_and_none_is_made_up() -> None:
    members = [facts("a", address="192.0.2.1")]
    policy = Policy(gang_ports=(5000, 5003))
    taken: set[tuple[str, int]] = set()
    for number in range(4):
        (one,) = meeting(f"j-{number}.1", members, taken, policy) or ()
        assert (one.addresses[0], one.port) not in taken and 5000 <= one.port <= 5003
        taken.add((one.addresses[0], one.port))
    assert meeting("j-9.1", members, taken, policy) is None
    assert meeting("j-9.1", [facts("b", address="192.0.2.2")], taken, policy) is not None


def test_another_attempt_begins_with_another_port() -> None:
    ports = {(meeting(f"j-g.{attempt}", [facts("a", address="::1")], ()) or ())[0].port for attempt in range(8)}
    assert len(ports) > 4


@pytest.mark.parametrize(
    ("addresses", "told"),
    [
        (("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.1")),
        (("127.0.0.1", "192.0.2.2"), ("a", "192.0.2.2")),
        (("192.0.2.1", "::1"), ("192.0.2.1", "b")),
        (("", ""), ("127.0.0.1", "127.0.0.1")),
    ],
)
def test_a_loopback_address_is_only_told_where_all_are_on_one_machine(
    addresses: tuple[str, str], told: tuple[str, str]
) -> None:
    members = [facts(name, address=address) for name, address in zip("ab", addresses, strict=True)]
    one, _ = meeting("j-g.1", members, ()) or ()
    assert one.addresses == told


# --- what may be asked ------------------------------------------------------------------------------------------------


def test_ports_are_a_range_or_one() -> None:
    assert parse_ports("29500-29999") == (29500, 29999)
    assert parse_ports("5000") == (5000, 5000)


@pytest.mark.parametrize("text", ["٢٩٥٠٠", "", "a-b", "5-4", "0-3", "1-70000", "-5", "1-"])
def test_what_is_no_range_of_ports(text: str) -> None:
    with pytest.raises(BadValue, match="not a range of ports"):
        parse_ports(text)


@pytest.mark.parametrize("nodes", [0, -1, 257])
def test_how_many_nodes_a_gang_may_have(nodes: int) -> None:
    assert parse_gang(None) == 0 and parse_gang(1) == 1
    with pytest.raises(BadValue, match="a gang on"):
        parse_gang(nodes)
