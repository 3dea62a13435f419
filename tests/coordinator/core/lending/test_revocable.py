"""Revocable jobs run on slack where nothing is free, each core is lent on once, they end with the holder, and they
preempt nobody."""

import random
from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import (
    BalancingRequested,
    Command,
    ForecastsReported,
    Rejected,
    Send,
    Tick,
)
from distributed_grid.coordinator.core.explain.why import why
from distributed_grid.coordinator.core.lending import slack
from distributed_grid.coordinator.core.trends.stay import IdleForecast
from distributed_grid.protocol.history.trends import IdleChance
from distributed_grid.protocol.jobs import Cause, Priority, State
from distributed_grid.protocol.messages import Recalled, Stale, Stop, Suspended
from distributed_grid.protocol.resources import GIB, MILLI, Grant, Resources
from distributed_grid.protocol.sharing.policies import PolicyName
from distributed_grid.protocol.sharing.slack import left_to
from tests.coordinator.core.lending.scene import Scene
from tests.coordinator.core.scene import decoded, step
from tests.depth import tries


def stops(out: list[Command]) -> list[tuple[str, str]]:
    return [
        (one.message.allocation, one.message.cause)
        for one in out
        if isinstance(one, Send) and isinstance(one.message, Stop)
    ]


# --- where they run ---------------------------------------------------------------------------------------------------


def test_it_runs_on_the_holders_own_cores_with_memory_that_is_free() -> None:
    scene = Scene()
    scene.uses("holder", 2.0)
    scene.ask("user", 3000, GIB)
    assert scene.grant("user") == Grant(memory=GIB, slack=(5, 6, 7), slack_milli=3000, holder="holder.1")
    grant = scene.grant("user")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(grant), type=Grant) == grant, "as store and agent read it"
    node = scene.state.nodes["n1"]
    assert node.capacity is not None and node.capacity.free_memory == 3 * GIB
    scene.ledger.check()


def test_one_that_waits_starts_when_slack_is_told() -> None:
    scene = Scene()
    scene.ask("user", 3000)
    assert scene.grant("user") is None
    scene.uses("holder", 2.0)
    assert scene.grant("user") is not None


@pytest.mark.parametrize("name", [PolicyName.CONSERVATIVE, PolicyName.BALANCED])
def test_under_other_policies_nothing_is_lent_on(name: PolicyName) -> None:
    scene = Scene(name)
    scene.uses("holder", 0.0)
    scene.ask("user", 1000)
    assert scene.grant("user") is None


def test_who_did_not_say_that_it_is_revocable_gets_no_slack() -> None:
    scene = Scene()
    scene.uses("holder", 0.0)
    scene.ask("user", 1000, revocable=False)
    assert scene.grant("user") is None


def test_memory_of_the_holder_is_not_touched() -> None:
    scene = Scene()
    scene.uses("holder", 0.0)
    scene.ask("user", 1000, 5 * GIB)
    assert scene.grant("user") is None, "4 GiB are free, and what the holder does not use is its own"


def test_where_somebody_has_a_reservation_cores_are_lent_on_and_memory_is_not() -> None:
    scene = Scene(time_limit=3600.0)
    scene.ask("waits", 8000, revocable=False)
    scene.ask("some", 1000, GIB)
    assert scene.state.reservations.by_job.keys() == {"waits"}
    scene.ask("none", 1000)
    scene.uses("holder", 2.0)
    assert scene.grant("some") is None, "nobody knows whether its memory would be back in time"
    assert (grant := scene.grant("none")) is not None and grant.slack
    begins = scene.state.reservations.by_job["waits"].at
    scene.end("holder")
    assert scene.grant("waits") is not None and scene.now <= begins, "the cores are the holder's, and whose turn it is"
    scene.ledger.check()


def test_where_something_is_free_it_is_a_job_like_others() -> None:
    scene = Scene()
    scene.cancel("holder")
    scene.end("holder")
    scene.ask("user", 3000)
    assert (grant := scene.grant("user")) is not None and len(grant.cores) == 3 and not grant.slack


def test_parts_of_cores_add_up_to_what_is_left_and_no_more() -> None:
    scene = Scene()
    scene.uses("holder", 5.0)
    for name in ("a", "b", "c", "d"):
        scene.ask(name, 600)
    grants = [scene.grant(name) for name in ("a", "b", "c", "d")]
    assert [grant.slack_milli for grant in grants if grant is not None] == [600, 600, 600]
    assert scene.slack("holder") == 200


