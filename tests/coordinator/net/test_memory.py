"""The coordinator's memory against its mark: what is given up, in which order, and that results are not."""

from pathlib import Path

import pytest

from distributed_grid.coordinator.net.memory import Busy, Memory, Shortage, allowed, judge
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import Exited, Failed, GetStatus, Launch, Started, Submit
from tests.coordinator.ends import agent, at_once, client, coordinator, job, runs_on

MARK = 1000


@pytest.mark.parametrize(
    ("used", "before", "after"),
    [
        (799, Shortage.NONE, Shortage.NONE),
        (800, Shortage.NONE, Shortage.SHED),
        (760, Shortage.SHED, Shortage.SHED),
        (749, Shortage.SHED, Shortage.NONE),
        (999, Shortage.SHED, Shortage.SHED),
        (1000, Shortage.SHED, Shortage.REFUSE),
        (1000, Shortage.NONE, Shortage.REFUSE),
        (960, Shortage.REFUSE, Shortage.REFUSE),
        (949, Shortage.REFUSE, Shortage.SHED),
        (760, Shortage.REFUSE, Shortage.SHED),
        (100, Shortage.REFUSE, Shortage.NONE),
    ],
)
def test_strain_begins_at_its_mark_and_ends_a_little_below(used: int, before: Shortage, after: Shortage) -> None:
    assert judge(used, MARK, before) is after


def test_the_mark_is_what_the_narrowest_control_group_leaves(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text("5000\n")
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    own = tmp_path / "own"
    own.write_text("1:cpu:/x\n0::/a/b\n")
    assert allowed(tmp_path, own) == 5000
    assert allowed(tmp_path, tmp_path / "none") > 1 << 28  # the machine's


async def test_in_strain_jobs_are_refused_at_the_mark_only_and_the_reason_is_said() -> None:
    used, shed = [900 << 20], []
    memory = Memory(1000 << 20, lambda: used[0])
    memory.shed = lambda: shed.append(memory.shortage)
    memory.check()
    memory.refuse()
    assert memory.words() == "viewers are turned away: the coordinator uses 900 MiB of the 1000 it may have"
    used[0] = 1001 << 20
    memory.check()
    with pytest.raises(Busy) as refused:
        memory.refuse()
    assert "try again" in refused.value.hint and "1001 MiB" in refused.value.why
    used[0] = 1 << 20
    memory.check()
    memory.refuse()
    assert memory.words() == "" and {Shortage.SHED, Shortage.REFUSE} <= set(shed)
    memory.close()


async def test_where_it_cannot_be_read_for_too_many_open_files_it_counts_as_before() -> None:
    used: list[int | OSError] = [1001 << 20]

    def read() -> int:
        if isinstance(used[0], OSError):
            raise used[0]
        return used[0]

    memory = Memory(1000 << 20, read)
    memory.check()
    used[0] = OSError(24, "Too many open files")
    memory.check()
    assert memory.words().startswith("no new jobs are taken")
    used[0] = 1 << 20
    memory.check()
    assert memory.words() == ""
    memory.close()


async def test_at_the_mark_new_jobs_are_refused_results_are_taken_and_status_says_so(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url, runs=runs_on), await client(grid.url)
        once = job("sleep", "600", key="once")
        (name,) = await ann.submit(once)
        launch = await worker.until(Launch)
        viewer = await client(grid.url, "eve")
        (seen,) = grid.server._clients.connections(Role.OPERATOR, "eve")
        grid.server._clients._connections[(Role.VIEWER, "eve")] = {seen}  # without an authority nobody is one
        grid.server._memory.mark = 1 << 20
        grid.server._memory.check()
        await viewer.gone()
        refused = await ann.ask(Submit(501, (job("true"),), False))
        assert isinstance(refused, Failed) and refused.code == "busy" and "try again" in refused.hint
        assert (await ann.ask(Submit(502, (once,), False))).jobs == (name,)  # it is there already
        assert "no new jobs are taken" in (await ann.ask(GetStatus(503))).trouble
        exited = next(message for message in at_once(launch) if isinstance(message, Exited))
        await worker.say(Started(launch.allocation, 1), exited)
        view = await ann.ended(name)
        assert view.state is State.ENDED and view.outcome is not None and view.outcome.code == 0
        grid.server._memory.mark = 1 << 40
        grid.server._memory.check()
        assert (await ann.ask(Submit(504, (job("true"),), False))).jobs
        for end in (ann, worker):
            await end.close()
