import msgspec
import pytest

from distributed_grid.protocol import codec
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import Inventory, Started
from distributed_grid.protocol.nodes import Known, NodeFacts
from distributed_grid.protocol.placement import (
    UID_RANGE,
    Constraints,
    Trust,
    Walls,
    admits,
    is_wall_uid,
    level_of,
    parse_placing,
    parse_walls,
)
from tests.protocol.samples import FACTS


def test_the_range_includes_its_first_and_its_last_user_id() -> None:
    assert is_wall_uid(UID_RANGE[0]) and is_wall_uid(UID_RANGE[1])


def test_users_outside_the_range_are_not_of_the_walls() -> None:
    assert not any(is_wall_uid(uid) for uid in (0, 1000, 65534, UID_RANGE[0] - 1, UID_RANGE[1] + 1))


def test_levels_are_ordered_from_user_to_none() -> None:
    assert sorted(Walls, key=lambda level: -level.strength) == ["user", "namespace", "landlock", "none"]
    assert [level for level in Walls if level.meets(Walls.LANDLOCK)] == ["user", "namespace", "landlock"]


@pytest.mark.parametrize("told", ["", "moat", "USER"])
def test_a_level_that_is_not_known_counts_as_none(told: str) -> None:
    assert level_of(told) is Walls.NONE


@pytest.mark.parametrize(("said", "level"), [("user", Walls.USER), (" Namespace ", Walls.NAMESPACE)])
def test_a_level_is_parsed_by_its_name(said: str, level: Walls) -> None:
    assert parse_walls(said) is level


def test_a_mistyped_level_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(BadValue) as refused:
        parse_walls("namespaces")
    assert refused.value.what == "--walls cannot be 'namespaces'"
    assert refused.value.hint == (
        "did you mean namespace? there are, the strongest first: user, namespace, landlock, none"
    )


@pytest.mark.parametrize("walls", ["user", "namespace"])
def test_a_node_with_walls_runs_jobs_of_everyone(walls: str) -> None:
    assert admits(walls, (), Trust.OWNER, "eve")


@pytest.mark.parametrize("walls", ["landlock", "none", ""])
def test_a_node_without_walls_runs_jobs_of_its_owners_only(walls: str) -> None:
    assert admits(walls, ("ann", "bob"), Trust.OWNER, "bob")
    assert not admits(walls, ("ann", "bob"), Trust.OWNER, "eve")
    assert not admits(walls, (), Trust.OWNER, "eve")


def test_a_node_whose_owner_trusts_everyone_runs_jobs_of_everyone() -> None:
    assert admits("none", (), Trust.EVERYONE, "eve")


def test_a_word_for_trust_that_is_not_known_opens_no_node() -> None:
    assert not admits("none", (), "friends", "eve")


def test_walls_are_a_constraint() -> None:
    assert parse_placing(gpu=0, walls="user")["constraints"] == Constraints(walls=Walls.USER)
    assert parse_placing(gpu=0, walls="none")["constraints"] is None


def test_what_a_node_tells_of_its_walls_travels() -> None:
    told = Walls.LANDLOCK.value
    facts = msgspec.structs.replace(FACTS, walls=told, walls_why="not root", owners=("ann",), trusts="everyone")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts), type=NodeFacts) == facts
    sent = [
        Started(allocation="j-a.1", pid=7, walls=told),
        Inventory(known=(Known("j-a.1", State.RUNNING, walls=told),)),
    ]
    assert codec.decode("FromAgent", codec.encode(1, sent)) == (1, sent)


def test_a_node_cannot_name_more_owners_than_lists_of_nodes_are_made_for() -> None:
    facts = msgspec.structs.replace(FACTS, owners=("ann",) * 257)
    with pytest.raises(msgspec.ValidationError, match="owners"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(facts), type=NodeFacts)


def test_an_older_agent_tells_nothing_of_walls() -> None:
    assert (FACTS.walls, FACTS.walls_why, FACTS.owners, FACTS.trusts) == ("", "", (), "owner")
    assert msgspec.msgpack.encode(FACTS) == msgspec.msgpack.encode(
        msgspec.structs.replace(FACTS, walls="", owners=(), trusts="owner")
    )
