"""What a provider's list changes, one case at a time: nothing where it fails, and the truth where it does not."""

from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Audit, Command, JobsSubmitted, NodeDown, NodeUp
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.scaling.events import (
    CreateMachine,
    EndMachine,
    ListMachines,
    MachineAnswered,
    MachineMismatched,
    MachineOver,
    MachinesListed,
    ScalingConfigured,
)
from distributed_grid.coordinator.core.scaling.machines import refusal
from distributed_grid.coordinator.core.scaling.state import Answer, CallKind, Listed
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.machines import Machine, MachineState
from distributed_grid.protocol.scaling.pools import Limits, Orphans, Pool, Scaling, ScalingMode, Shape
from tests.coordinator.core.scene import facts, job, join

S = MachineState
SHAPE = Shape(resources=Resources(4000, 8 * GIB))


class Stage:
    """A ledger with one pool and a list that was answered."""

    def __init__(self, *machines: Machine, **more: Any) -> None:
        pool = Pool(name="a", provider="p", shapes=(SHAPE,), idle=100, boot=10, join_within=100)
        self.scaling = Scaling(**({"mode": ScalingMode.ACT, "pools": (pool,)} | more))
        self.now = 1000.0
        self.ledger = Ledger(epoch=7, policy=Policy(scaling=self.scaling))
        self.ledger.restore([], [], [], self.now, created=machines)
        self.settle()

    @property
    def machines(self) -> dict[str, Machine]:
        return self.ledger.state.scaling.machines

    def state(self, name: str) -> MachineState:
        """Asked by a call: mypy takes an attribute for unchanged after it was compared."""
        return self.machines[name].state

    def settle(self, seconds: float = 0.0) -> list[Command]:
        out, until = self.ledger.settle(self.now), self.now + seconds
        for _ in range(10_000):
            due = self.ledger.next_deadline()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            out += self.ledger.settle(self.now)
            self.ledger.check()
        else:
            raise AssertionError("its deadlines never come to an end")
        self.now = until
        return out

    def tell(self, event: Any, seconds: float = 0.0) -> list[Command]:
        out = self.ledger.handle(event, self.now)
        return out + self.settle(seconds)

    def told(self, *found: Listed, seconds: float = 0.0, **more: Any) -> list[Command]:
        """The provider answers the list that it is asked for next."""
        state = self.ledger.state
        state.deadlines.arm("look", "p", self.now)
        self.settle(0.01)
        number = state.scaling.provider("p").listing
        given: dict[str, Any] = {"provider": "p", "number": number, "listed": found} | more
        return self.tell(MachinesListed(**given), seconds)

    def ask(self, name: str = "j-1") -> list[Command]:
        return self.tell(JobsSubmitted(1, (job(name, Request(Resources(1000, GIB)), self.now),)), 2.0)


def calls(out: list[Command], kind: type) -> list[Any]:
    return [one for one in out if isinstance(one, kind)]


def machine(state: MachineState = S.BOOTING, **more: Any) -> Machine:
    given: dict[str, Any] = {"name": "a-1-1", "pool": "a", "provider": "p", "state": state, "born": 900.0}
    given |= {"since": 900.0, "ends_by": 9000.0, "join_within": 200.0, "handle": "i-1", "calls": 1, "answered": 1}
    return Machine(**(given | more))


def test_nothing_is_created_before_the_provider_has_told_its_machines() -> None:
    stage = Stage()
    assert not calls(stage.ask(), CreateMachine)
    made = calls(stage.told(seconds=2.0), CreateMachine)
    assert [one.machine.name for one in made] == ["a-7-1"] and stage.state("a-7-1") is S.CREATING


def test_a_call_that_was_not_answered_is_made_again_with_the_same_name() -> None:
    stage = Stage()
    stage.told()
    stage.ask()
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.LOST))
    again = calls(stage.settle(30), CreateMachine)
    assert [(one.machine.name, one.machine.calls) for one in again] == [("a-7-1", 2)]


def test_a_lost_answer_that_comes_true_is_found_in_the_list() -> None:
    stage = Stage(machine(S.CREATING, answered=0, handle="", retry=5000.0))
    stage.told(Listed("i-9", "a-1-1", "a"))
    assert stage.state("a-1-1") is S.BOOTING and stage.machines["a-1-1"].handle == "i-9"


