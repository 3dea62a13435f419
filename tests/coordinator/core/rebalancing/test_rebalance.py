"""The decision of a pass: who lends what to whom, who has it back, and why nothing moves."""

import itertools
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from distributed_grid.coordinator.core.rebalancing.rebalance import EPSILON, MOVE, rebalance, supply
from distributed_grid.coordinator.core.rebalancing.view import Loan, Moved, Steady, View, Waiting, weight
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from distributed_grid.protocol.sharing.moves import Move, MoveKind, Pass
from distributed_grid.protocol.sharing.policies import POLICIES, PolicyName
from tests.coordinator.core.rebalancing.world import LOOK, Demand, World, balancing, source, waits
from tests.depth import DEEP

NOW = 10_000.0


def view(*asks: Waiting, sources: Any = (), loans: Any = (), **more: Any) -> View:
    steady = {one.text: Steady(one.count, 1e6) for one in asks}
    return View(
        look=replace(LOOK, waiting=asks), sources=tuple(sources), loans=tuple(loans), **{"steady": steady, **more}
    )


def decided(of: View, name: PolicyName = PolicyName.BALANCED) -> Pass:
    return rebalance(of, balancing(name), NOW)


def burden(view: View) -> float:
    """The sum that each move lowers, in cores' worth: demand that nothing is on its way for, what lenders bear by their
    owners' pressure, and a constant for each boost that the grid has lent by itself."""
    left = [(one.each, max(0, one.count - supply(view, one))) for one in view.look.waiting]
    waits = sum(weight(Resources(each.cpu * n, each.memory * n, each.gpu * n)) for each, n in left if n)
    scores = {one.name: one.owner.score for one in view.sources if one.owner is not None}
    lent = [one for one in view.loans if one.automatic]
    return waits + sum(weight(one.resources) * scores.get(one.source, 0.0) + MOVE for one in lent)


def lent(found: Pass) -> list[tuple[str, Resources, int]]:
    return [(one.source, one.resources, one.tasks) for one in found.moves if one.kind is MoveKind.LEND]


def whys(found: Pass) -> list[str]:
    return [one.why for one in found.unserved]


def loan(boost: str = "b1", source: str = "lab1", cores: int = 4, **more: Any) -> Loan:
    known = {"user": "ann", "target": "head", "resources": Resources(cores * MILLI), "automatic": True}
    return Loan(boost=boost, source=source, **{**known, "joined": 1.0, "idle": 0.0, **more})


# --- lending ----------------------------------------------------------------------------------------------------------


def test_one_boost_of_the_right_shape_is_lent_for_what_waits() -> None:
    found = decided(view(waits(1, cpu=4), sources=[source("lab1", 8)]))
    assert lent(found) == [("lab1", Resources(4 * MILLI), 1)]
    assert not found.unserved


def test_one_large_boost_is_lent_rather_than_several_small_ones() -> None:
    found = decided(view(waits(6), sources=[source("lab1", 4), source("lab2", 16), source("lab3", 4)]))
    assert lent(found) == [("lab2", Resources(6 * MILLI), 6)]


def test_gpus_bring_a_core_each_and_memory_what_the_raylet_needs() -> None:
    found = decided(view(waits(2, cpu=0, gpu=1, memory=2), sources=[source("lab1", 16, gpus=4, memory=64)]))
    assert lent(found) == [("lab1", Resources(2 * MILLI, 4 * GIB + (512 << 20), 2 * MILLI), 2)]


@pytest.mark.parametrize("name", PolicyName)
def test_the_headroom_of_the_policy_stays_free(name: PolicyName) -> None:
    found = decided(view(waits(100), sources=[source("lab1", 20)]), name)
    assert lent(found) == [("lab1", Resources(round(20 * (1 - POLICIES[name].headroom)) * MILLI), found.moves[0].tasks)]


def test_of_two_lenders_the_idler_one_is_taken_and_the_one_with_the_higher_priority_before() -> None:
    idler = [source("lab1", 8, owner=0.2), source("lab2", 8, owner=0.1)]
    assert decided(view(waits(), sources=idler)).moves[0].source == "lab2"
    preferred = [replace(idler[0], priority=2.0), idler[1]]
    assert decided(view(waits(), sources=preferred)).moves[0].source == "lab1"


