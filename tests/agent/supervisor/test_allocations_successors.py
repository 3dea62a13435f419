"""Successors at a supervisor: of a chain one is alive at a time, who waits has no trace, and who is taken back never
starts."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from distributed_grid.agent.supervisor.job import of_order
from tests.agent.supervisor.test_allocations import Scene
from tests.depth import tries


class Chained(Scene):
    """A supervisor whose jobs run and end at the test's word."""

    def next(self, key: str, chain: str, lease: float = 0.0) -> None:
        asked = {"limit": 0.0, "grace": 5.0, "lease": lease, "lease_from": self.now}
        self.allocations.launch({"op": "launch", "id": key, **asked, "kept": {"chain": chain}})

    def start(self) -> list[str]:
        """One turn of the loop: one commit for intents and ends; the ends are told, and what was launched runs."""
        started = []
        for key, order in [*self.launches.items()]:
            self.launches.drop(key)
            job = self.journaled.jobs[key] = of_order(order, self.now)
            self.allocations.begin(job)
            job.intent_durable = True
            job.runs(7)
            started.append(key)
        for job in self.journaled.syncs.over:
            self.journaled.journal.append("exit", job.id, job.outcome)
        self.durable()
        return started

    def end(self, key: str) -> None:
        job = self.journaled.jobs[key]
        job.main_ended(0)
        self.allocations.is_over(job, job.ended(self.now))

    def causes(self) -> dict[str, str]:
        return {one["id"]: one["outcome"]["cause"] for one in self.said if one["op"] == "exited"}

    def after_kill(self) -> "Chained":
        """The next supervisor, by what the journal has."""
        scene = Chained()
        for record in self.journaled.journal.records:
            scene.journaled.take(record)
        scene.journaled.ahead.clear()
        scene.journaled.journal.records = [*scene.journaled.records()]
        for job in scene.journaled.jobs.values():
            if not job.over:
                scene.allocations.restore(job)
                if not job.pid:
                    job.runs(7)
        return scene


def queued(*keys: str) -> Chained:
    scene = Chained()
    scene.launch("a")
    scene.start()
    for key in keys:
        scene.next(key, "a")
    return scene


def kinds(scene: Chained, key: str) -> list[str]:
    return [str(kind) for kind, name, *_ in scene.journaled.journal.records if name == key]


def test_a_successor_whose_intent_is_durable_needs_no_other_one() -> None:
    scene = queued("b")
    scene.start()
    scene.end("a")
    assert scene.start() == ["b"] and kinds(scene, "b") == ["ahead", "go"]


def test_a_successor_whose_intent_is_not_durable_when_its_turn_comes_is_written_like_any_other() -> None:
    scene = queued("b")
    scene.end("a")
    assert scene.start() == ["b"] and kinds(scene, "b") == ["ahead", "intent"]


def test_the_next_supervisor_knows_what_has_begun_and_nothing_of_what_waited() -> None:
    scene = queued("b", "c")
    scene.start()
    scene.end("a")
    scene.start()
    scene = scene.after_kill()
    assert [*scene.journaled.jobs] == ["a", "b"] and not scene.journaled.jobs["b"].over
    assert scene.journaled.jobs["b"].kept == {"chain": "a"}
    scene.next("c", "a")
    assert [*scene.allocations.waiting] == ["c"]


def test_a_successor_waits_without_a_trace_and_is_launched_in_the_turn_of_the_end() -> None:
    scene = queued("b")
    assert scene.start() == [] and not scene.launches and [*scene.journaled.jobs] == ["a"]
    scene.end("a")
    assert [*scene.launches] == ["b"], "its intent is in the commit that has the end"
    assert scene.start() == ["b"] and scene.causes() == {"a": "exited"}


def test_of_a_chain_one_is_alive_at_a_time_in_order_of_arrival() -> None:
    scene = queued("b", "c")
    for key, following in (("a", "b"), ("b", "c")):
        scene.end(key)
        assert scene.start() == [following]


def test_a_successor_whose_chain_is_over_is_launched_at_once() -> None:
    scene = queued()
    scene.end("a")
    scene.next("b", "a")
    assert scene.start() == ["b"]


def test_one_that_is_told_to_end_while_it_waits_is_over_and_a_late_launch_of_it_is_refused() -> None:
    for unless_started in (False, True):
        scene = queued("b", "c")
        scene.allocations.stop("b", "withdrawn", "", 5.0, unless_started)
        scene.start()
        assert scene.causes() == {"b": "withdrawn"} and scene.said[-1]["outcome"]["started"] is False
        scene.next("b", "a")
        scene.end("a")
        assert scene.start() == ["c"], "who waited behind it waits behind the one before it"


def test_one_that_is_withdrawn_when_its_turn_has_come_and_before_its_intent_never_runs() -> None:
    scene = queued("b", "c")
    scene.end("a")
    scene.allocations.stop("b", "withdrawn", "", 5.0, unless_started=True)
    assert scene.start() == ["c"] and scene.causes() == {"a": "exited", "b": "withdrawn"}


