"""Simulated time and connections: what is due happens in its order, and what is sent arrives in order or not at all."""

import random
from typing import Any

from distributed_grid.simulator.engine import DOWN, UP, Engine, Link, Process, Wire


class Listener(Process):
    """An end of a wire: what it received, and when."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.received: list[Any] = []
        self.times: list[float] = []
        self.ended = 0

    def receive(self, wire: Wire, frame: Any) -> None:
        self.received.append(frame)
        self.times.append(self.engine.now)

    def hung_up(self, wire: Wire) -> None:
        self.ended += 1


class Line:
    """A wire between two that listen."""

    def __init__(self, seed: int = 0) -> None:
        self.engine = Engine()
        self.link = Link(self.engine, random.Random(seed))
        self.agent, self.coordinator = Listener(self.engine), Listener(self.engine)
        self.wire = Wire(self.link, "n0", self.agent, self.coordinator)

    def run(self) -> None:
        while self.engine.step():
            pass


def test_events_happen_in_order_of_time_and_those_of_one_moment_in_order_of_insertion() -> None:
    engine, happened = Engine(), list[tuple[float, str]]()

    def act(name: str) -> None:
        happened.append((engine.now, name))

    for when, name in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b"), (0.5, "first")):
        engine.at(when, None, act, name)
    while engine.step():
        pass
    assert happened == [(0.5, "first"), (1.0, "a"), (1.0, "b"), (2.0, "c"), (2.0, "d")]
    assert engine.events == 5


def test_what_was_due_before_now_happens_now() -> None:
    engine, times = Engine(), list[float]()
    engine.at(3.0, None, lambda: engine.at(1.0, None, lambda: times.append(engine.now)))
    while engine.step():
        pass
    assert times == [3.0]


def test_nothing_happens_to_a_dead_process_and_to_a_suspended_one_when_it_resumes() -> None:
    engine, happened = Engine(), list[tuple[float, str]]()
    dead, suspended = Process(), Process()

    def act(name: str) -> None:
        happened.append((engine.now, name))

    engine.at(1.0, dead, act, "dead")
    engine.at(1.0, suspended, act, "one")
    engine.at(2.0, suspended, act, "two")
    engine.at(5.0, None, engine.thaw, suspended)
    dead.dead = True
    engine.freeze(suspended)
    while engine.step():
        pass
    assert happened == [(5.0, "one"), (5.0, "two")]


def test_the_digest_is_of_all_that_happened_in_order() -> None:
    def digest(*names: str) -> str:
        engine = Engine()
        for name in names:
            engine.note(name)
        return engine.digest()

    assert digest("a", "b") == digest("a", "b") != digest("b", "a")


def test_the_same_seed_has_frames_arrive_at_the_same_times() -> None:
    def times(seed: int) -> list[float]:
        line = Line(seed)
        for frame in range(20):
            line.wire.send(UP, frame)
        line.run()
        return line.coordinator.times

    assert times(1) == times(1) != times(2)


def test_frames_arrive_in_order_also_after_a_link_was_cut() -> None:
    line = Line()
    line.link.slow = 3.0
    for frame in range(10):
        line.wire.send(UP, frame)
    line.link.cut[UP] = True
    for frame in range(10, 20):
        line.wire.send(UP, frame)
    line.run()
    assert line.coordinator.received == [*range(10)]
    line.link.heal(UP)
    line.run()
    assert line.coordinator.received == [*range(20)] and line.coordinator.times == sorted(line.coordinator.times)


def test_a_cut_in_one_direction_leaves_the_other() -> None:
    line = Line()
    line.link.cut[DOWN] = True
    line.wire.send(UP, "up")
    line.wire.send(DOWN, "down")
    line.run()
    assert (line.coordinator.received, line.agent.received) == (["up"], []) and not line.wire.well


def test_an_end_is_learned_after_all_that_was_said_before_it() -> None:
    line = Line()
    line.wire.send(UP, "last")
    line.wire.close(UP)
    line.wire.send(UP, "too late")
    line.run()
    assert (line.coordinator.received, line.coordinator.ended) == (["last"], 1)
    assert not line.link.wires, "both sides are closed"


def test_of_a_connection_that_is_lost_the_beginning_arrives_and_nobody_is_told() -> None:
    lengths = set()
    for seed in range(30):
        line = Line(seed)
        for frame in range(4):
            line.wire.send(UP, frame)
        line.wire.close(UP, lose=True, silent=True)
        line.run()
        assert line.coordinator.received == [*range(len(line.coordinator.received))] and not line.coordinator.ended
        lengths.add(len(line.coordinator.received))
    assert lengths == {0, 1, 2, 3, 4}