def test_a_core_that_was_refused_is_not_lent_on_again_at_once() -> None:
    scene = Scene()
    scene.uses("holder", 4.0)
    scene.ask("user", 1000)
    assert scene.cores_lent("user") == (7,)
    scene.say(Stale(allocation="user.1", reason="core 7 was not measured", device="7"))
    assert scene.cores_lent("user") == (6,)
    scene.begin("user")
    scene.now += 6.0
    step(scene.ledger, Tick(), scene.now)
    assert scene.left("holder") == (2000, (7, 5))


def test_nothing_that_a_node_says_makes_more_slack_than_it_has_cores_less_one() -> None:
    scene = Scene()
    scene.uses("holder", -1e9)
    assert scene.slack("holder") == 7000
    for number in range(10):
        scene.ask(f"user{number}", 900)
    assert len([one for one in scene.state.allocations.values() if one.grant.slack]) == 7
    scene.ledger.check()


def test_it_counts_by_half_in_the_share() -> None:
    scene = Scene()
    scene.uses("holder", 0.0)
    scene.ask("user", 4000)
    assert scene.state.shares.accounts["ben"].held == Resources(2000)
    scene.end("user")
    assert scene.state.shares.accounts["ben"].held == Resources()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"priority": Priority.URGENT}, "preempts nobody"),
        ({"gang": 2}, "a gang ends as a whole"),
        ({"within": "holder"}, "in a hold it runs on what is kept for it"),
        ({"cpu": 0, "memory": GIB}, "it asks for none"),
    ],
)
def test_what_cannot_be_revocable_is_refused(more: dict[str, Any], why: str) -> None:
    scene = Scene()
    (refused,) = [one for one in scene.ask("user", **{"cpu": 1000} | more) if isinstance(one, Rejected)]
    assert refused.what == "this job cannot be revocable" and why in refused.why


def test_an_urgent_job_does_not_preempt_it_for_cores_that_are_not_its_own() -> None:
    scene = Scene()
    scene.uses("holder", 0.0)
    scene.ask("user", 4000)
    scene.now += 7200
    out = scene.ask("urgent", 8000, revocable=False, priority=Priority.URGENT)
    assert {name for name, _ in stops(out)} == {"holder.1"}


def explained(scene: Scene, name: str) -> str:
    said = why(scene.state, name, None, scene.now)
    assert said.reason is not None
    return said.reason.text


def test_why_says_who_runs_on_what_it_leaves_and_why_another_one_does_not() -> None:
    scene = Scene()
    scene.ask("user", 4000)
    assert explained(scene, "user").endswith(
        "of the cores that jobs leave unused, beyond one of each, none can be lent"
    )
    scene.uses("holder", 0.0)
    assert explained(scene, "holder") == "it is running on n1; user runs on cores that it leaves unused"
    scene.ask("other", 4000)
    assert explained(scene, "other").endswith("beyond one of each, 3 at the most can be lent")
    scene.ask("large", 1000, 5 * GIB)
    assert explained(scene, "large").endswith("its memory or constraints are not met")
    step(scene.ledger, BalancingRequested(5, policy=PolicyName.BALANCED, by="op"), scene.now)
    assert explained(scene, "other").endswith("the policy balanced lends no cores that jobs leave unused")


# --- how they end -----------------------------------------------------------------------------------------------------


def test_it_is_recalled_with_the_end_of_its_holder_and_waits_again() -> None:
    scene = Scene()
    scene.uses("holder", 0.0)
    scene.ask("user", 3000)
    scene.begin("user")
    assert stops(scene.end("holder")) == [("user.1", Cause.RECALLED)]
    scene.ledger.check()
    scene.end("user", Cause.RECALLED)
    assert scene.state.jobs["user"].tries == 2, "and runs on what is free now"
    assert (grant := scene.grant("user")) is not None and len(grant.cores) == 3


def test_it_is_recalled_when_another_policy_takes_effect() -> None:
    scene = Scene()
    scene.uses("holder", 0.0)
    scene.ask("user", 3000)
    out = step(scene.ledger, BalancingRequested(5, policy=PolicyName.BALANCED, by="op"), scene.now)
    assert stops(out) == [("user.1", Cause.RECALLED)]
    assert stops(step(scene.ledger, Tick(), scene.now + 1)) == []