def test_a_refusal_after_an_unanswered_call_is_not_believed_until_a_list_says_so() -> None:
    stage = Stage(machine(S.CREATING, calls=2, answered=0, handle="", asked=990.0, retry=5000.0))
    stage.told()
    stage.tell(MachineAnswered("a-1-1", CallKind.CREATE, 2, Answer.CAPACITY))
    assert stage.state("a-1-1") is S.ENDING
    stage.settle(5)
    stage.told()
    assert stage.state("a-1-1") is S.ENDING, "the first call may still be carried out"
    stage.settle(400)
    stage.told()
    assert stage.state("a-1-1") is S.GONE


@pytest.mark.parametrize("answer", [Answer.CAPACITY, Answer.QUOTA, Answer.BAD_TYPE, Answer.REFUSED, Answer.THROTTLED])
def test_a_refused_machine_has_failed_and_the_type_is_left_alone(answer: Answer) -> None:
    stage = Stage()
    stage.told()
    stage.ask()
    out = stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, answer, text="no"), 30)
    assert stage.state("a-7-1") is S.FAILED and not calls(out, CreateMachine)
    assert calls(stage.settle(60), CreateMachine), "it is tried again after a minute"


def test_throttling_leaves_one_type_of_one_zone_alone_and_takes_the_next_at_once() -> None:
    shapes = tuple(Shape(type=one, resources=SHAPE.resources, price=price) for one, price in (("x", 1.0), ("y", 2.0)))
    pool = Pool(name="a", provider="p", shapes=shapes, zones=("n", "s"), idle=100, boot=10, join_within=100)
    stage = Stage(pools=(pool,))
    stage.told()
    made = calls(stage.ask(), CreateMachine)
    tried = []
    for _ in range(4):
        one = made[0].machine
        tried.append((one.zone, one.type))
        told = MachineAnswered(one.name, CallKind.CREATE, 1, Answer.THROTTLED, text="slow down")
        made = calls(stage.tell(told, 2.0), CreateMachine)
        assert stage.state(one.name) is S.FAILED
    assert tried == [("n", "x"), ("s", "x"), ("n", "y"), ("s", "y")] and not made, "all of them are left alone now"
    assert [(one.machine.zone, one.machine.type) for one in calls(stage.settle(60), CreateMachine)] == [("n", "x")]
    assert {key: one.seconds for key, one in stage.ledger.state.scaling.backoffs.items()} == {
        "a/n/x": 60, "a/s/x": 60, "a/n/y": 60, "a/s/y": 60,
    }  # fmt: skip


def test_a_pool_is_not_paused_because_its_provider_throttles() -> None:
    stage = Stage(*(machine(S.CREATING, name=f"a-1-{number}", answered=0, handle="") for number in range(12)))
    stage.told()
    for number in range(12):
        stage.tell(MachineAnswered(f"a-1-{number}", CallKind.CREATE, 1, Answer.THROTTLED, text="slow down"))
    state = stage.ledger.state.scaling
    assert not state.paused and state.backoffs["a//"].seconds == 60


def test_wrong_credentials_pause_the_provider_until_the_configuration_changes() -> None:
    stage = Stage()
    stage.told()
    stage.ask()
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.CREDENTIALS, text="expired"))
    out = stage.settle(400)
    assert not calls(out, CreateMachine) and not calls(out, ListMachines)
    assert calls(stage.tell(ScalingConfigured(stage.scaling), 2), CreateMachine)


def test_a_machine_that_is_missing_twice_is_gone_with_what_ran_there() -> None:
    stage = Stage()
    stage.told()
    stage.ask()
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-1"))
    join(stage.ledger, facts("a-7-1", trusts="everyone"), stage.now)
    stage.settle(1)
    assert stage.ledger.state.jobs["j-1"].node == "a-7-1"
    stage.tell(NodeDown("a-7-1", "session-a-7-1"))
    stage.told()
    assert stage.state("a-7-1") is S.JOINED
    out = stage.told()
    assert stage.state("a-7-1") is S.GONE and "a-7-1" not in stage.ledger.state.nodes
    assert MachineOver("a-7-1") in out
    assert "j-1" not in stage.ledger.state.jobs, "it may have begun, and nobody said that it may run twice"


