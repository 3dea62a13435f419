"""Needs over real sockets: runs are learned and recorded, and are known after a restart."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.core.commands import Event, RunTimesPredicted
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.predictor import service as needs_service
from distributed_grid.coordinator.predictor.database import UsageDatabase
from distributed_grid.coordinator.predictor.predictor import SPACING, How, Predictor, Usage
from distributed_grid.coordinator.predictor.service import NeedsService, how_it_ended, usage_of
from distributed_grid.coordinator.predictor.shape import shape
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Request, RetryOn, Used
from distributed_grid.protocol.messages import Exited, Failed, Needs, Predict, RecordUse, Started, Submission
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.scaling.pools import Pool, Scaling, Shape
from tests.coordinator.core.queue.test_reservations import ask as ask_for
from tests.coordinator.core.queue.test_reservations import reserved_for_urgent
from tests.coordinator.core.scene import facts, join
from tests.coordinator.ends import PATIENCE, ClientEnd, Coordinator, agent, client, coordinator, node

GIB = 1 << 30
numbers = itertools.count(1)


def _nothing(event: Event) -> None:
    """Nobody listens to what is predicted."""


def runs(outcome: Outcome) -> Callable[[Any], list[Any]]:
    return lambda launch: [Started(launch.allocation, 1), Exited(launch.allocation, outcome, returned=True)]


def submission(number: int, **more: Any) -> Submission:
    request = Request(Resources(1000, GIB), **more)
    return Submission(key=f"k{next(numbers)}", spec=JobSpec(("train", str(number))), request=request)


@asynccontextmanager
async def learning(tmp_path: Path) -> AsyncIterator[tuple[Coordinator, NeedsService]]:
    """A coordinator that learns, with a database of its own."""
    async with coordinator(tmp_path) as grid:
        service = NeedsService(tmp_path / "usage.db", 1e6, lambda: 1000.0)
        grid.server._needs = service
        grid.server._requests._needs = service
        task = asyncio.create_task(service.run(grid.ledger.state, grid.driver.put))
        yield grid, service
        task.cancel()
        await service.close()


async def known(service: NeedsService, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while service.predictor.learned < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def ask(end: ClientEnd, *argv: str, **more: Any) -> Any:
    return await end.ask(Predict(next(numbers), argv, **more))


async def test_runs_are_learned_recorded_and_known_after_a_restart(tmp_path: Path) -> None:
    done = Outcome(Cause.EXITED, seconds=60.0, cpu_seconds=90.0, peak_memory=GIB // 2)
    async with learning(tmp_path) as (grid, service):
        worker = await agent(grid.url, node(), runs=runs(done))
        ann, bob = await client(grid.url), await client(grid.url, "bob")
        assert (await ask(ann, "train", "9")).needs == ()
        for job in await ann.submit(*(submission(number) for number in range(6))):
            await ann.ended(job)
        await known(service, 6)
        found: Needs = await ask(ann, "train", "9", within=100.0, tried=GIB // 2)
        assert found.shape == "train #" and found.samples == 6
        needs = {one.of: one for one in found.needs}
        assert GIB // 2 < needs["memory"].value < GIB and needs["memory"].samples == 6
        assert needs["cores"].value == pytest.approx(1.5, rel=0.3) and needs["seconds"].value == pytest.approx(60.0)
        assert found.chance > 0.8 and found.next_memory > GIB // 2
        assert (await ask(bob, "train", "9")).needs == ()  # others' runs say nothing of theirs
        for end in (worker, ann, bob):
            await end.close()
    again = NeedsService(tmp_path / "usage.db", 1e6, lambda: 1000.0)
    task = asyncio.create_task(again.run(Ledger(policy=Policy()).state, _nothing))
    await known(again, 6)
    after = await again.answer("ann", Predict(1, ("train", "9")))
    assert [(one.of, one.samples) for one in after.needs] == [(one.of, one.samples) for one in found.needs]
    assert after.needs[0].value == pytest.approx(needs["memory"].value, rel=1e-3)
    task.cancel()
    await again.close()


async def test_it_sleeps_while_nothing_happens_and_wakes_when_something_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs_service, "to_next_second", lambda: 600.0)
    service, looks = NeedsService(None, 1e6, lambda: 1000.0), list[int]()
    learn = service.learn_some

    def counted(most: int) -> None:
        looks.append(most)
        learn(most)

    service.learn_some = counted  # type: ignore[method-assign]
    task = asyncio.create_task(service.run(Ledger(policy=Policy()).state, _nothing))
    await asyncio.sleep(0.5)
    assert not looks
    service.record("ann", RecordUse(1, ("train",), seconds=5.0, memory=GIB))
    await known(service, 1)
    assert len(looks) <= 2
    task.cancel()
    await service.close()


async def test_an_end_that_is_told_twice_counts_once(tmp_path: Path) -> None:
    def twice(launch: Any) -> list[Any]:
        started, exited = runs(Outcome(Cause.EXITED, seconds=60.0, peak_memory=GIB))(launch)
        return [started, exited, exited]

    async with learning(tmp_path) as (grid, service):
        worker, ann = await agent(grid.url, node(), runs=twice), await client(grid.url)
        for job in await ann.submit(*(submission(number) for number in range(3))):
            await ann.ended(job)
        await known(service, 3)
        assert not service._waiting and service.predictor.learned == 3
        await worker.close()
        await ann.close()


async def test_a_job_that_ran_out_of_memory_asks_for_what_was_enough_for_others(tmp_path: Path) -> None:
    asked: list[int] = []

    def answer(launch: Any) -> list[Any]:
        asked.append(launch.grant.resources.memory)
        short = asked[-1] < 2.5 * GIB
        outcome = Outcome(Cause.OUT_OF_MEMORY, signal=9) if short else Outcome(Cause.EXITED)
        return [Started(launch.allocation, 1), Exited(launch.allocation, outcome, returned=True)]

    async with learning(tmp_path) as (grid, service):
        for _ in range(8):
            service.record("ann", RecordUse(1, ("train", "1"), seconds=9.0, memory=int(2.5 * GIB)))
        await known(service, 8)
        worker, ann = await agent(grid.url, node(), runs=answer), await client(grid.url)
        (job,) = await ann.submit(submission(7, retry_on=(RetryOn.OOM,), retries=3, retry_memory=2000))
        await ann.ended(job)
        assert len(asked) == 2 and asked[0] == GIB and 2.5 * GIB < asked[1] < 4 * GIB
        await worker.close()
        await ann.close()


async def test_a_run_that_somebody_records_counts_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    async with learning(tmp_path) as (grid, service):
        ann = await client(grid.url)
        for number in range(5):
            await ann.ask(RecordUse(next(numbers), ("x", str(number)), {"batch": 2.0}, 5.0, GIB, 1.0))
        await known(service, 5)
        assert (await ask(ann, "x", "1", features={"batch": 4.0})).needs
        refused = await ann.ask(RecordUse(next(numbers), ("x",), ended="somehow"))
        assert isinstance(refused, Failed) and "'somehow' is no way to end" in refused.what
        await ann.close()


async def test_a_run_that_somebody_records_is_known_after_a_restart(tmp_path: Path) -> None:
    service = NeedsService(tmp_path / "usage.db", 1e6, lambda: 1000.0)
    for number in range(5):
        service.record("ann", RecordUse(1, ("x", str(number)), seconds=5.0, memory=GIB, ended="done"))
    await service.close()
    rows = UsageDatabase(tmp_path / "usage.db").newest(9)
    assert [(row.user, row.text, row.memory, row.cause) for row in rows] == [("ann", "x #", GIB, "recorded")] * 5
    again = NeedsService(tmp_path / "usage.db", 1e6, lambda: 1000.0)
    task = asyncio.create_task(again.run(Ledger(policy=Policy()).state, _nothing))
    await known(again, 5)
    assert (await again.answer("ann", Predict(1, ("x", "1")))).needs[0].samples == 5
    task.cancel()
    await again.close()


async def test_what_is_asked_without_a_bundle_is_predicted_with_as_much_shipped_as_was_last() -> None:
    sizes = {"large": 1 << 30, "small": 1 << 20}
    service = NeedsService(None, 0.0, lambda: 3.0, sizes.__getitem__)
    for number in range(40):
        size = 1 << (20 + number % 11)
        of = shape(("x",), "ann", size)
        service.predictor.learn(of, Usage(5.0, float(size), 1.0))
    service.predictor.learn(shape(("x",), "ann", sizes["large"]), Usage(5.0, float(sizes["large"]), 1.0))
    asked = {
        "large": Predict(1, ("x",), bundle="large"),
        "small": Predict(1, ("x",), bundle="small"),
        "as last": Predict(1, ("x",)),
        "nothing": Predict(1, ("x",), unshipped=True),
    }
    memory = {name: (await service.answer("ann", one)).needs[0].value for name, one in asked.items()}
    assert memory["as last"] == pytest.approx(memory["large"], rel=1e-3)
    assert memory["nothing"] < memory["small"] < 0.1 * memory["large"]
    await service.close()


async def test_a_prediction_that_fails_is_no_prediction_and_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Predictor, *words: Any) -> Any:
        raise ZeroDivisionError

    for name in ("predict", "next_memory", "learn"):
        monkeypatch.setattr(Predictor, name, fails)
    async with learning(tmp_path) as (grid, service):
        oom = Outcome(Cause.OUT_OF_MEMORY, signal=9)
        worker, ann = await agent(grid.url, node(), runs=runs(oom)), await client(grid.url)
        (job,) = await ann.submit(submission(1, retry_on=(RetryOn.OOM,), retries=1, retry_memory=2000))
        outcome = (await ann.ended(job)).outcome
        assert outcome is not None and outcome.cause is Cause.OUT_OF_MEMORY
        found = await ask(ann, "train", "1")
        assert found.needs == () and "failed" in found.trouble
        await worker.close()
        await ann.close()


async def test_a_submission_asks_the_predictor_nothing_and_a_damaged_history_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "usage.db").write_bytes(b"\xff\x00" * 5000)
    asked, predict = list[Any](), Predictor.predict

    def counted(self: Predictor, of: Any, now: float) -> Any:
        asked.append(of)
        return predict(self, of, now)

    monkeypatch.setattr(Predictor, "predict", counted)
    async with learning(tmp_path) as (grid, service):
        ann = await client(grid.url)
        assert len(await ann.submit(*(submission(number) for number in range(30)))) == 30
        for number in range(5):
            await ann.ask(RecordUse(next(numbers), ("train", str(number)), seconds=5.0, memory=GIB))
        await known(service, 5)
        assert not asked, "neither jobs nor lessons wait for an answer"
        assert (await ask(ann, "train", "1")).needs and len(asked) == 1
        await ann.close()
    assert (tmp_path / "usage.db.damaged").exists() and len(UsageDatabase(tmp_path / "usage.db").newest(9)) == 5


async def test_a_database_that_cannot_be_written_stops_only_itself(tmp_path: Path) -> None:
    service = NeedsService(tmp_path / "nowhere" / "usage.db", 1e6, lambda: 1.0)
    task = asyncio.create_task(service.run(Ledger(policy=Policy()).state, _nothing))
    for number in range(5):
        service.record("ann", RecordUse(1, ("x", str(number)), seconds=5.0, memory=GIB))
    await known(service, 5)
    found = await service.answer("ann", Predict(1, ("x", "1")))
    assert found.needs and found.trouble
    task.cancel()
    await service.close()


async def test_a_flood_of_ends_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = NeedsService(None, 0.0, lambda: 1.0)
    for number in range(11_000):
        service.record("ann", RecordUse(1, ("x",), seconds=5.0, memory=number + 1))
    assert len(service._waiting) == 10_000
    service.learn_some(20)
    assert service.predictor.learned == 20
    service._waiting.clear()  # or the rest is learned when it is closed, which takes seconds
    await service.close()


async def test_of_a_burst_of_equal_jobs_no_more_is_learned_than_tells_something_and_all_of_it_is_recorded(
    tmp_path: Path,
) -> None:
    service = NeedsService(tmp_path / "usage.db", 1e6, lambda: 1000.0)
    ledger = reserved_for_urgent()
    job = ledger.state.jobs["long"]

    def burst(
        first: int, count: int, since: float, used: int, cause: Cause = Cause.EXITED, seconds: float = 0.002
    ) -> None:
        """So many jobs end, a millisecond apart."""
        for number in range(first, first + count):
            outcome = Outcome(cause, seconds=seconds, peak_memory=used)
            began = needs_service._Began(f"j{number}.1", job, since + (number - first) / 1000)
            service._note(began)
            service._note(needs_service._Ended(f"j{number}.1", job, used, None, outcome, began.at))
        service.learn_some(2 * count)

    burst(0, 1000, 1.0, GIB)
    assert 200 < service.predictor.learned <= 200 + 0.8 / SPACING + 1
    of = service._shape(job.spec, job.user, False)
    running = service.predictor._models[of.key].running
    assert not running, "none of those that were not learned is taken to run on"

    before = service.predictor.learned
    burst(1000, 3, 2.0, 4 * GIB, Cause.OUT_OF_MEMORY)
    assert service.predictor.learned == before + 3, "what does not end as usual is always learned"
    burst(2000, 400, 3.0, 8 * GIB)
    needed = service.predictor.predict(of, 4.0).memory.value
    assert 8 * GIB < needed < 10 * GIB, "a change of level is seen within half a second"
    before = service.predictor.learned
    burst(3000, 400, 4.0, 8 * GIB, seconds=0.2)
    assert 0.1 < service.predictor.planned(of, 5.0).value < 0.5, "also one of the run times"
    assert service.predictor.learned <= before + 0.4 / SPACING + 1, "which has them learned no faster"
    await service.close()
    assert len(UsageDatabase(tmp_path / "usage.db").newest(9999)) == 1803


def knowing(user: str, *argv: str, seconds: float = 50.0) -> NeedsService:
    """It knows six runs of this command, and it is 3 s."""
    service = NeedsService(None, 0.0, lambda: 3.0)
    for _ in range(6):
        service.record(user, RecordUse(1, argv, seconds=seconds, memory=GIB))
    service.learn_some(99)
    return service


def test_the_run_time_of_the_first_that_wait_is_told_once_where_a_node_is_reserved() -> None:
    ledger = reserved_for_urgent()
    ask_for(ledger, "short", 1, 2.0, user="bob")
    service = knowing("bob", *ledger.state.jobs["short"].spec.argv)
    told = [service.predict_waiting(ledger.state) for _ in range(3)]
    ((job, planned),) = told[1]
    assert job == "short" and 50.0 <= planned < 80.0 and told[0] == told[2] == ()
    assert ledger.handle(RunTimesPredicted(told[1]), 3.0) is not None


def test_nothing_is_predicted_where_nothing_depends_on_it() -> None:
    ledger = Ledger(policy=Policy())
    ask_for(ledger, "short", 1, 2.0, user="bob")
    service = knowing("bob", *ledger.state.jobs["short"].spec.argv)
    assert [service.predict_waiting(ledger.state) for _ in range(3)] == [()] * 3


def test_where_machines_are_created_the_run_times_of_what_runs_are_told_while_others_wait() -> None:
    pool = Pool(name="a", provider="p", shapes=(Shape(resources=Resources(2000, GIB)),))
    ledger = Ledger(policy=Policy(scaling=Scaling(pools=(pool,))))
    join(ledger, facts("n1", cores=1))
    ask_for(ledger, "runs", 1, 2.0, user="bob")
    service = knowing("bob", *ledger.state.jobs["runs"].spec.argv)
    assert [service.predict_waiting(ledger.state) for _ in range(3)] == [()] * 3, "nothing waits"
    ask_for(ledger, "waits", 1, 3.0, user="bob")
    service._look_again = 0.0
    told = [service.predict_waiting(ledger.state) for _ in range(3)]
    assert sorted(name for some in told for name, _ in some) == ["runs", "waits"]
    ledger.handle(RunTimesPredicted(tuple(one for some in told for one in some)), 4.0)
    assert ledger.state.jobs["runs"].planned > 50.0


async def test_how_likely_a_job_is_over_in_time_is_told_while_it_waits_and_runs(tmp_path: Path) -> None:
    ledger = reserved_for_urgent()
    state = ledger.state
    words: dict[str, str] = {}
    for name, until in (("short", 0.0), ("early", 20.0), ("late", 400.0)):
        spec = JobSpec(("train", "1"), finish_by=until)
        ask_for(ledger, name, 1, 2.0, user="bob")
        state.jobs[name].spec = spec
        words[name] = await knowing("bob", "train", "1").prospects(state, state.jobs[name])
    assert words["short"].startswith("nine in ten runs like it end within") and "over by" not in words["short"]
    assert "with a probability of 0 %, if it starts now" in words["early"]
    assert "with a probability of 86 %, if it starts now" in words["late"], "six of seven"
    state.jobs["big"].spec = JobSpec(("train", "1"), finish_by=90.0)
    text = await knowing("ann", "train", "1").prospects(state, state.jobs["big"])
    assert "with a probability of 0 %, if it starts at" in text, "its node is reserved from 100 s on"
    state.jobs["long"].spec = JobSpec(("train", "1"), finish_by=400.0)
    text = await knowing("ann", "train", "1").prospects(state, state.jobs["long"])
    assert text.endswith("with a probability of 86 %")
    text = await NeedsService(None, 0.0, lambda: 3.0).prospects(state, state.jobs["late"])
    assert "nobody knows whether it is over by" in text


def test_how_an_attempt_ended_and_what_it_used() -> None:
    ends = {
        Outcome(Cause.EXITED): How.DONE,
        Outcome(Cause.EXITED, code=1): How.CUT,
        Outcome(Cause.TIME_LIMIT): How.TIME_LIMIT,
        Outcome(Cause.OUT_OF_MEMORY): How.OUT_OF_MEMORY,
        Outcome(Cause.PREEMPTED): How.CUT,
    }
    assert {one: how_it_ended(one) for one in ends} == ends
    told = Outcome(Cause.EXITED, seconds=100.0, suspended=40.0, cpu_seconds=120.0, peak_memory=5)
    assert usage_of(told, None, 9)[:3] == (60.0, 5, 2.0)
    assert usage_of(told, Used(allocation="j.1", cpu_peak=3.5, memory=7), 9)[:3] == (60.0, 7, 3.5)
    assert usage_of(told, Used(allocation="j.1", gpu_memory=11), 9).gpu_memory == 11.0