def test_every_move_says_why_what_it_costs_and_what_would_undo_it() -> None:
    (move,) = decided(view(waits(2, cpu=2), sources=[source("lab1", 8, owner=0.1)])).moves
    assert "2 tasks that ask for 2 cpu wait in Ray" in move.reason and "owner's pressure 0.10" in move.reason
    assert (move.gain, move.cost) == (4 * 300.0, 4 * (3.5 + 0.1 * 300.0))
    assert "using nothing of it for 60 s, not before 300 s from now" in move.undone_by


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"closed": "it is drained"}, "lab1: it is drained"),
        ({"owner": None}, "lab1: it was not measured yet"),
        ({"owner": source("x", owner=0.3).owner}, "lab1: its owner's cpu pressure is 0.30 (low mark 0.3)"),
        ({"idle": 59.0}, "lab1: idle for 59 s of 60 s (sustained)"),
    ],
)
def test_a_node_that_may_not_lend_is_named_with_the_reason(changed: dict[str, Any], why: str) -> None:
    found = decided(view(waits(), sources=[replace(source("lab1"), **changed)]))
    assert not found.moves
    assert whys(found) == [f"no node lends by itself now; {why}"]


def test_what_no_lender_has_is_told_and_not_chased() -> None:
    found = decided(view(waits(cpu=64), waits(cpu=1), sources=[source("lab1", 8)]))
    assert lent(found) == [("lab1", Resources(MILLI), 1)]
    assert whys(found) == ["none of 1 lenders has it beyond its headroom; the most of each: 6 cpu, 12.8G memory"]


def test_what_no_boost_brings_is_told() -> None:
    found = decided(view(replace(waits(), odd="it asks for TPU, which no boost brings"), sources=[source("lab1")]))
    assert (found.moves, whys(found)) == ((), ["it asks for TPU, which no boost brings"])


def test_what_has_not_waited_long_enough_waits_on() -> None:
    ask = waits()
    found = decided(view(ask, sources=[source("lab1")], steady={ask.text: Steady(1, 30.0)}))
    assert (found.moves, whys(found)) == ((), ["it has waited for 30 s of 60 s (sustained)"])


def test_a_cluster_that_is_not_asked_for_its_high_mark_waits_for_something_else() -> None:
    look = replace(LOOK, total=Resources(100 * MILLI), used=Resources(60 * MILLI))
    ask = replace(waits(10), fits=True)
    below = replace(view(ask, sources=[source("lab1", 16)]), look=replace(look, waiting=(ask,)))
    assert whys(decided(below)) == [
        "the cluster has room elsewhere: with what waits 70% of its cpu is asked for (high mark 80%)"
    ]
    over = replace(below, look=replace(below.look, used=Resources(71 * MILLI)))
    assert lent(decided(over)) == [("lab1", Resources(10 * MILLI), 10)]


def test_what_is_on_its_way_is_not_lent_again() -> None:
    ask = waits(3)
    on_its_way = loan(cores=2, asks=ask.text, tasks=2, joined=0.0, new=True, idle=None)
    found = decided(view(ask, sources=[source("lab2")], loans=[on_its_way]))
    assert lent(found) == [("lab2", Resources(MILLI), 1)]
    assert whys(decided(view(ask, sources=[source("lab2")], loans=[replace(on_its_way, tasks=3)]))) == [
        "what is lent already is on its way"
    ]


def test_a_boost_that_somebody_asked_for_counts_while_it_joins() -> None:
    theirs = loan(cores=2, automatic=False, joined=0.0, new=True, idle=None)
    assert not decided(view(waits(2), sources=[source("lab2")], loans=[theirs])).moves


def test_what_was_lent_in_vain_is_not_lent_again_while_it_waits() -> None:
    ask = waits()
    found = decided(view(ask, sources=[source("lab1")], vain={ask.text: "b1"}))
    assert whys(found) == ["a boost was lent for it, and Ray left it unused: it waits for something else"]


def test_the_bundles_of_a_group_are_lent_all_or_none() -> None:
    sources = [source("lab1", 5), source("lab2", 5), source("lab3", 5)]  # with 4 cores each beyond their headroom
    assert [one[2] for one in lent(decided(view(waits(8, group=True), sources=sources)))] == [4, 4]
    found = decided(view(waits(9, group=True), sources=sources))
    assert not found.moves
    assert "room for 8 of its 9 bundles in one pass, and it needs all at once" in whys(found)[0]


def test_bundles_that_belong_together_get_one_lender_and_those_apart_one_each() -> None:
    sources = [source("lab1", 5), source("lab2", 5)]
    assert not decided(view(waits(5, group=True, together=True), sources=sources)).moves
    assert len(decided(view(waits(4, group=True, together=True), sources=sources)).moves) == 1
    apart = decided(view(waits(2, group=True, apart=True), sources=sources))
    assert [(one.source, one.tasks) for one in apart.moves] == [("lab1", 1), ("lab2", 1)]


