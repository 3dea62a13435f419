"""Holds: what is kept for a user's jobs, who may run inside, and what becomes of both when it ends."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.checks import check
from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    DrainRequested,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    Rejected,
    Send,
    Tick,
)
from distributed_grid.coordinator.core.explain import reasons
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lifecycle import holds
from distributed_grid.coordinator.core.model import AwaitsHold, Group, Job, Placement, Refusal
from distributed_grid.coordinator.core.nodes import agents
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Reason, Request, RetryOn, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Recalled, Stale, Started, Stop, Suspended
from distributed_grid.protocol.messages.rights import Rights, Rules
from distributed_grid.protocol.nodes import Known, NodeFacts, Sample
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.core.scene import facts, job, join, offer, resumed, state_of, step
from tests.depth import tries

ONE = Resources(1000)
HOUR = 3600.0
UNMET = "the node of the hold h does not meet the constraints"


class Grid:
    """One node of four cores, and a hold `h` of two of them for an hour."""

    def __init__(self, cores: int = 4, held: Resources | None = None, policy: Policy = DEFAULT, **node: Any) -> None:
        self.ledger, self.now = Ledger(policy=policy), 1.0
        self.facts = facts("n1", cores, **node)
        join(self.ledger, self.facts, self.now)
        self.hold("h", held or Resources(2000))

    def step(self, event: Any, after: float = 1.0) -> list[Command]:
        self.now += after
        return step(self.ledger, event, self.now)

    def hold(self, name: str, held: Resources, lasts: float = HOUR, user: str = "ann", **request: Any) -> list[Command]:
        new = job(name, Request(held, requeue=False, **request), self.now, user=user)
        new.spec = holds.spec(lasts)
        return self.step(JobsSubmitted(1, (new,)))

    def submit(
        self, name: str, wants: Resources = ONE, within: str = "h", user: str = "ann", **request: Any
    ) -> list[Command]:
        return self.step(JobsSubmitted(1, (job(name, Request(wants, within=within, **request), self.now, user=user),)))

    def started(self, name: str) -> None:
        self.step(MessageReceived("n1", Started(allocation=f"{name}.1")))

    def exited(self, name: str, cause: Cause = Cause.EXITED) -> list[Command]:
        return self.step(MessageReceived("n1", Exited(allocation=f"{name}.1", outcome=Outcome(cause))))

    def wait(self, seconds: float) -> list[Command]:
        """So long passes; the node is heard of."""
        return self.step(HeartbeatReceived("n1", Sample(at=self.now + seconds)), seconds)

    def offer(self, *counting: str, cores: tuple[int, ...] | None = None) -> None:
        spare = self.facts.cores if cores is None else cores
        self.step(MessageReceived("n1", offer(self.facts, counting=counting, cores=spare)))

    def cores(self, name: str) -> tuple[int, ...]:
        grant = self.ledger.state.jobs[name].grant
        assert grant is not None
        return grant.cores

    def state(self, name: str) -> State:
        return state_of(self.ledger, name)

    def free(self) -> Resources:
        room = self.ledger.state.nodes["n1"].capacity
        assert room is not None
        return room.left

    def reason(self, name: str) -> str:
        reason = explain.why(self.ledger.state, name, None, self.now).reason
        return f"{reason.code}: {reason.text}"


def launches(commands: list[Command]) -> list[str]:
    return [one.message.allocation for one in commands if isinstance(one, Send) and isinstance(one.message, Launch)]


def refusals(commands: list[Command]) -> list[tuple[str, str]]:
    return [(one.code, one.what) for one in commands if isinstance(one, Rejected)]


def ended(commands: list[Command], grid: Grid, name: str) -> tuple[Cause, str]:
    views = [one.view for one in commands if type(one).__name__ == "Publish" and one.view.id == name]  # type: ignore[union-attr]
    outcome = views[-1].outcome
    assert outcome is not None and name not in grid.ledger.state.jobs
    return outcome.cause, outcome.text


# --- what it keeps ----------------------------------------------------------------------------------------------------


def test_a_hold_begins_with_its_grant_and_nothing_is_launched() -> None:
    grid = Grid()
    assert grid.state("h") is State.RUNNING
    assert grid.free() == Resources(2000, 8 * GIB)


def test_nothing_is_sent_to_its_node_in_all_of_its_life() -> None:
    grid = Grid()
    out = grid.hold("k", Resources(1000)) + grid.step(CancelRequested(2, ("k",))) + grid.step(Tick(), 2 * HOUR)
    assert not [one for one in out if isinstance(one, Send)]
    assert not grid.ledger.state.jobs


def test_what_is_held_is_granted_to_nobody_else() -> None:
    grid = Grid()
    grid.submit("big", Resources(3000), within="", user="bob")
    assert grid.state("big") is State.WAITING


def test_a_hold_waits_for_capacity_as_a_job_does() -> None:
    grid = Grid()
    grid.hold("k", Resources(3000), user="bob")
    assert grid.state("k") is State.WAITING
    grid.step(CancelRequested(2, ("h",)))
    assert grid.state("k") is State.RUNNING


def test_who_waits_for_a_hold_starts_as_soon_as_it_begins() -> None:
    grid = Grid()
    grid.hold("k", Resources(3000), user="bob")
    grid.submit("j", within="k", user="bob")
    assert launches(grid.step(CancelRequested(2, ("h",)))) == ["j.1"]


def test_an_offer_made_after_it_does_not_give_its_cores_away() -> None:
    grid = Grid()
    grid.offer()
    assert grid.free().cpu == 2000


# --- jobs inside ------------------------------------------------------------------------------------------------------


def test_a_job_inside_gets_cores_of_the_hold_and_takes_nothing_of_the_rest() -> None:
    grid = Grid()
    assert launches(grid.submit("j")) == ["j.1"]
    assert {*grid.cores("j")} < {*grid.cores("h")}
    assert grid.free().cpu == 2000


def test_the_third_of_two_cores_waits_and_says_why() -> None:
    grid = Grid()
    for name in ("a", "b", "c"):
        grid.submit(name)
    assert [grid.state(name) for name in "abc"] == [State.STARTING, State.STARTING, State.WAITING]
    assert grid.reason("c") == "Hold: 1 cpu needed, 0 cpu free in its hold h"
    grid.started("a")
    assert launches(grid.exited("a")) == ["c.1"]


def test_parts_of_cores_are_taken_out_of_the_hold() -> None:
    grid = Grid(held=Resources(1500))
    for name in "ab":
        grid.submit(name, Resources(700))
    grid.submit("c", Resources(500))  # 0.3 of the whole core is left, and 0.5 of the shared one
    assert [grid.state(name) for name in "abc"] == [State.STARTING, State.WAITING, State.STARTING]


def test_the_more_urgent_starts_first_and_a_small_one_passes_a_large_one() -> None:
    grid = Grid()
    grid.submit("first")
    grid.submit("large", Resources(2000))
    grid.submit("small")
    assert grid.state("large") is State.WAITING
    assert grid.state("small") is State.STARTING
    grid.submit("later")
    grid.submit("urgent", priority=Priority.HIGH)
    grid.started("first")
    assert launches(grid.exited("first")) == ["urgent.1"]


def test_offers_that_count_what_runs_inside_change_nothing() -> None:
    grid = Grid()
    grid.submit("j")
    grid.started("j")
    mine = grid.cores("j")
    grid.offer("j.1", cores=tuple(core for core in range(4) if core not in mine))
    assert grid.free().cpu == 2000
    grid.submit("k")
    assert grid.state("k") is State.STARTING
    grid.submit("other", Resources(2000), within="")
    assert grid.state("other") is State.STARTING
    assert not {*grid.cores("other")} & {*grid.cores("h")}


def test_a_dishonest_offer_does_not_make_the_hold_larger() -> None:
    grid = Grid()
    grid.submit("j")
    grid.started("j")
    grid.offer("j.1")  # it counts the job, and offers its core all the same
    assert grid.free().cpu == 2000


def test_what_the_owner_uses_of_the_hold_is_not_granted() -> None:
    grid = Grid()
    one, other = grid.cores("h")
    grid.offer(cores=tuple(core for core in range(4) if core != one))
    grid.submit("j")
    assert grid.cores("j") == (other,)
    grid.submit("k")
    assert grid.reason("k").endswith("0 cpu free in its hold h; the owner of n1 uses some of it")


def test_gpus_of_the_hold_go_to_jobs_inside_in_parts_too() -> None:
    grid = Grid(held=Resources(2000, 0, 1000), gpus=2)
    grid.submit("a", Resources(1000, 0, 500))
    grid.submit("b", Resources(500, 0, 500))
    grid.submit("c", Resources(500, 0, 500))
    assert [grid.state(name) for name in "abc"] == [State.STARTING, State.STARTING, State.WAITING]
    assert grid.reason("c").startswith("Hold: 0.5 gpu needed, 0 gpu free")


def test_memory_of_the_hold_is_all_that_jobs_inside_get() -> None:
    grid = Grid(held=Resources(2000, 2 * GIB))
    grid.submit("a", Resources(1000, GIB))
    grid.submit("b", Resources(1000, 2 * GIB))
    assert grid.state("b") is State.WAITING
    assert grid.reason("b") == "Hold: 2G memory needed, 1G memory free in its hold h"


def array(grid: Grid, count: int, most: int = 0) -> list[Command]:
    request = Request(ONE, within="h")
    template = job("g", request, grid.now)
    group = Group(
        id="g", key="key-g", user="ann", kind=GroupKind.ARRAY, spec=template.spec, request=request,
        submitted=grid.now, count=count, array=Array(((0, count - 1, 1),), most=most),
    )  # fmt: skip
    return grid.step(JobsSubmitted(1, (template,), (group,)))


def test_an_array_runs_in_a_hold_within_its_limit() -> None:
    grid = Grid()
    assert launches(array(grid, 3, most=1)) == ["g_0.1"]
    grid.started("g_0")
    assert launches(grid.exited("g_0")) == ["g_1.1"]


def test_an_array_whose_members_wait_for_room_says_so() -> None:
    grid = Grid()
    array(grid, 3)
    state = grid.ledger.state
    for why in (reasons.Wording(state).of_group(state.groups["g"]), reasons.Wording(state).of(state.jobs["g_2"])):
        assert why is not None and why.text == "1 cpu needed, 0 cpu free in its hold h"


def test_of_many_equal_jobs_that_wait_for_room_the_first_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid()
    array(grid, 500)
    grid.started("g_0")
    place, looked = holds._place, list[Request]()

    def counting(state: GridState, request: Request, *where: Any) -> Placement | Refusal:
        looked.append(request)
        return place(state, request, *where)

    monkeypatch.setattr(holds, "_place", counting)
    assert launches(grid.exited("g_0")) == ["g_2.1"]
    assert len(looked) == 2


def test_only_whom_somebody_watches_is_told_why_it_waits() -> None:
    grid = Grid()
    array(grid, 4)
    grid.ledger.state.watched = {"b"}
    for name in ("a", "b"):
        grid.submit(name)
    told = {name: grid.ledger.state.jobs[name].reason for name in ("a", "b")}
    assert told == {"a": None, "b": Reason("Hold", "1 cpu needed, 0 cpu free in its hold h")}


def test_a_job_that_must_not_wait_ends_where_its_hold_is_full() -> None:
    grid = Grid()
    grid.submit("a", Resources(2000))
    out = grid.submit("b", immediate=True)
    assert ended(out, grid, "b") == (Cause.NOT_PLACED, "1 cpu needed, 0 cpu free in its hold h")


def test_neither_shares_nor_quotas_count_what_is_inside_again() -> None:
    grid = Grid()
    before = grid.ledger.state.shares.accounts["ann"].held
    grid.submit("j")
    assert grid.ledger.state.shares.accounts["ann"].held == before
    assert [one.id for one in grid.ledger.state.holders()] == ["h.1"]


def limited(**rights: Any) -> Grid:
    return Grid(policy=Policy(rights=Rules(users={"ann": Rights(**rights)})))


def test_who_runs_inside_is_not_counted_among_those_that_wait() -> None:
    grid = limited(jobs_waiting=1)
    grid.submit("a")
    assert refusals(grid.submit("b", Resources(2000))) == []
    assert refusals(grid.submit("c")) == [
        ("not-allowed", "ann may have 1 jobs waiting, and has 1; 1 more are too many")
    ]
    grid.step(CancelRequested(2, ("h",)))  # who waits ends, who runs holds its own part
    assert [pool.waiting for pool in grid.ledger.state.quotas.all_pools()] == [0]


def test_a_job_inside_counts_with_its_hold_and_needs_no_time_limit_for_a_quota_of_hours() -> None:
    grid = limited(core_hours=3000)
    assert refusals(grid.submit("out", within=""))[0][0] == "not-allowed"
    assert launches(grid.submit("j")) == ["j.1"]


def test_a_job_that_ran_out_of_memory_is_given_no_more_than_its_hold_has() -> None:
    grid = Grid(held=Resources(2000, 3 * GIB))
    more: dict[str, Any] = {"retry_on": (RetryOn.OOM,), "retries": 3, "retry_memory": 2000}
    grid.submit("j", Resources(1000, 2 * GIB), **more)
    grid.started("j")
    assert launches(grid.exited("j", Cause.OUT_OF_MEMORY)) == ["j.2"]
    assert grid.ledger.state.jobs["j"].request.resources.memory == 3 * GIB
    grid.step(MessageReceived("n1", Started(allocation="j.2")))
    out = grid.step(MessageReceived("n1", Exited(allocation="j.2", outcome=Outcome(Cause.OUT_OF_MEMORY))))
    assert ended(out, grid, "j")[0] is Cause.OUT_OF_MEMORY


def test_a_refused_launch_waits_for_its_device_again() -> None:
    grid = Grid()
    grid.submit("j", Resources(2000))
    out = grid.step(MessageReceived("n1", Stale(allocation="j.1", reason="busy", device=str(grid.cores("j")[0]))))
    assert launches(out) == []
    assert grid.state("j") is State.WAITING
    assert launches(grid.wait(60.0)) == ["j.2"]


def test_a_suspended_and_a_recalled_job_inside_are_as_any_other() -> None:
    grid = Grid()
    grid.submit("j")
    grid.started("j")
    grid.step(MessageReceived("n1", Suspended(allocation="j.1", why="the owner types")))
    assert grid.ledger.state.jobs["j"].active.frozen
    out = grid.step(MessageReceived("n1", Recalled(allocation="j.1", why="the owner types", grace=5.0)))
    assert [one.message.allocation for one in out if isinstance(one, Send) and isinstance(one.message, Stop)] == ["j.1"]
    assert launches(grid.exited("j", Cause.RECALLED)) == ["j.2"]
    assert grid.state("h") is State.RUNNING


# --- who may ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        ({"user": "bob"}, "not-allowed", "h is a hold of ann"),
        ({"within": "j-none"}, "not-allowed", "j-none has ended"),
        ({"within": "plain"}, "bad-value", "plain is no hold"),
        ({"wants": Resources(3000)}, "never-fits", "asks 3 cpu of the hold h, which has 2 cpu"),
        ({"constraints": Constraints(only=("n2",))}, "never-fits", UNMET),
        ({"constraints": Constraints(exclude=("n1",))}, "never-fits", UNMET),
    ],
)
def test_a_job_that_may_not_run_inside_is_refused(more: dict[str, Any], code: str, text: str) -> None:
    grid = Grid()
    join(grid.ledger, facts("n2", 1), grid.now)
    grid.submit("plain", within="")
    assert refusals(grid.submit("j", **more)) == [(code, text)]
    assert "j" not in grid.ledger.state.jobs


def test_where_ray_places_jobs_nothing_can_be_held() -> None:
    grid = Grid()
    grid.ledger.state.policy = replace(grid.ledger.state.policy, by_ray=True)
    assert refusals(grid.hold("k", ONE)) == [("not-allowed", "nothing can be held in this grid")]


def test_a_node_says_nothing_of_a_hold() -> None:
    grid = Grid()
    for message in (
        Started(allocation="h.1"),
        Stale(allocation="h.1", reason="no"),
        Exited(allocation="h.1", outcome=Outcome(Cause.EXITED)),
        Recalled(allocation="h.1", why="mine", grace=0.0),
        Suspended(allocation="h.1", why="mine"),
    ):
        grid.step(MessageReceived("n1", message))
    assert grid.state("h") is State.RUNNING
    assert not grid.ledger.state.jobs["h"].active.frozen


# --- ends -------------------------------------------------------------------------------------------------------------


def test_it_expires_and_its_cores_are_free() -> None:
    grid = Grid()
    out = grid.wait(HOUR)
    assert ended(out, grid, "h") == (Cause.TIME_LIMIT, "it was held for 1h00m")
    grid.offer()
    assert grid.free().cpu == 4000


def test_who_waits_in_it_ends_with_it() -> None:
    grid = Grid()
    grid.submit("a", Resources(2000))
    grid.submit("b")
    out = grid.step(CancelRequested(2, ("h",), "released"))
    assert ended(out, grid, "b") == (Cause.NOT_PLACED, "its hold h has ended before it could start there")


def test_who_waits_for_a_hold_that_never_began_ends_too() -> None:
    grid = Grid()
    grid.submit("busy", Resources(2000), within="")
    grid.hold("k", ONE)
    grid.submit("j", within="k")
    assert grid.reason("j").startswith("Hold: its hold k has not begun")
    assert ended(grid.step(CancelRequested(2, ("k",))), grid, "j")[0] is Cause.NOT_PLACED


def test_what_runs_inside_goes_on_with_a_grant_of_its_own() -> None:
    grid = Grid()
    grid.submit("j")
    grid.started("j")
    mine = grid.cores("j")
    grid.step(CancelRequested(2, ("h",), "released"))
    assert (grid.state("j"), grid.cores("j"), grid.free().cpu) == (State.RUNNING, mine, 3000)
    assert [one.id for one in grid.ledger.state.holders()] == ["j.1"]
    assert grid.ledger.state.jobs["j"].request.within == ""
    grid.exited("j")
    assert grid.free().cpu == 4000


@pytest.mark.parametrize("counted", [False, True])
def test_its_end_returns_what_an_offer_did_or_did_not_count(counted: bool) -> None:
    grid = Grid()
    grid.submit("j")
    grid.started("j")
    mine = grid.cores("j")
    if counted:
        grid.offer("j.1", cores=tuple(core for core in range(4) if core not in mine))
    grid.step(CancelRequested(2, ("h",)))
    assert grid.free() == Resources(3000, 8 * GIB)


def test_an_urgent_job_takes_a_hold_of_low_priority_where_nothing_runs_inside() -> None:
    grid = Grid()
    grid.step(CancelRequested(2, ("h",)))
    grid.hold("low", Resources(4000), priority=Priority.LOW)
    grid.wait(3000.0)
    grid.offer()
    grid.submit("u", Resources(4000), within="", user="bob", priority=Priority.URGENT)
    grid.step(Tick())
    assert "low" not in grid.ledger.state.jobs
    assert grid.state("u") is State.STARTING


def test_a_hold_with_a_job_inside_is_not_preempted() -> None:
    grid = Grid()
    grid.step(CancelRequested(2, ("h",)))
    grid.hold("low", Resources(4000), priority=Priority.LOW)
    grid.submit("j", within="low", priority=Priority.LOW)
    grid.started("j")
    grid.wait(3000.0)
    grid.offer("j.1", cores=())
    grid.submit("u", Resources(4000), within="", user="bob", priority=Priority.URGENT)
    assert (grid.state("low"), grid.state("u")) == (State.RUNNING, State.WAITING)


def test_a_drain_with_a_deadline_ends_it() -> None:
    grid = Grid()
    grid.step(DrainRequested(2, ("n1",), "ann", "repair", 10.0))
    grid.submit("j")
    assert grid.reason("j") == "Hold: its hold h is on n1, which is drained by ann: repair"
    out = grid.wait(10.0)
    assert ended(out, grid, "h")[0] is Cause.DRAINED
    assert "j" not in grid.ledger.state.jobs


def test_a_silent_node_keeps_its_hold_until_it_is_lost() -> None:
    grid = Grid()
    grid.submit("j")
    grid.started("j")
    grid.step(NodeDown("n1", grid.ledger.state.nodes["n1"].session))
    grid.step(Tick(), 30.0)
    assert (grid.state("h"), grid.state("j")) == (State.RUNNING, State.LOST)
    out = grid.step(Tick(), 60.0)
    assert ended(out, grid, "h") == (Cause.NODE_LOST, "n1 was not heard for 70 s")
    assert "j.1" in grid.ledger.state.nodes["n1"].orphans, "it may run on there"
    assert "h.1" not in grid.ledger.state.nodes["n1"].orphans


def test_an_agent_that_comes_back_knows_nothing_of_it_and_it_stays() -> None:
    grid = Grid()
    grid.submit("j")
    grid.started("j")
    grid.step(NodeUp(grid.facts, "again"))
    grid.step(MessageReceived("n1", Inventory(known=(Known("j.1", State.RUNNING),))))
    grid.offer("j.1", cores=tuple(core for core in range(4) if core not in grid.cores("j")))
    assert (grid.state("h"), grid.state("j"), grid.free().cpu) == (State.RUNNING, State.RUNNING, 2000)


def _reboot(grid: Grid, node: NodeFacts) -> list[Command]:
    """The node is booted again, as this."""
    grid.facts = node
    out = grid.step(NodeUp(node, "again"))
    out += grid.step(MessageReceived("n1", Inventory(known=())))
    grid.offer()
    return out


def test_a_reboot_of_the_same_node_changes_nothing_of_it() -> None:
    grid = Grid()
    _reboot(grid, facts("n1", boot="b2"))
    assert (grid.state("h"), len(grid.cores("h")), grid.free().cpu) == (State.RUNNING, 2, 2000)


def test_cores_and_gpus_that_are_gone_after_a_reboot_are_held_no_more() -> None:
    grid = Grid(8, held=Resources(4500, 4 * GIB, 2000), gpus=3)
    held = grid.ledger.state.jobs["h"].grant
    assert held is not None
    grid.submit("all", Resources(4000))
    out = _reboot(grid, facts("n1", 4, gpus=1, boot="b2"))
    left = grid.ledger.state.jobs["h"].grant
    assert left is not None and {*left.cores} == {*held.cores} & {*range(4)} and len(left.gpus) <= 1
    assert "was rebooted, and has no core" in grid.ledger.state.jobs["h"].story[-1].text
    assert ended(out, grid, "all")[0] is Cause.REBOOTED, "what ran there"
    assert grid.ledger.state.shares.accounts["ann"].held == left.resources
    grid.submit("large", Resources(4500, GIB))
    assert "large" not in grid.ledger.state.jobs, "more than is left is refused"
    grid.wait(HOUR)
    grid.offer()
    assert "h" not in grid.ledger.state.jobs and grid.free().cpu == 4000


def test_who_waits_for_more_than_is_left_of_a_hold_ends() -> None:
    grid = Grid(held=Resources(4000))
    grid.submit("first", Resources(3000))
    grid.submit("all", Resources(4000))
    grid.submit("some", Resources(2000))
    out = _reboot(grid, facts("n1", 2, boot="b2"))
    assert ended(out, grid, "all") == (Cause.NOT_PLACED, "its hold h has only 2 cpu since n1 was rebooted")
    assert grid.state("some") is State.STARTING and len(grid.cores("h")) == 2


def test_a_hold_of_which_nothing_is_left_ends() -> None:
    grid = Grid(held=Resources(gpu=1000), gpus=1)
    grid.submit("w", Resources(gpu=500))
    grid.submit("v", Resources(gpu=1000))
    out = _reboot(grid, facts("n1", boot="b2"))
    assert ended(out, grid, "h") == (Cause.REBOOTED, "n1 was rebooted, and has no GPU n1-gpu0 any more")
    assert "v" not in grid.ledger.state.jobs


def test_a_reboot_with_fewer_cores_is_noticed_after_a_restart_too_and_only_once() -> None:
    grid = Grid()
    _restarted(grid)
    _reboot(grid, facts("n1", 1, boot="b2"))
    assert len(grid.cores("h")) == 1
    _restarted(grid)
    _reboot(grid, facts("n1", boot="b2"))
    assert (len(grid.cores("h")), grid.free().cpu) == (1, 3000)


# --- restarts and replay ----------------------------------------------------------------------------------------------


def _restarted(grid: Grid) -> None:
    """The ledger is made again of what is on disk."""
    old, grid.ledger = grid.ledger.state, Ledger(2)
    nodes = [node.facts for node in old.nodes.values()]
    grid.ledger.restore(old.jobs.values(), old.allocations.values(), nodes, grid.now)


def test_after_a_restart_it_is_held_until_the_same_moment() -> None:
    grid = Grid()
    grid.submit("j")
    grid.started("j")
    grid.submit("w", Resources(2000))
    _restarted(grid)
    grid.step(NodeUp(grid.facts, "again"))
    grid.step(MessageReceived("n1", Inventory(known=(Known("j.1", State.RUNNING),))))
    grid.offer("j.1", cores=tuple(core for core in range(4) if core not in grid.cores("j")))
    assert grid.free().cpu == 2000
    assert isinstance(grid.ledger.state.jobs["w"].phase, AwaitsHold)
    assert launches(grid.exited("j")) == []  # the offer that counts it is older
    grid.offer()
    assert grid.state("w") is State.STARTING
    grid.wait(1 + HOUR - grid.now)
    assert "h" in grid.ledger.state.jobs
    grid.wait(1.0)
    assert "h" not in grid.ledger.state.jobs


def test_one_that_expired_while_nobody_looked_ends_at_once() -> None:
    grid = Grid()
    grid.now += 2 * HOUR
    _restarted(grid)
    grid.step(Tick())
    assert "h" not in grid.ledger.state.jobs


def test_a_resumed_checkpoint_goes_on_with_who_waits() -> None:
    grid = Grid()
    for name in "abc":
        grid.submit(name)
    grid.ledger = resumed(grid.ledger)
    grid.started("a")
    assert launches(grid.exited("a")) == ["c.1"]


def test_why_tells_what_is_held_until_when_and_where_a_job_would_start() -> None:
    grid = Grid()
    grid.submit("j")
    assert grid.reason("h") == "Placed: it holds 2 cpu of n1 until 01:00:02 UTC; 1 cpu of that is free, 1 job inside"
    assert grid.reason("j") == "Placed: it is starting on n1, in the hold h"
    said = explain.why(grid.ledger.state, None, Request(ONE, within="h"), grid.now, "ann")
    assert (said.reason.code, said.chosen) == ("Fits", "n1")
    said = explain.why(grid.ledger.state, None, Request(Resources(2000), within="h"), grid.now, "ann")
    assert (said.reason.code, said.chosen) == ("Hold", "")


# --- whatever happens -------------------------------------------------------------------------------------------------


def _play(rng: random.Random, steps: int) -> None:
    """A node, its honest agent, and users who hold, submit, cancel and leave, in any order. Each step is checked, and a
    resumed copy decides the same."""
    grid = Grid(rng.choice([1, 2, 4]), Resources(1000))
    there: dict[str, Job] = {}
    count = 0
    for _ in range(steps):
        state, count = grid.ledger.state, count + 1
        there = {one.job: state.jobs[one.job] for one in state.allocations.values() if not one.hold}
        names = [*there]
        match rng.randrange(9):
            case 0:
                held = Resources(rng.choice([500, 1000, 1500]), rng.choice([0, GIB]))
                grid.hold(f"h{count}", held, rng.choice([5.0, 50.0]), rng.choice(["ann", "bob"]))
            case 1 | 2:
                live = [one for one in state.jobs.values() if one.spec.hold]
                of = rng.choice(live) if live else None
                wants = Resources(rng.choice([300, 500, 1000]), rng.choice([0, GIB // 2]))
                user, within = (of.user, of.id) if of is not None else ("ann", "")
                grid.submit(f"j{count}", wants, within, user)
            case 3:
                grid.submit(f"j{count}", Resources(rng.choice([500, 1000])), "", "bob")
            case 4 if names:
                name = state.jobs[rng.choice(names)].allocation
                grid.step(MessageReceived("n1", Started(allocation=name)))
            case 5 if names:
                name = state.jobs[rng.choice(names)].allocation
                outcome = Outcome(rng.choice([Cause.EXITED, Cause.RECALLED]))
                back = rng.random() < 0.5
                grid.step(MessageReceived("n1", Exited(allocation=name, outcome=outcome, returned=back)))
            case 6 if state.jobs:
                grid.step(CancelRequested(3, (rng.choice([*state.jobs]),)))
            case 7:
                counting = tuple(one.id for one in state.allocations.values() if not one.hold and one.started)
                used = {core for name in counting for core in state.allocations[name].grant.cores}
                parts = {state.allocations[name].grant.shared_core for name in counting}
                grid.offer(*counting, cores=tuple(c for c in grid.facts.cores if c not in used | parts))
            case _:
                grid.step(Tick(), rng.choice([0.1, 3.0, 20.0]))
        if rng.random() < 0.2:
            grid.ledger = resumed(grid.ledger)
            grid.ledger.check()


@pytest.mark.parametrize("seed", range(tries(12, 5)))
def test_no_sequence_of_events_grants_anything_twice(seed: int) -> None:
    _play(random.Random(seed), 60)


def test_constraints_of_a_job_hold_inside_too() -> None:
    grid = Grid()
    b = job("b", Request(ONE, within="h"), grid.now)
    b.spec = replace(b.spec, name="b")
    grid.step(JobsSubmitted(1, (b,)))
    grid.submit("c", constraints=Constraints(apart=("ann/b",)))
    assert grid.reason("c") == "Hold: n1, where its hold h is, does not meet its constraints now"


def test_where_its_machine_is_gone_the_hold_and_what_runs_inside_are_over() -> None:
    grid = Grid()
    grid.submit("a")
    grid.started("a")
    state = grid.ledger.state
    assert state.nodes["n1"].inside
    agents.machine_gone(state, state.nodes["n1"], "its machine is gone")
    grid.step(Tick())
    assert not state.allocations and not state.nodes["n1"].inside and not state.nodes["n1"].orphans
    assert not [one for one in state.jobs.values() if one.state is State.RUNNING]
    check(state)