def test_a_machine_whose_agent_is_connected_is_there_whatever_lists_say() -> None:
    stage = Stage()
    stage.told()
    stage.ask()
    stage.tell(MachineAnswered("a-7-1", CallKind.CREATE, 1, Answer.DONE, "i-1"))
    join(stage.ledger, facts("a-7-1", trusts="everyone"), stage.now)
    for _ in range(4):
        out = stage.told(Listed("i-1", "a-9-9", "a"))
        assert not calls(out, EndMachine), "what is listed by another name is that machine, too"
    assert stage.state("a-7-1") is S.JOINED and stage.ledger.state.jobs["j-1"].node == "a-7-1"
    said = stage.ledger.state.scaling.provider("p").trouble
    assert said.startswith("it does not list a-7-1, whose agent is connected; of what it lists 1 can be no machine")
    stage.told(Listed("i-1", "a-7-1", "a"))
    assert stage.ledger.state.scaling.provider("p").trouble == ""


@pytest.mark.parametrize("name", ["web-1", "a-1-1-x", "b-3-9", "a-3-9\n", "A-3-9", "", "a-3-9" + "x" * 1000])
def test_what_cannot_be_a_machine_of_this_grid_is_left_alone_and_told(name: str) -> None:
    """As by a program that lists all that its hypervisor runs."""
    stage = Stage()
    if name == "web-1":
        join(stage.ledger, facts(name), stage.now)
    for _ in range(3):
        out = stage.told(Listed("vm-7", name, "a", born=1.0), seconds=400)
        assert not calls(out, EndMachine) and not calls(out, MachineOver)
    assert name not in stage.machines, "it is not taken up, though an agent of its name is connected"
    provider = stage.ledger.state.scaling.provider("p")
    assert provider.unknown == [] and "1 can be no machine of this grid, such as" in provider.trouble


def test_a_list_that_fails_changes_nothing_and_is_told() -> None:
    stage = Stage(machine(S.JOINED, joined=950.0))
    for _ in range(3):
        stage.told(listed=None, trouble="timed out")
    assert stage.state("a-1-1") is S.JOINED
    assert stage.ledger.state.scaling.provider("p").trouble == "timed out"


def test_an_old_answer_to_a_list_is_ignored() -> None:
    stage = Stage(machine(S.JOINED, joined=950.0))
    stage.told(Listed("i-1", "a-1-1", "a"))
    for _ in range(3):
        stage.tell(MachinesListed("p", 1, ()))
    assert stage.machines["a-1-1"].missed == 0 and stage.state("a-1-1") is S.JOINED


@pytest.mark.parametrize("answers", [True, False])
def test_a_pool_is_paused_for_machines_that_were_not_created_only_if_its_provider_answers_lists(answers: bool) -> None:
    """One that does not answer at all, as without a network, is asked again by itself when it does."""
    stage = Stage()
    stage.told()
    stage.ask()
    for _ in range(120):
        for one in [one for one in stage.machines.values() if one.state is S.CREATING]:
            stage.tell(MachineAnswered(one.name, CallKind.CREATE, one.calls, Answer.LOST, text="no network"))
        stage.settle(5)
        if answers:
            stage.told()
        else:
            stage.told(listed=None, trouble="no network")
    assert bool(stage.ledger.state.scaling.paused) == answers
    stage.told()
    out = stage.told(seconds=400.0)
    assert bool(calls(out, CreateMachine)) != answers


def test_of_two_machines_of_one_name_one_is_ended() -> None:
    stage = Stage(machine())
    out = stage.told(Listed("i-1", "a-1-1", "a"), Listed("i-2", "a-1-1", "a"))
    assert [(one.handle, one.number) for one in calls(out, EndMachine)] == [("i-2", 0)]


def test_of_two_machines_of_one_name_the_one_that_has_joined_is_kept_whatever_a_late_answer_says() -> None:
    """As where a call that was not answered has made one, and the next one another."""
    stage = Stage(machine(S.CREATING, handle="", calls=2, answered=0))
    stage.told(Listed("i-1", "a-1-1", "a"))
    join(stage.ledger, facts("a-1-1", machine="i-1"), stage.now)
    stage.tell(MachineAnswered("a-1-1", CallKind.CREATE, 2, Answer.DONE, "i-2"))
    assert (stage.state("a-1-1"), stage.machines["a-1-1"].handle) == (S.JOINED, "i-1")
    ended = calls(stage.told(Listed("i-1", "a-1-1", "a"), Listed("i-2", "a-1-1", "a")), EndMachine)
    assert [(one.name, one.handle) for one in ended] == [("a-1-1", "i-2")]