@pytest.mark.parametrize("name", PolicyName)
def test_no_more_moves_are_made_in_a_pass_than_the_policy_has(name: PolicyName) -> None:
    found = decided(view(waits(1000), sources=[source(f"lab{at:02}", 4) for at in range(20)]), name)
    assert len(found.moves) == POLICIES[name].moves
    assert "are left over for the next pass" in whys(found)[0]


def test_a_lender_whose_owner_bears_too_much_is_left_alone() -> None:
    high = balancing()
    marks = replace(high.marks, cpu_low=0.8, memory_low=0.8, cpu_high=1.0, memory_high=1.0)
    found = rebalance(view(waits(), sources=[source("lab1", owner=0.7)]), replace(high, marks=marks), NOW)
    assert (found.moves, whys(found)) == ((), ["what it costs its lender is too much for what it gains"])


# --- giving back ------------------------------------------------------------------------------------------------------


def test_a_boost_that_ray_leaves_idle_is_given_back() -> None:
    (move,) = decided(view(loans=[loan(idle=61.0)])).moves
    assert (move.kind, move.boost, move.source) == (MoveKind.GIVE_BACK, "b1", "lab1")
    assert move.reason == "Ray has used nothing of it for 1m01s (sustained: 60 s)"


@pytest.mark.parametrize("idle", [None, 0.0, 59.0])
def test_a_boost_that_is_used_or_was_a_moment_ago_stays(idle: float | None) -> None:
    assert not decided(view(loans=[loan(idle=idle)])).moves


def test_nothing_is_given_back_before_its_min_hold() -> None:
    assert not decided(view(loans=[loan(idle=200.0, joined=NOW - 299.0)])).moves
    assert decided(view(loans=[loan(idle=200.0, joined=NOW - 300.0)])).moves


def test_a_boost_that_somebody_asked_for_is_never_taken_back_and_only_told() -> None:
    found = decided(view(loans=[loan(automatic=False, idle=1200.0, user="bob")]))
    assert not found.moves
    assert [(one.user, one.text) for one in found.hints] == [("bob", "idle for 20m00s; grid boost release b1")]


def test_a_boost_that_nobody_asked_for_gives_way_to_a_job_before_anything_is_lent() -> None:
    blocking = loan(in_way="a job of bob waits for 2 cpu, which lab1 would have", idle=0.0)
    found = decided(view(waits(4), sources=[source("lab1"), source("lab2")], loans=[blocking]))
    assert [(one.kind, one.source) for one in found.moves] == [(MoveKind.GIVE_BACK, "lab1"), (MoveKind.LEND, "lab2")]
    assert found.moves[0].reason.startswith("a job of bob waits for 2 cpu")


# --- no oscillation ---------------------------------------------------------------------------------------------------


def test_a_lender_rests_for_the_cooldown_and_does_not_lend_again_before_the_min_hold() -> None:
    ask = waits()
    for kind, rest in ((MoveKind.LEND, 120.0), (MoveKind.GIVE_BACK, 300.0)):
        for after, moves in ((rest - 1, 0), (rest, 1)):
            found = decided(view(ask, sources=[source("lab1")], moved={"lab1": Moved(NOW - after, kind, "head")}))
            assert len(found.moves) == moves


WORLDS = 10_000 if DEEP else 12
NAMES = st.sampled_from(list(PolicyName))
LENDERS = st.lists(
    st.tuples(st.integers(1, 16), st.floats(0, 0.29), st.integers(0, 4), st.integers(1, 64)), min_size=0, max_size=6
)
SHAPES = st.tuples(
    st.sampled_from([0.25, 0.5, 1, 2, 4]), st.sampled_from([0, 0, 0, 0.25, 1, 2]), st.sampled_from([0, 0, 1, 8])
)
DEMANDS = st.lists(st.tuples(SHAPES, st.integers(1, 12), st.booleans()), min_size=0, max_size=4)


def worlds(name: PolicyName, lenders: Any, demands: Any, interval: float) -> World:
    sources = {
        f"lab{at}": source(f"lab{at}", cores, owner, gpus, memory)
        for at, (cores, owner, gpus, memory) in enumerate(lenders)
    }
    asked = {
        (shape, odd): Demand(
            Resources(round(shape[0] * MILLI), round(shape[2] * GIB), round(shape[1] * MILLI)), count, odd
        )
        for shape, count, odd in demands
    }
    return World(balancing(name, interval), sources, list(asked.values()))