def test_one_that_runs_or_is_over_is_not_withdrawn() -> None:
    scene = queued("b")
    scene.end("a")
    scene.start()
    scene.allocations.stop("b", "withdrawn", "", 5.0, unless_started=True)
    assert scene.machine.told == [] and not scene.journaled.jobs["b"].cause
    scene.end("b")
    scene.start()
    scene.allocations.stop("b", "withdrawn", "", 5.0, unless_started=True)
    assert scene.said[-1]["outcome"]["cause"] == "exited"


def test_one_that_is_unknown_and_withdrawn_is_refused_from_then_on() -> None:
    scene = Chained()
    scene.allocations.stop("b", "withdrawn", "", 5.0, unless_started=True)
    scene.next("b", "a")
    assert scene.start() == [] and scene.causes() == {"b": "withdrawn"}


def test_one_that_waits_may_be_launched_again_and_is_started_once() -> None:
    scene = queued("b")
    scene.next("b", "a")
    scene.end("a")
    scene.next("b", "a")
    assert scene.start() == ["b"]
    scene.end("b")
    assert scene.start() == []


def test_one_whose_lease_is_over_while_it_waits_never_starts() -> None:
    scene = queued()
    scene.next("b", "a", lease=10.0)
    scene.now += 11.0
    scene.allocations.end_unleased(scene.now)
    scene.end("a")
    assert scene.start() == [] and scene.causes()["b"] == "lease-expired"


def test_a_new_agent_finds_nothing_that_has_no_intent_and_may_launch_it_again() -> None:
    scene = queued("b", "c")
    scene.end("a")
    scene.allocations.drop_unstarted()
    assert scene.start() == [] and not scene.launches
    scene.next("c", "a")
    scene.next("b", "a")
    assert scene.start() == ["c"] and [*scene.allocations.waiting] == ["b"]


def test_the_next_supervisor_knows_the_chain_of_what_runs() -> None:
    scene = queued("b")
    scene.end("a")
    scene.start()
    scene = scene.after_kill()
    scene.next("c", "a")
    assert scene.start() == []
    scene.end("b")
    assert scene.start() == ["c"]


def test_where_an_intent_cannot_be_written_the_next_one_is_tried() -> None:
    scene = queued("b", "c")
    scene.end("a")
    scene.launches.drop("b")
    scene.allocations.launch_successor("b")
    assert [*scene.launches] == ["c"]


KEYS = [f"j{number}" for number in range(5)]


class AnyOrder(RuleBasedStateMachine):
    """An agent that says anything, jobs that end, and supervisors that are killed: chains of two roots."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Chained()
        self.ran: list[str] = []
        self.chain: dict[str, str] = {}
        self.refused: set[str] = set()
        self.waits: dict[str, None] = {}

    def turn(self) -> None:
        for key in self.scene.start():
            assert key not in self.ran, "nothing is started twice"
            assert key not in self.refused, "what was told never to have run never does"
            self.ran.append(key)
            self.waits.pop(key, None)
        self.refused |= {one["id"] for one in self.scene.said if not one.get("outcome", {}).get("started", True)}

    @property
    def alive(self) -> list[str]:
        return [job.id for job in self.scene.journaled.jobs.values() if not job.over]

    @rule(key=st.sampled_from(KEYS), chain=st.sampled_from("ab"))
    def launch(self, key: str, chain: str) -> None:
        self.chain.setdefault(key, chain)
        if key not in self.scene.journaled.jobs and key not in self.scene.journaled.forgotten:
            self.waits[key] = None
        self.scene.next(key, self.chain[key])

    @rule(key=st.sampled_from(KEYS), unless_started=st.booleans())
    def stop(self, key: str, unless_started: bool) -> None:
        self.scene.allocations.stop(key, "withdrawn", "", 0.0, unless_started)
        self.waits.pop(key, None)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.scene.end(data.draw(st.sampled_from(self.alive)))

    @rule()
    def act(self) -> None:
        self.turn()

    @rule(key=st.sampled_from(KEYS))
    def forget(self, key: str) -> None:
        if (job := self.scene.journaled.jobs.get(key)) is not None and job not in self.scene.journaled.syncs.over:
            self.scene.allocations.forget([key])

    @rule()
    def new_agent(self) -> None:
        self.scene.allocations.drop_unstarted()
        self.waits.clear()

    @rule()
    def kill(self) -> None:
        """What ended and is not durable ends once more; what waited was never there."""
        self.scene = self.scene.after_kill()
        self.waits.clear()

    @invariant()
    def one_of_a_chain_is_alive_or_about_to_be(self) -> None:
        chains: list[Any] = [self.chain[key] for key in (*self.alive, *self.scene.launches)]
        assert len(chains) == len({*chains}), (self.alive, [*self.scene.launches])

    @invariant()
    def who_waits_has_its_turn_in_the_end(self) -> None:
        known = {*self.scene.allocations.waiting, *self.scene.launches}
        assert known == {*self.waits} - {*self.alive}
        for key in self.scene.allocations.waiting:
            others = (*self.alive, *self.scene.launches)
            assert any(self.chain[one] == self.chain[key] for one in others), "it waits for nobody"


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=tries(60, 20), stateful_step_count=40, deadline=None)
