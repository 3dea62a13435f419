"""Requests are answered from the ledger or the store, in pages where an answer is large."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.groups import parse_array
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Request, State
from distributed_grid.protocol.messages import (
    AskWhy,
    Cancel,
    Done,
    Exited,
    Failed,
    GetShared,
    GetStatus,
    Heartbeat,
    Jobs,
    JobUpdate,
    Launch,
    ListJobs,
    Shared,
    ShowJobs,
    SignalJob,
    Started,
    Status,
    Stop,
    Submission,
    Why,
    next_page,
)
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.resources import Resources
from tests.coordinator.ends import (
    agent,
    at_once,
    client,
    coordinator,
    job,
    runs_on,
    until_away,
)


async def test_cancel_and_signal_reach_the_agent_and_are_answered(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        (name,) = await ann.submit(job("sleep", "9"))
        await ann.until(lambda seen: isinstance(seen, JobUpdate) and seen.job.state is State.RUNNING)
        assert isinstance(await ann.ask(SignalJob(1001, name, 2)), Done)
        sent = await worker.until(lambda seen: getattr(seen, "signal", 0) == 2)
        assert sent.allocation == f"{name}.1"
        assert isinstance(await ann.ask(Cancel(1002, (name,))), Done)
        await worker.until(Stop)
        assert (await ann.ended(name)).outcome.cause is Cause.CANCELLED  # type: ignore[union-attr]
        assert (await ann.ask(Cancel(1003, (name,)))).text == "ended already"
        await ann.close()
        await worker.close()


async def test_references_are_resolved_and_unknown_ones_come_with_a_suggestion(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        first, second = await ann.submit(job("a", name="train"), job("b", name="serve"), watch=False)

        async def show(number: int, *refs: str) -> Any:
            return await ann.ask(ShowJobs(number, refs))

        assert [view.id for view in (await show(101, "train", first[:10], first)).jobs] == [first]
        assert [view.id for view in (await show(102, "last")).jobs] == [second]
        unknown = await show(103, "trian")
        assert isinstance(unknown, Failed) and unknown.code == "unknown-job" and "train" in unknown.hint
        several = await show(104, "j-")
        assert isinstance(several, Failed) and first not in several.hint
        nobody = await (await client(grid.url, "eve")).ask(ShowJobs(1, ("last",)))
        assert isinstance(nobody, Failed) and nobody.code == "unknown-job"
        await ann.close()


async def test_what_is_done_to_live_jobs_finds_the_live_one_of_a_name_also_if_a_newer_one_has_ended(
    tmp_path: Path,
) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        (old,) = await ann.submit(job("sleep", "9", name="twin"))
        (hold,) = await ann.submit(job("hold", hold=True, time_limit=60.0, name="twin"))
        worker.runs = at_once
        (new,) = await ann.submit(job("true", name="twin"))
        await ann.ended(new)
        await grid.stored()
        assert [view.id for view in (await ann.ask(ShowJobs(101, ("twin",)))).jobs] == [new]
        (inside,) = await ann.submit(Submission("in", JobSpec(("true",)), Request(Resources(cpu=1000), within="twin")))
        assert (await ann.ended(inside)).request.within == hold
        assert isinstance(await ann.ask(Cancel(102, ("twin",))), Done)
        assert (await ann.ended(hold)).outcome.cause is Cause.CANCELLED  # type: ignore[union-attr]
        assert isinstance(await ann.ask(SignalJob(103, "twin", 2)), Done)
        await worker.until(lambda seen: getattr(seen, "signal", 0) == 2 and seen.allocation == f"{old}.1")
        assert isinstance(await ann.ask(Cancel(104, ("twin",))), Done)
        await ann.ended(old)
        assert (await ann.ask(Cancel(105, ("twin",)))).text == "ended already"
        await ann.close()
        await worker.close()


async def test_lists_are_bounded_newest_first_and_keep_secrets(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url), await client(grid.url)
        ended = await ann.submit(*(job("true", env={"TOKEN": "secret"}) for _ in range(3)))
        for name in ended:
            await ann.ended(name)
        waiting = await ann.submit(job("true", cpu=4000), job("true", cpu=4000), job("true", cpu=4000), watch=False)
        live = await ann.ask(ListJobs(201))
        assert {view.id for view in live.jobs} <= set(waiting)
        everything = await ann.ask(ListJobs(202, ended=True))
        assert {view.id for view in everything.jobs} == {*ended, *waiting} and not everything.more
        assert all(view.spec.env == {} and view.story == () for view in everything.jobs)
        some = await ann.ask(ListJobs(203, ended=True, limit=2))
        assert len(some.jobs) == 2 and some.more
        assert all(a.submitted >= b.submitted for a, b in zip(everything.jobs, everything.jobs[1:], strict=False))
        only = await ann.ask(ListJobs(204, ended=True, states=(State.ENDED,), user="ann"))
        assert {view.id for view in only.jobs} >= set(ended)
        assert (await ann.ask(ListJobs(205, ended=True, user="bob"))).jobs == ()
        await ann.close()
        await worker.close()


async def test_a_list_of_what_failed_has_neither_what_exited_with_0_nor_what_was_cancelled(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ends = {
            "true": Outcome(Cause.EXITED),
            "false": Outcome(Cause.EXITED, code=3),
            "gone": Outcome(Cause.SIGNALLED, signal=9),
        }

        def runs(launch: Launch) -> list[Any]:
            return [
                Started(allocation=launch.allocation),
                Exited(allocation=launch.allocation, outcome=ends[launch.spec.argv[0]]),
            ]

        worker, ann = await agent(grid.url, runs=runs), await client(grid.url)
        names = await ann.submit(*(job(word) for word in ("true", "false", "gone")))
        for name in names:
            await ann.ended(name)
        await worker.close()
        await until_away(grid)  # else it may be given the next job
        (waiting,) = await ann.submit(job("true"), watch=False)
        await grid.stored()
        failed = await ann.ask(ListJobs(201, ended=True, states=(State.ENDED,), failed=True))
        assert {view.id for view in failed.jobs} == set(names[1:])
        both = await ann.ask(ListJobs(202, ended=True, states=(State.WAITING, State.ENDED), failed=True))
        assert {view.id for view in both.jobs} == {*names[1:], waiting}
        await ann.close()


async def test_a_list_of_what_failed_has_only_arrays_with_failed_members_however_many_newer_ones_have_none(
    tmp_path: Path,
) -> None:
    def runs(launch: Launch) -> list[Any]:
        outcome = Outcome(Cause.EXITED, code=int(launch.spec.argv[0] == "false"))
        return [Started(launch.allocation, 1), Exited(launch.allocation, outcome, returned=True)]

    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url, runs=runs), await client(grid.url)
        arrays: list[str] = []
        for word in ("false", "true", "true"):
            arrays += await ann.submit(replace(job(word), array=parse_array("0-1", None)))
            for member in (0, 1):
                await ann.ended(f"{arrays[-1]}_{member}")
        await worker.close()
        await until_away(grid)
        (waiting,) = await ann.submit(replace(job("true"), array=parse_array("0-1", None)), watch=False)
        await grid.stored()

        async def listed(number: int, *states: State, limit: int = 2, failed: bool = False) -> list[str]:
            answer = await ann.ask(ListJobs(number, True, states, limit=limit, fold=True, failed=failed))
            return [view.id for view in answer.groups]

        assert await listed(201, State.ENDED, failed=True) == [arrays[0]]
        assert await listed(202, State.ENDED, State.WAITING, failed=True) == [waiting, arrays[0]]
        assert await listed(203, State.ENDED) == [arrays[2], arrays[1]]
        assert await listed(204, State.WAITING, limit=9) == [waiting]
        assert await listed(205, limit=9) == [waiting, *reversed(arrays)]
        await ann.close()


async def test_a_list_goes_on_behind_what_one_answer_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed_grid.coordinator.api.lookup.LIST_BYTES", 3000)
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url), await client(grid.url)
        ended = [name for _ in range(5) for name in await ann.submit(*(job("true") for _ in range(5)))]
        for name in ended:
            await ann.ended(name)
        await worker.close()  # so that none of the others starts, and ends, while the list is read
        waiting = [name for _ in range(6) for name in await ann.submit(*(job("true", cpu=4000) for _ in range(5)))]
        asked: ListJobs | None = ListJobs(300, ended=True, limit=50)
        pages: list[Jobs] = []
        while asked is not None:
            answer = await ann.ask(asked)
            pages.append(answer)
            asked = next_page(asked, answer, 301 + len(pages))
        told = [view for page in pages for view in page.jobs]
        assert len(pages) > 3 and pages[-1].more  # 50 of 55 were wanted
        assert len({view.id for view in told}) == 50
        live, over = told[: len(waiting)], told[len(waiting) :]
        assert {view.id for view in live} == set(waiting)
        assert [view.submitted for view in live] == sorted((view.submitted for view in live), reverse=True)
        assert [view.ended for view in over] == sorted((view.ended for view in over), reverse=True)
        async with GridClient(grid.url) as everybody:
            assert {view.id for view in await everybody.jobs(ended=True)} == {*ended, *waiting}
        await ann.close()


async def test_status_shared_and_why_show_the_grid(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        await worker.say(Heartbeat(Sample(at=1.0, foreign_cpu=0.5)))
        (name,) = await ann.submit(job("sleep", "1"))
        await ann.until(lambda seen: isinstance(seen, JobUpdate) and seen.job.state is State.RUNNING)
        status = await ann.ask(GetStatus(301))
        assert isinstance(status, Status) and status.grid == grid.store.grid and status.counts == {"running": 1}
        assert status.nodes[0].sample is not None and status.nodes[0].sample.foreign_cpu == 0.5
        shared = await ann.ask(GetShared(302))
        assert isinstance(shared, Shared) and shared.offers[0].room.cpu == 3000
        assert [held.job for held in shared.allocations] == [name]
        why = await ann.ask(AskWhy(303, job=name))
        assert isinstance(why, Why) and why.job is not None and why.job.id == name
        dry = await ann.ask(AskWhy(304, request=Request(Resources(cpu=1000))))
        assert isinstance(dry, Why) and dry.chosen == "n1"
        nothing = await ann.ask(AskWhy(305))
        assert isinstance(nothing, Failed) and nothing.hint == "name a job (id, prefix or name)"
        await ann.close()
        await worker.close()


async def test_what_could_never_start_in_its_hold_is_told_so_as_at_the_submission(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        (hold,) = await ann.submit(job("hold", hold=True, time_limit=60.0))
        (plain,) = await ann.submit(job("sleep", "1"))
        fits = await ann.ask(AskWhy(1, request=Request(Resources(cpu=1000), within=hold)))
        assert isinstance(fits, Why) and fits.chosen == "n1"
        large = await ann.ask(AskWhy(2, request=Request(Resources(cpu=2000), within=hold)))
        assert isinstance(large, Failed) and large.code == "never-fits" and "of the hold" in large.what
        other = await ann.ask(AskWhy(3, request=Request(Resources(cpu=1000), within=plain)))
        assert isinstance(other, Failed) and other.what == f"{plain} is no hold"
        await ann.close()
        await worker.close()


async def test_a_request_is_in_the_audit_log_with_the_jobs_ids_and_without_its_words(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        (made,) = await ann.submit(job("secretly", key="hunter3", env={"PASSWORD": "hunter2"}))
        await ann.close()
    text = (tmp_path / "audit.log").read_text()
    line = json.loads(text.splitlines()[-1])
    assert (line["user"], line["event"], line["ids"], line["via"]) == ("ann", "submit", [made], "")
    assert not any(word in text for word in ("hunter", "PASSWORD", "secretly"))