def test_an_orphan_is_ended_when_it_was_seen_twice_and_is_old_enough() -> None:
    stage, stray = Stage(), Listed("i-7", "a-3-9", "a", born=500.0)
    for _ in range(3):  # its agent may be on its way back, as after the restore of a backup
        assert not calls(stage.told(stray, seconds=90), EndMachine)
    stage.settle(60)
    out = stage.told(stray) + stage.told(stray)
    assert [one.handle for one in calls(out, EndMachine)] == ["i-7", "i-7"], "it is asked for as long as it is there"
    assert len(calls(out, Audit)) == 1, "and told once"
    young = Listed("i-8", "a-3-8", "a", born=stage.now)
    for _ in range(3):
        assert not calls(stage.told(young), EndMachine)


@pytest.mark.parametrize("born", [0.0, 1_700_000_000_000.0])
def test_an_orphan_is_ended_however_young_its_provider_says_it_is(born: float) -> None:
    """As one whose program tells times in milliseconds, or whose clock is ahead."""
    stage = Stage()
    stage.told(Listed("i-9", "a-1-9", "a", born=born), seconds=stage.scaling.orphan_after)
    assert [one.name for one in calls(stage.told(Listed("i-9", "a-1-9", "a", born=born)), EndMachine)] == ["a-1-9"]


@pytest.mark.parametrize("ends_by", [0.0, 1_700_000_000_000.0, -5.0])
def test_one_that_is_taken_up_with_a_time_that_cannot_be_lives_for_its_pools_life(ends_by: float) -> None:
    pool = Pool(name="a", provider="p", shapes=(replace(SHAPE, price=1.0),), life=5000.0)
    stage = Stage(pools=(pool,), limits=Limits(max_cost_per_day=50.0))
    join(stage.ledger, facts("a-1-9"), stage.now)
    stage.told(Listed("i-9", "a-1-9", "a", born=1_700_000_000_000.0, ends_by=ends_by))
    one = stage.machines["a-1-9"]
    assert (one.born, one.ends_by) == pytest.approx((stage.now, stage.now + 5000.0), abs=1.0)


def test_an_orphan_is_only_told_where_the_configuration_says_so() -> None:
    stage, stray = Stage(orphans=Orphans.REPORT), Listed("i-7", "a-3-9", "a", born=500.0)
    for _ in range(4):
        assert not calls(stage.told(stray), EndMachine)
    assert [one.handle for one in stage.ledger.state.scaling.provider("p").unknown] == ["i-7"]


def test_an_orphan_whose_agent_is_connected_is_taken_up() -> None:
    stage = Stage()
    join(stage.ledger, facts("a-3-9"), stage.now)
    for _ in range(3):
        assert not calls(stage.told(Listed("i-7", "a-3-9", "a", born=500.0)), EndMachine)
    assert stage.state("a-3-9") is S.JOINED and stage.machines["a-3-9"].handle == "i-7"


def test_a_machine_that_never_joins_is_ended_and_three_pause_the_pool() -> None:
    stage = Stage()
    for number in range(1, 4):
        stage.told()
        stage.ask(f"j-{number}")
        while not (found := [name for name, one in stage.machines.items() if one.state is S.CREATING]):
            stage.settle(5)
            assert stage.now < 10_000
        name = found[0]
        stage.tell(MachineAnswered(name, CallKind.CREATE, 1, Answer.DONE, f"i-{number}"))
        stage.settle(150)
        assert stage.state(name) is S.ENDING
        stage.tell(MachineAnswered(name, CallKind.END, stage.machines[name].ends, Answer.GONE))
        assert stage.state(name) is S.GONE
    assert "never joined" in stage.ledger.state.scaling.paused["a"].why


@pytest.mark.parametrize(
    ("how", "more", "paused"),
    [("told", {}, True), ("missing", {}, True), ("missing", {"spot": True}, False), ("told", {"failed": False}, False)],
)
def test_three_that_are_over_before_they_joined_pause_the_pool_unless_they_were_taken_back(
    how: str, more: dict[str, bool], paused: bool
) -> None:
    """As machines whose image cannot be set up, and which shut themselves down at once."""
    ones = [machine(name=f"a-1-{number}", handle=f"i-{number}", spot=more.get("spot", False)) for number in range(3)]
    stage = Stage(*ones)
    for _ in range(2):
        if how == "told":
            failed = more.get("failed", True)
            stage.told(*(Listed(one.handle, one.name, "a", ended=True, failed=failed, why="off") for one in ones))
        else:
            stage.told()
    assert [stage.state(one.name) for one in ones] == [S.GONE] * 3
    pauses = stage.ledger.state.scaling.paused
    assert bool(pauses) is paused
    if paused:
        assert "3 machines in a row have never joined" in pauses["a"].why