def test_who_wanted_its_cores_back_lends_none_for_ten_minutes_whatever_its_node_says() -> None:
    scene = Scene()
    scene.uses("holder", 0.0)
    scene.ask("user", 3000)
    scene.begin("user")
    why = "holder wants 8.0 cores, and 5 are left to it, for 30 s"
    scene.say(Recalled(allocation="user.1", why=why, grace=5.0, by_holder=True))
    assert scene.state.jobs["user"].story[-1].text == f"recalled: {why}; it has 5 s to end"
    scene.end("user", Cause.RECALLED)
    scene.ledger = checkpoint.resume(decoded(checkpoint.take(scene.ledger)))
    scene.state = scene.ledger.state
    scene.uses("holder", 0.0)
    assert scene.slack("holder") == 0 and scene.grant("user") is None
    scene.now += slack.AGAIN
    scene.uses("holder", 0.0)
    assert (grant := scene.grant("user")) is not None and grant.slack


def test_its_story_says_for_whom_it_is_frozen() -> None:
    scene = Scene()
    scene.uses("holder", 0.0)
    scene.ask("user", 3000)
    scene.begin("user")
    scene.say(Suspended(allocation="user.1", why="holder wants 8.0 cores, and 5 are left to it", by_holder=True))
    assert scene.state.jobs["user"].story[-1].text == "suspended: holder wants 8.0 cores, and 5 are left to it"
    shown = scene.state.jobs["user"].active.suspended
    assert shown is not None and shown.by_holder


# --- whatever happens -------------------------------------------------------------------------------------------------


def _are_left_with_what_they_use(scene: Scene, before: set[str]) -> None:
    """Those of whom something is lent on that was not lent before."""
    new = [one for name, one in scene.state.allocations.items() if one.grant.slack and name not in before]
    for holder in [scene.state.allocations[one.grant.holder] for one in new]:
        users = [scene.state.allocations[user].grant for user in scene.state.on_slack[holder.id]]
        wants = scene.state.usual[holder.id].cores * MILLI + slack.MARGIN
        assert left_to(holder.grant, users, scene.state.nodes["n1"].facts.smt) >= wants, f"{holder.id} has too little"


@pytest.mark.parametrize("seed", range(tries(8, 3)))
def test_a_core_has_one_holder_and_one_revocable_user_at_most(seed: int) -> None:
    """Also in a ledger that goes on from a checkpoint; and a holder is left with what it uses when more is lent of it,
    whatever is forecast of its node."""
    chance, scene = random.Random(seed), Scene()
    for number in range(60):
        scene.now += chance.uniform(0.1, 30.0)
        live = [name for name, one in scene.state.jobs.items() if one.allocation in scene.state.allocations]
        match chance.randrange(7):
            case 6:
                likely = IdleChance(1800.0, chance.random(), 9, 9)
                told = IdleForecast(scene.now, 60.0, (likely,), chance.random()) if chance.random() < 0.8 else None
                step(scene.ledger, ForecastsReported({"n1": told}), scene.now)
            case 0 | 1:
                revocable = chance.random() < 0.7
                scene.ask(f"j{number}", chance.randint(1, 4) * 1000, chance.randint(0, 2) * GIB, revocable)
            case 2 | 3 if live:
                for name in live:
                    if scene.state.jobs[name].state is State.STARTING:
                        scene.begin(name)
                    before = {*scene.state.allocations}
                    scene.uses(name, chance.uniform(0.0, 3.0))
                    _are_left_with_what_they_use(scene, before)
            case 4 if live:
                scene.end(chance.choice(live))
            case 5 if chance.random() < 0.3:
                policy = chance.choice(list(PolicyName))
                step(scene.ledger, BalancingRequested(5, policy=policy, by="op"), scene.now)
            case _:
                scene.ledger = checkpoint.resume(decoded(checkpoint.take(scene.ledger)))
                scene.state = scene.ledger.state
        scene.ledger.check()
        for node in scene.state.nodes.values():
            ends = [one for one in node.allocations.values() if one.grant.slack and one.stop is None]
            used = [core for one in ends for core in one.grant.slack]
            assert len(used) == len({*used})
            assert all(one.grant.holder in node.allocations for one in ends)
