"""An agent that says what cannot be shows that the store has gone back; what can be shows nothing."""

from pathlib import Path

import pytest

from distributed_grid.coordinator.contradictions import of_hello, of_inventory
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import RecordJob
from distributed_grid.coordinator.store import Store
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import Hello, Inventory
from distributed_grid.protocol.nodes import Known
from tests.coordinator.ends import agent, client, coordinator, job, node
from tests.coordinator.test_store import a_job, keep

NOW = 2_000_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store that was opened again when its last commit was ten minutes ago, with a job that ended."""
    made = Store(tmp_path / "grid.db")
    keep(made, RecordJob(a_job(1, State.ENDED, tries=1), new=True), clock=NOW - 600)
    made.close()
    made = Store(tmp_path / "grid.db")
    made.opened = NOW
    return made


def hello(*obeyed: object) -> Hello:
    said = obeyed if obeyed else None
    return Hello(protocol=(1, 0), software="", role="agent", name="n1", obeyed=said)  # type: ignore[arg-type]


def test_who_has_obeyed_a_later_life_of_the_coordinator_shows_it(store: Store) -> None:
    grid, epoch = store.grid, store.epoch
    assert "epoch 9" in of_hello(store, hello(grid, 9, "x"), "me")
    assert "at the same epoch" in of_hello(store, hello(grid, epoch, "other"), "me")
    for said in ((), (grid, epoch, "me"), (grid, epoch - 1, "other"), ("another", 9, "x"), (grid, epoch, "")):
        assert of_hello(store, hello(*said), "me") == ""


@pytest.mark.parametrize(
    ("item", "shows"),
    [
        (Known("j-000000000001.2", State.ENDED), True),
        (Known("j-000000000001.1", State.ENDED), False),
        (Known("j-aaaaaaaaaaaa.1", State.RUNNING, started_for=300.0), True),  # after the last commit, before the start
        (Known("j-aaaaaaaaaaaa.1", State.RUNNING, started_for=3000.0), False),  # it may have been removed by its age
        (Known("j-aaaaaaaaaaaa.1", State.ENDED), False),
        (Known("garbage", State.RUNNING), False),
        (Known("j-000000000001.²", State.RUNNING), False),
    ],
)
def test_what_no_commit_came_before_shows_it(store: Store, item: Known, shows: bool) -> None:
    assert bool(of_inventory(store, Ledger(), "n1", Inventory((item,)), NOW + 1)) is shows


def test_what_is_from_before_a_restore_shows_nothing(store: Store) -> None:
    store.restored = NOW - 100
    for name in ("j-000000000001.2", "j-aaaaaaaaaaaa.1"):
        known = Inventory((Known(name, State.RUNNING, started_for=300.0),))
        assert of_inventory(store, Ledger(), "n1", known, NOW + 1) == ""


async def test_from_an_agents_word_on_nothing_is_started_and_that_is_told(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        (waits,) = await ann.submit(job("true"))
        worker = await agent(grid.url, node(), held={"": Known(f"{waits}.1", State.RUNNING, started_for=5.0)})
        await worker.is_known()
        await grid.stored()
        assert "n1 knows of" in grid.driver.trouble.words() and worker.launched == []
        assert grid.store.loss is not None
        await worker.close()
        await ann.close()