def test_an_agent_of_a_machine_that_is_to_end_is_refused() -> None:
    stage = Stage(machine(S.ENDING))
    assert "is ending" in refusal(stage.ledger.state, facts("a-1-1"))
    stage.ledger.handle(NodeUp(facts("a-1-1"), "s"), stage.now)
    assert stage.state("a-1-1") is S.ENDING
    assert refusal(stage.ledger.state, facts("another")) == ""


def test_one_that_is_gone_and_comes_again_is_refused_and_ended_the_second_time_it_is_seen() -> None:
    stage = Stage(machine(S.GONE, over=950.0))
    assert "is gone" in refusal(stage.ledger.state, facts("a-1-1"))
    out = stage.told(Listed("i-1", "a-1-1", "a", born=900.0))
    assert not calls(out, EndMachine)
    out = stage.told(Listed("i-1", "a-1-1", "a", born=900.0))
    assert [(one.name, one.handle) for one in calls(out, EndMachine)] == [("a-1-1", "i-1")]
    assert stage.state("a-1-1") is S.GONE and not stage.ledger.state.nodes


def test_an_idle_machine_is_drained_and_ended() -> None:
    stage = Stage(machine(S.BOOTING))
    stage.told(Listed("i-1", "a-1-1", "a"))
    join(stage.ledger, facts("a-1-1"), stage.now)
    out = stage.settle(150)
    assert stage.state("a-1-1") is S.ENDING and calls(out, EndMachine)
    assert stage.ledger.state.nodes["a-1-1"].orders.drain is not None


# --- providers with a queue -------------------------------------------------------------------------------------------


def queued(**more: Any) -> Machine:
    """One in its provider's queue since 900, for 5000 s at most; it lives for 8100 s."""
    return machine(S.BOOTING, **({"wanted": 900.0, "queue_within": 5000.0, "queued": True} | more))


def test_a_machine_in_a_queue_neither_fails_nor_ages_until_it_leaves_it() -> None:
    stage = Stage(queued())
    stage.told(Listed("i-1", "a-1-1", "a", queued=True, why="Resources"))
    stage.settle(2000)
    assert stage.state("a-1-1") is S.BOOTING and "Resources" in stage.machines["a-1-1"].text
    stage.told(Listed("i-1", "a-1-1", "a"))
    begun = stage.machines["a-1-1"]
    assert (begun.queued, begun.born, begun.ends_by) == (False, stage.now, stage.now + 8100)
    stage.settle(201)
    assert stage.state("a-1-1") is S.ENDING, "from then on it has to join"


def test_a_machine_that_stays_in_a_queue_for_too_long_is_ended_and_is_no_failure() -> None:
    stage = Stage(queued())
    ended = calls(stage.settle(4901), EndMachine)
    assert [one.name for one in ended] == ["a-1-1"] and "queue_within" in stage.machines["a-1-1"].text
    assert not stage.ledger.state.scaling.never_joined


def test_one_that_its_provider_never_begins_is_ended_and_counts_as_one_that_never_joined() -> None:
    stage = Stage(queued())
    out = stage.told(Listed("i-1", "a-1-1", "a", queued=True, failed=True, why="PartitionConfig"))
    assert [one.name for one in calls(out, EndMachine)] == ["a-1-1"] and stage.state("a-1-1") is S.ENDING
    assert "PartitionConfig, so that it never begins" in stage.machines["a-1-1"].text
    assert stage.ledger.state.scaling.never_joined == {"a": 1}


