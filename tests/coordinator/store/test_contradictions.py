"""What an agent says that cannot be shows that the store has gone back, where a stamp proves it; else it is held
against that agent alone. What can be shows nothing."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from distributed_grid.coordinator.core.commands import LossFound, NodeDoubted, RecordJob
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.net.limits import LOG_LINES, LogThrottle
from distributed_grid.coordinator.store.contradictions import Contradictions
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Request, State
from distributed_grid.protocol.messages import Exited, Hello, Inventory, Launch
from distributed_grid.protocol.nodes import Known, Stamp
from distributed_grid.protocol.resources import Grant, Resources
from tests.coordinator.core.scene import job as waiting
from tests.coordinator.ends import agent, client, coordinator, job, node, runs_on
from tests.coordinator.store.test_store import a_job, keep

NOW = 2_000_000_000.0
KNOWN_JOB, UNKNOWN_JOB = "j-000000000001", "j-aaaaaaaaaaaa"


class Judge:
    """What is said to a coordinator with this store, and what that shows."""

    def __init__(self, store: Store, instance: str = "me") -> None:
        self.found: list[Any] = []
        self.ledger = Ledger()
        self.judge = Contradictions(
            store, self.ledger.state, self.found.append, lambda: NOW + 1, instance, LogThrottle()
        )

    def hello(self, *obeyed: object, stamp: Stamp | None = None, name: str = "n1") -> list[type]:
        said = obeyed if obeyed else None
        self.judge.hello(Hello(protocol=(1, 0), software="", role="agent", name=name, obeyed=said, stamp=stamp))  # type: ignore[arg-type]
        return self._shown()

    def knows(self, *items: Known, name: str = "n1") -> list[type]:
        self.judge.hello(Hello(protocol=(1, 0), software="", role="agent", name=name))
        self.judge.check(name, Inventory(items))
        return self._shown()

    def _shown(self) -> list[type]:
        found, self.found[:] = [type(one) for one in self.found], []
        return found


def launch(allocation: str) -> Launch:
    return Launch(allocation, allocation.rpartition(".")[0], "ann", 1, Grant(), JobSpec(("true",)))


@pytest.fixture
def lived(tmp_path: Path) -> tuple[Store, dict[str, Stamp]]:
    """A store that was copied when a job had ended, what the coordinator told nodes before and after, and the copy,
    which was opened twice since."""
    made = Store(tmp_path / "grid.db")
    keep(made, RecordJob(a_job(1, State.ENDED, tries=1), new=True), clock=NOW - 600)
    before = Judge(made, "first").judge
    stamps = {"early": before.welcome_stamp("n1"), f"{KNOWN_JOB}.1": stamp_of(before, f"{KNOWN_JOB}.1")}
    made.close()
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "grid.db", tmp_path / "copy")
    later = Store(tmp_path / "grid.db")
    first = Judge(later, "first").judge
    stamps["opened"] = first.welcome_stamp("n1")
    keep(later, clock=NOW - 500)
    keep(later, clock=NOW - 500)
    for name in (f"{KNOWN_JOB}.2", f"{UNKNOWN_JOB}.1"):
        stamps[name] = stamp_of(first, name)
    stamps["late"] = first.welcome_stamp("n1")
    later.close()
    again = Store(tmp_path / "copy" / "grid.db")
    again.close()
    return Store(tmp_path / "copy" / "grid.db"), stamps


def stamp_of(judge: Contradictions, name: str, node: str = "n1") -> Stamp:
    stamp = judge.stamped(node, launch(name)).stamp
    assert stamp is not None
    return stamp


def test_who_has_obeyed_a_later_life_of_the_coordinator_shows_it(tmp_path: Path) -> None:
    real, copy = tmp_path / "real", tmp_path / "copy"
    for place in (real, copy):
        place.mkdir()
    Store(real / "grid.db").close()
    shutil.copy(real / "grid.db", copy)
    Store(real / "grid.db").close()
    later = Store(real / "grid.db")
    stamp = Judge(later, "other").judge.welcome_stamp("n1")
    for says in ("it is of an epoch that is to come", "it is of another one at the same epoch"):
        store = Store(copy / "grid.db")
        assert Judge(store).hello(store.grid, later.epoch, "other", stamp=stamp) == [LossFound], says
        store.close()
    assert store.epoch == later.epoch
    later.close()


def test_what_can_be_shows_nothing(lived: tuple[Store, dict[str, Stamp]]) -> None:
    store, stamps = lived
    scene, grid, epoch = Judge(store), store.grid, store.epoch
    for said in ((), (grid, epoch, "me"), (grid, epoch - 1, "other"), ("another", 9, "x"), (grid, epoch, "")):
        assert scene.hello(*said) == []
    assert scene.hello(grid, 1, "first", stamp=stamps["early"]) == [], "it was welcomed before the copy was made"
    one = f"{KNOWN_JOB}.1"
    assert scene.knows(Known(one, State.ENDED), Known(one, State.RUNNING, stamp=stamps[one])) == []
    assert scene.knows(Known("garbage", State.RUNNING), Known(f"{KNOWN_JOB}.²", State.RUNNING)) == []
    assert scene.knows(Known(f"{KNOWN_JOB}." + "9" * 900, State.RUNNING), Known(f"{KNOWN_JOB}.٣", State.RUNNING)) == []
    assert scene.knows(Known(f"{UNKNOWN_JOB}.1", State.RUNNING, started_for=300.0)) == [], (
        "it may be removed by its age"
    )


@pytest.mark.parametrize("name", [f"{KNOWN_JOB}.2", f"{UNKNOWN_JOB}.1"])
@pytest.mark.parametrize("state", [State.STARTING, State.RUNNING, State.ENDED])
def test_a_grant_that_the_store_never_made_shows_a_loss_where_its_stamp_proves_it(
    lived: tuple[Store, dict[str, Stamp]], name: str, state: State
) -> None:
    store, stamps = lived
    assert Judge(store).knows(Known(name, state, started_for=300.0, stamp=stamps[name])) == [LossFound]


def test_so_does_a_welcome_after_the_last_commit(lived: tuple[Store, dict[str, Stamp]]) -> None:
    store, stamps = lived
    for name, shows in (("opened", []), ("late", [LossFound]), (f"{UNKNOWN_JOB}.1", [])):
        assert Judge(store).hello(store.grid, stamps[name].epoch, "first", stamp=stamps[name]) == shows


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 1},
        {"commits": 10_000},
        {"seal": "0" * 32},
        {"seal": ""},
        {"seal": "²"},
    ],
)
def test_a_stamp_that_was_changed_proves_nothing(lived: tuple[Store, dict[str, Stamp]], change: dict[str, Any]) -> None:
    store, stamps = lived
    name = f"{KNOWN_JOB}.2"
    scene = Judge(store)
    assert scene.knows(Known(name, State.RUNNING, stamp=replace(stamps[name], **change))) == [NodeDoubted]
    assert scene.hello(store.grid, 99, "x", stamp=replace(stamps["early"], **change)) == [NodeDoubted]


def test_nor_does_that_of_another_node_or_of_another_allocation(lived: tuple[Store, dict[str, Stamp]]) -> None:
    store, stamps = lived
    name = f"{KNOWN_JOB}.2"
    scene = Judge(store)
    assert scene.knows(Known(name, State.RUNNING, stamp=stamps[name]), name="n2") == [NodeDoubted]
    assert scene.knows(Known(f"{KNOWN_JOB}.3", State.RUNNING, stamp=stamps[name])) == [NodeDoubted]
    assert scene.hello(store.grid, 99, "first", stamp=stamps["early"], name="n1") == [NodeDoubted]


def test_what_is_from_before_a_restore_shows_nothing(lived: tuple[Store, dict[str, Stamp]]) -> None:
    store, stamps = lived
    store.restored, store.restored_epoch = NOW - 100, store.epoch
    for name in (f"{KNOWN_JOB}.2", f"{UNKNOWN_JOB}.1"):
        for stamp in (None, stamps[name]):
            assert Judge(store).knows(Known(name, State.RUNNING, started_for=300.0, stamp=stamp)) == []


def test_an_end_keeps_its_stamp_only_where_that_proves_it(lived: tuple[Store, dict[str, Stamp]]) -> None:
    store, stamps = lived
    name, outcome = f"{KNOWN_JOB}.2", Outcome(Cause.EXITED)
    scene = Judge(store)
    scene.ledger.state.jobs[KNOWN_JOB] = waiting(KNOWN_JOB, Request(Resources(cpu=1000)), 1.0)
    told = scene.judge.check("n1", Exited(name, outcome, stamp=stamps[name]))
    assert told.stamp == stamps[name] and scene._shown() == [LossFound]
    told = scene.judge.check("n2", Exited(name, outcome, stamp=stamps[name]))
    assert told == Exited(name, outcome) and scene._shown() == [NodeDoubted]


def test_of_many_that_a_node_names_only_so_many_are_looked_up_and_only_once(
    lived: tuple[Store, dict[str, Stamp]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = lived
    looked: list[str] = []
    monkeypatch.setattr(store, "job", lambda name: looked.append(name))
    scene = Judge(store)
    many = tuple(Known(f"j-{number:012x}.1", State.RUNNING) for number in range(3000))
    scene.knows(*many)
    scene.judge.check("n1", Inventory(many))
    assert len(looked) == 1000


def test_a_node_that_makes_up_more_and_more_fills_no_log(lived: tuple[Store, dict[str, Stamp]]) -> None:
    store, _ = lived
    judge = Judge(store)
    with capture_logs() as logs:
        for number in range(2, 2002):
            judge.judge.check("n1", Exited(f"{KNOWN_JOB}.{number}", Outcome(Cause.EXITED), stamp=Stamp(1, 1, "x")))
            judge.knows(Known(f"{KNOWN_JOB}.{number}", State.ENDED))
    assert 0 < len(logs) <= LOG_LINES


async def test_from_a_word_that_is_proven_on_nothing_is_started_and_that_is_told(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        (waits,) = await ann.submit(job("true"))
        name = f"{waits}.1"
        known = Known(name, State.RUNNING, started_for=5.0, stamp=stamp_of(grid.server._contradictions, name))
        worker = await agent(grid.url, node(), held={"": known})
        await worker.is_known()
        await grid.stored()
        assert "n1 knows of" in grid.driver.trouble.words() and worker.launched == []
        assert grid.store.loss is not None
        await worker.close()
        await ann.close()


async def test_one_lying_node_stops_itself_and_nobody_else(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        (first,) = await ann.submit(job("true"))
        liar = await agent(grid.url, node("liar"), held={"": Known(f"{first}.1", State.RUNNING, started_for=5.0)})
        await liar.say(Exited(f"{first}.1", Outcome(Cause.EXITED, code=66), returned=True))
        honest = await agent(grid.url, node("honest"))
        assert (await ann.ended(first)).outcome == Outcome(Cause.EXITED)
        assert [one.allocation for one in honest.launched] == [f"{first}.1"] and liar.launched == []
        assert grid.store.loss is None and not grid.driver.trouble.found
        drain = grid.ledger.state.nodes["liar"].orders.drain
        assert drain is not None and drain.by == "the grid" and f"liar knows of {first}.1" in drain.reason
        for one in (liar, honest, ann):
            await one.close()


async def test_a_launch_carries_what_proves_it_later(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url, runs=runs_on)
        ann = await client(grid.url)
        (name,) = await ann.submit(job("true"))
        sent = await worker.until(Launch)
        assert sent.stamp is not None and sent.stamp.epoch == grid.store.epoch
        proves = grid.server._contradictions._proves
        assert proves(sent.stamp, "n1", f"{name}.1") and not proves(sent.stamp, "n2", f"{name}.1")
        for_node, for_person = worker.link.welcome, ann.link.welcome
        assert for_node is not None and for_node.stamp is not None
        assert for_person is not None and for_person.stamp is None, "people keep none"
        await worker.close()
        await ann.close()