def check_pairs(moves: list[Move], name: PolicyName) -> None:
    """One action a cooldown and pair; no move is reversed before the min-hold."""
    values = POLICIES[name]
    since = {one.boost: one.at for one in moves if one.kind is MoveKind.LEND}
    for _, each in itertools.groupby(sorted(moves, key=lambda one: (one.source, one.at)), lambda one: one.source):
        for one, after in itertools.pairwise(each):
            assert after.at - one.at >= values.cooldown, (one, after)
            if after.kind is MoveKind.GIVE_BACK:
                assert after.at - since[after.boost] >= values.min_hold, (one, after)
            elif one.kind is MoveKind.GIVE_BACK:
                assert after.at - one.at >= values.min_hold, (one, after)


@pytest.mark.timeout(3000)
@settings(max_examples=WORLDS, deadline=None)
@given(NAMES, LENDERS, DEMANDS, st.sampled_from([15.0, 30.0, 60.0]))
@example(
    PolicyName.AGGRESSIVE,
    [(3, 0.0, 2, 1)],
    [((0.25, 0, 0), 1, True), ((0.25, 0.25, 0), 1, False), ((0.25, 0.25, 0), 1, True), ((0.25, 1, 0), 2, True)],
    60.0,
)
def test_under_constant_load_no_move_is_undone_and_then_none_is_made(
    name: PolicyName, lenders: Any, demands: Any, interval: float
) -> None:
    """Except of what was lent for tasks that wait for something else, which is lent once, and given back."""
    world = worlds(name, lenders, demands, interval)
    start = burden(world.view(world.look()))
    most = int(start / EPSILON) + 1
    values = POLICIES[name]
    rounds = len(lenders) + len(demands) + 1
    # From a boost for what waits in vain to the next one of its lender: twice the min-hold, and up to a pass each time.
    world.run(int((values.sustained + rounds * (2 * values.min_hold + 3 * interval)) / interval))
    check_pairs(world.moves, name)
    odd = {one.text for one in world.demands if one.odd}
    back = [one.boost for one in world.moves if one.kind is MoveKind.GIVE_BACK]
    wanted = {one.boost: one.asks for one in world.moves if one.kind is MoveKind.LEND}
    assert all(wanted[boost] in odd for boost in back), "what is used was given back"
    assert len(world.moves) <= most
    before = len(world.moves)
    world.run(int(2 * values.min_hold / interval))
    assert len(world.moves) == before, "moves are made after it has converged"


@pytest.mark.timeout(3000)
@settings(max_examples=WORLDS, deadline=None)
@given(NAMES, LENDERS, DEMANDS, st.integers(0, 1 << 30))
def test_noise_makes_one_move_a_cooldown_and_pair_and_limits_hold(
    name: PolicyName, lenders: Any, demands: Any, seed: int
) -> None:
    world, chance = worlds(name, lenders, demands, 15.0), random.Random(seed)
    counts = [one.count for one in world.demands]
    sources = dict(world.sources)
    for _ in range(80):
        for one, count in zip(world.demands, counts, strict=True):
            one.count = max(0, count + chance.choice((-count, -1, 0, 0, 1)))
        for at, node in sources.items():  # about the low mark
            noisy = source(at, node.total.cpu // MILLI, chance.choice((0.29, 0.3, 0.31, 0.1)))
            world.sources[at] = replace(node, owner=noisy.owner, idle=chance.choice((0.0, 14.0, 1e6)))
        world.pass_once()
        for left in map(world._left, world.sources.values()):  # raises where an amount is below zero
            kept = POLICIES[name].headroom * left.total.cpu
            lent_here = [one for one in world.boosts.values() if one.source == left.name]
            assert not lent_here or left.free.cpu >= kept, "the headroom was lent"
    check_pairs(world.moves, name)


@given(NAMES, LENDERS, DEMANDS)
def test_each_move_lowers_what_is_borne_by_epsilon_at_least(name: PolicyName, lenders: Any, demands: Any) -> None:
    world = worlds(name, lenders, demands, 30.0)
    for _ in range(30):
        world.now += 30.0
        world._place()
        look = world.look()
        world.state.see(look, world.now, 30.0)
        world.state.forget({one: world.state.lent[one] for one in world.boosts}, world.now)
        for move in rebalance(world.view(look), world.balancing, world.now).moves:
            was = burden(world.view(look))
            world._make(move, look)
            if move.kind is MoveKind.LEND:
                assert burden(world.view(look)) <= was - EPSILON + 1e-9, move


@given(NAMES, LENDERS, DEMANDS)
def test_lenders_never_borrow_so_there_is_no_circle(name: PolicyName, lenders: Any, demands: Any) -> None:
    world = worlds(name, lenders, demands, 30.0)
    world.sources["head"] = replace(source("head"), closed="it is a node of this Ray cluster itself")
    world.run(40)
    assert {one.source for one in world.moves}.isdisjoint({one.target for one in world.moves})
