"""Lists of boosts that no one answer holds, and those that have ended among all that has."""

import sqlite3
from pathlib import Path

import msgspec
import pytest

from distributed_grid.coordinator.api import lookup
from distributed_grid.coordinator.api.lookup import Lookup
from distributed_grid.coordinator.core.commands import RecordJob
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Ended, Job
from distributed_grid.coordinator.core.views import Visibility
from distributed_grid.coordinator.store.store import ENDED_JOBS
from distributed_grid.protocol.boosts import Boost, needs
from distributed_grid.protocol.jobs import Cause, JobSpec, JobView, Outcome, Request, State
from distributed_grid.protocol.messages import Boosts, BoostView, ListBoosts, ListJobs, RayNode, joined, next_page
from distributed_grid.protocol.messages.roles import Reach
from distributed_grid.protocol.resources import ResourceType
from tests.coordinator.core.scene import facts, join
from tests.coordinator.ends import coordinator

LENT = Boost("gpu-master", "192.0.2.1:6379", ResourceType.CPU, 1000)
ASKED = Request(needs(ResourceType.CPU, 1000))


def boost(number: int, submitted: float, name: str | None = None) -> BoostView:
    """A boost; one without a name is another user's."""
    known = f"j-{number:012}" if name is None else name
    spec = JobSpec(("ray",), boost=LENT)
    view = JobView(id=known, user="ann", state=State.RUNNING, spec=spec, request=ASKED, submitted=submitted)
    return BoostView(view)


def told(whole: Boosts) -> tuple[Boosts, int]:
    """All of it as who asks has it in the end, and in how many answers."""
    asked = ListBoosts(1)
    answer = page = lookup.boost_page(whole, None)
    count = 1
    while (asked := next_page(asked, page, count + 1)) is not None:
        page = lookup.boost_page(whole, asked.past)
        answer, count = joined(answer, page), count + 1
        assert count < 1000
    return answer, count


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "LIST_BYTES", 4000)


@pytest.mark.usefixtures("small")
def test_all_boosts_and_all_nodes_are_told_once_in_as_many_answers_as_it_takes() -> None:
    boosts = tuple(boost(number, 10.0 + number) for number in range(50))
    nodes = tuple(RayNode(f"{number:056x}", name=f"n{number}") for number in reversed(range(60)))
    answer, count = told(Boosts(1, boosts, nodes=nodes, address="192.0.2.1:6379"))
    assert answer.boosts == boosts and answer.nodes == nodes[::-1] and answer.past is None
    assert count > 3 and len(msgspec.msgpack.encode(lookup.boost_page(Boosts(1, boosts, nodes=nodes), None))) < 4500


@pytest.mark.usefixtures("small")
def test_boosts_of_one_moment_are_in_one_answer_also_those_that_one_may_not_name() -> None:
    boosts = tuple(boost(number, 10.0 + number // 20, "") for number in range(60))
    answer, count = told(Boosts(1, boosts))
    assert answer.boosts == boosts and 1 < count <= 3


def test_a_short_list_is_one_answer() -> None:
    whole = Boosts(1, (boost(1, 1.0),), nodes=(RayNode("a"), RayNode("b")))
    assert told(whole) == (whole, 1)


def test_nodes_are_listed_in_the_order_of_their_numbers_over_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "LIST_BYTES", 1000)
    ledger = Ledger()
    for number in (10, 2, 33, 1, 7, 20, 3):
        join(ledger, facts(f"lab{number}"))
    found: list[str] = []
    past, pages = "", 0
    while True:
        page, past = lookup.node_page(ledger.state, 1.0, past)
        found += [view.facts.name for view in page]
        pages += 1
        if not past:
            break
    assert found == ["lab1", "lab2", "lab3", "lab7", "lab10", "lab20", "lab33"] and pages > 1


async def test_boosts_that_have_ended_are_found_among_jobs_however_many_newest_first(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ended = []
        for number in range(300):
            lent = LENT if number % 100 == 50 else None
            spec = JobSpec(("ray",), boost=lent)
            made = Job(id=f"j-{number:012}", key=f"k{number}", user="ann", spec=spec, request=ASKED, submitted=1.0)
            made.phase = Ended(outcome=Outcome(Cause.EXITED), at=10.0 + number)
            ended.append(RecordJob(made, new=True))
        grid.store.commit(grid.store.snapshot(ended, 400.0))
        found, visibility = Lookup(grid.ledger.state, grid.store, grid.driver), Visibility("ann", Reach.ALL)
        asked = ListJobs(id=1, ended=True, states=(State.ENDED,), limit=2, boosts=True)
        first = found.newest(visibility, asked)
        assert ([view.id[-3:] for view in first.jobs], first.more) == (["250", "150"], True)
        rest = found.newest(visibility, next_page(msgspec.structs.replace(asked, limit=200), first, 2))
        assert ([view.id[-3:] for view in rest.jobs], rest.more) == (["050"], False)
        wanted = f"{ENDED_JOBS} WHERE boost = 1 ORDER BY ended DESC, id DESC"
        plan = sqlite3.connect(tmp_path / "grid.db").execute(f"EXPLAIN QUERY PLAN {wanted}").fetchall()
        assert "ended_boosts" in str(plan), "by their own index"