def test_one_that_joins_from_a_queue_begins_its_life_then_and_ends_as_its_provider_says() -> None:
    stage = Stage(queued())
    stage.settle(1000)
    stage.tell(NodeUp(facts("a-1-1"), "s"))
    assert stage.state("a-1-1") is S.JOINED and stage.machines["a-1-1"].ends_by == stage.now + 8100
    stage.told(Listed("i-1", "a-1-1", "a", ends_by=stage.now + 500))
    assert stage.machines["a-1-1"].ends_by == pytest.approx(stage.now + 500, abs=0.1)
    stage.told(Listed("i-1", "a-1-1", "a", ends_by=stage.now + 9999))
    assert stage.machines["a-1-1"].ends_by < stage.now + 501, "its own clock has not become later"
    stage.told(Listed("i-1", "a-1-1", "a", left=200.0))
    assert stage.machines["a-1-1"].ends_by == pytest.approx(stage.now + 200, abs=0.1), "whatever clock it goes by"


def test_one_that_was_killed_is_ended_at_once_unless_its_agent_is_connected() -> None:
    dead = Listed("i-1", "a-1-1", "a", failed=True, why="its processes were killed")
    stage = Stage(machine(S.JOINED, joined=950.0))
    out = stage.told(dead)
    assert [(one.name, one.handle) for one in calls(out, EndMachine)] == [("a-1-1", "i-1")]
    assert stage.state("a-1-1") is S.ENDING
    assert stage.machines["a-1-1"].text == "has failed: its processes were killed"
    stage = Stage(machine(S.JOINED, joined=950.0))
    stage.tell(NodeUp(facts("a-1-1"), "s"))
    assert not calls(stage.told(dead), EndMachine) and stage.state("a-1-1") is S.JOINED


def test_one_whose_end_is_told_is_gone_at_once_and_has_failed_only_by_its_own_fault() -> None:
    for failed, count in ((True, {"a": 1}), (False, {})):
        stage = Stage(machine(S.BOOTING))
        stage.told(Listed("i-1", "a-1-1", "a", ended=True, failed=failed, why="exit code 127"))
        assert stage.state("a-1-1") is S.GONE and "exit code 127" in stage.machines["a-1-1"].text
        assert stage.ledger.state.scaling.never_joined == count


def test_the_end_of_another_one_by_its_name_says_nothing() -> None:
    stage = Stage(machine(S.BOOTING))
    stage.told(Listed("i-7", "a-1-1", "a", ended=True, failed=True), Listed("i-1", "a-1-1", "a"))
    assert stage.state("a-1-1") is S.BOOTING and not calls(stage.told(Listed("i-1", "a-1-1", "a")), EndMachine)


# --- facts that do not agree ------------------------------------------------------------------------------------------


def test_an_agent_on_another_machine_than_the_recorded_one_is_refused() -> None:
    stage = Stage(machine(S.BOOTING))
    why = refusal(stage.ledger.state, facts("a-1-1", machine="i-2"))
    assert why == "machine a-1-1 is i-1 of p, and its agent runs on i-2"
    assert refusal(stage.ledger.state, facts("a-1-1", machine="i-1")) == ""


def test_one_that_has_another_boot_id_is_refused_unless_it_proves_to_be_the_same() -> None:
    stage = Stage(machine(S.BOOTING))
    stage.tell(NodeUp(facts("a-1-1", boot="b1"), "s"))
    assert "joined with boot id b1, and its agent now has b2" in refusal(stage.ledger.state, facts("a-1-1", boot="b2"))
    again = facts("a-1-1", boot="b2", machine="i-1")
    assert refusal(stage.ledger.state, again) == ""
    stage.tell(NodeUp(again, "s2"))
    assert stage.machines["a-1-1"].boot == "b2"


def test_a_refused_one_is_told_once_however_often_it_comes() -> None:
    stage = Stage(machine(S.BOOTING))
    said = [one for _ in range(3) for one in stage.tell(MachineMismatched("a-1-1", "it runs on i-2"))]
    assert [one.what for one in calls(said, Audit)] == ["it runs on i-2"]
    assert stage.state("a-1-1") is S.BOOTING and stage.machines["a-1-1"].text == "it runs on i-2"


def test_one_that_had_joined_before_its_provider_named_another_is_ended() -> None:
    stage = Stage(machine(S.CREATING, answered=0, handle="", retry=5000.0))
    node = facts("a-1-1", machine="i-2")
    join(stage.ledger, node, stage.now)
    stage.ledger.state.scaling.machines["a-1-1"] = machine(S.CREATING, answered=0, handle="", retry=5000.0)
    out = stage.tell(MachineAnswered("a-1-1", CallKind.CREATE, 1, Answer.DONE, "i-1"))
    assert stage.state("a-1-1") is S.ENDING and [one.handle for one in calls(out, EndMachine)] == ["i-1"]
