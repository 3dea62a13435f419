"""A journal that is damaged while the agent lives: nothing is asked twice, and it is known what is not known."""

import os
import shutil
import signal
from collections.abc import Collection

from distributed_grid.agent.core.commands import Ready, Run
from distributed_grid.agent.core.table import Table
from distributed_grid.agent.launch.supervisor import Loss, facts_after
from distributed_grid.agent.supervisor import procs
from distributed_grid.protocol.jobs import Cause, JobSpec, State
from distributed_grid.protocol.messages import Launch, Started
from distributed_grid.protocol.resources import Grant
from tests.agent.conftest import Bench, runs
from tests.processes import allocation_of
from tests.protocol.samples import FACTS

HIDES = ("sh", "-c", "exec env -i sleep 1000")


class Told:
    """What the launcher tells of losses."""

    def __init__(self, bench: Bench) -> None:
        self.known: list[set[str] | None] = []
        bench.launcher.loss_changed = self._take

    def _take(self, known: Collection[str] | None) -> None:
        self.known.append(known if known is None else {*known})


def lose_notes(bench: Bench) -> None:
    """Without these nobody can prove that nothing lives of what the journal does not name."""
    shutil.rmtree(bench.dir / "spawners")


async def hidden(bench: Bench) -> tuple[str, int]:
    """A job that nothing but the journal knows of."""
    id = bench.launch(*HIDES)
    pid = await bench.started(id)
    lose_notes(bench)
    await bench.until(lambda: not allocation_of(pid))
    return id, pid


async def test_a_journal_that_is_gone_when_a_supervisor_was_killed_is_told_at_once(bench: Bench) -> None:
    told = Told(bench)
    id, pid = await hidden(bench)
    (bench.dir / "journal").unlink()
    await bench.kill_supervisor()
    await bench.until(lambda: told.known)
    assert told.known == [set()] and runs(pid) and bench.outcomes(id) == []
    assert bench.launcher.loss is not None and bench.launcher.loss.open
    assert "unknown what ran before" in bench.launcher.loss.words and "not there any more" in bench.launcher.loss.words
    procs.send(pid, procs.stat(pid).start, signal.SIGKILL)  # type: ignore[union-attr]


async def test_an_older_journal_with_its_older_mark_is_known_by_the_output_that_it_does_not_name(bench: Bench) -> None:
    told = Told(bench)
    before = {name: (bench.dir / name).read_bytes() for name in ("journal", "journal.mark")}
    id, pid = await hidden(bench)
    for name, whole in before.items():
        (bench.dir / "copy").write_bytes(whole)
        (bench.dir / "copy").rename(bench.dir / name)
    await bench.kill_supervisor()
    await bench.until(lambda: told.known)
    assert bench.launcher.loss is not None and f"{id} was started" in bench.launcher.loss.why
    procs.send(pid, procs.stat(pid).start, signal.SIGKILL)  # type: ignore[union-attr]


async def test_a_journal_that_is_gone_with_its_mark_is_known_by_the_output_that_is_left(bench: Bench) -> None:
    told = Told(bench)
    _, pid = await hidden(bench)
    for name in ("journal", "journal.mark", "supervisor.pid"):
        (bench.dir / name).unlink()
    await bench.kill_supervisor()
    await bench.until(lambda: told.known)
    assert bench.launcher.loss is not None and bench.launcher.loss.open
    procs.send(pid, procs.stat(pid).start, signal.SIGKILL)  # type: ignore[union-attr]


async def test_a_launch_that_was_not_answered_is_not_asked_again_after_a_loss(bench: Bench) -> None:
    told = Told(bench)
    supervisor = bench.launcher.supervisor_pid
    os.kill(supervisor, signal.SIGSTOP)
    id = bench.launch("true")
    lose_notes(bench)
    (bench.dir / "journal").unlink()
    await bench.kill_supervisor()
    await bench.until(lambda: told.known)
    assert await bench.run("true")  # what was asked before this has been heard
    assert bench.reports and all(one.allocation != id for one in bench.reports)


async def test_a_stop_of_what_may_live_is_not_answered_that_it_never_ran(bench: Bench) -> None:
    told = Told(bench)
    id, pid = await hidden(bench)
    (bench.dir / "journal").unlink()
    await bench.kill_supervisor()
    await bench.until(lambda: told.known)
    bench.stop(id)
    await bench.until(lambda: "not answered" in (bench.dir / "supervisor.log").read_text())
    assert bench.outcomes(id) == [] and runs(pid)
    procs.send(pid, procs.stat(pid).start, signal.SIGKILL)  # type: ignore[union-attr]
    bench.launcher.accept_loss()
    await bench.until(lambda: told.known == [set(), None])
    loss = bench.launcher.loss
    assert loss is not None and loss.words == ""
    assert (await bench.ended(id)).cause is Cause.SUPERVISOR_LOST
    await bench.kill_supervisor()
    assert bench.launcher.loss == loss and told.known == [set(), None]
    bench.launch("true", id=id)  # by a launch that comes very late
    await bench.until(lambda: len(bench.outcomes(id)) > 1)
    assert {one.cause for one in bench.outcomes(id)} == {Cause.SUPERVISOR_LOST}


async def test_a_node_that_has_notes_of_its_spawners_proves_by_itself_that_nothing_lives(bench: Bench) -> None:
    told = Told(bench)
    id = bench.launch(*HIDES)
    pid = await bench.started(id)
    (bench.dir / "journal").unlink()
    await bench.kill_supervisor()
    assert (await bench.ended(id)).cause is Cause.SUPERVISOR_LOST
    assert not runs(pid) and told.known
    assert bench.launcher.loss is not None and not bench.launcher.loss.open


async def test_the_next_supervisor_knows_that_it_is_not_known_and_the_one_after_a_word_that_it_is(bench: Bench) -> None:
    told = Told(bench)
    (bench.dir / "journal").write_bytes(b"")
    lose_notes(bench)
    await bench.kill_supervisor()
    await bench.until(lambda: told.known)
    first = bench.launcher.loss
    await bench.kill_supervisor()
    assert bench.launcher.loss == first and first is not None and first.open
    bench.launcher.accept_loss()
    await bench.until(lambda: told.known[-1] is None)
    await bench.kill_supervisor()
    assert bench.launcher.loss == Loss(first.id, first.since, first.why, open=False)
    await bench.restart()
    assert bench.launcher.loss is not None and not bench.launcher.loss.open


async def test_a_supervisor_that_is_killed_with_a_sound_journal_leaves_no_doubt(bench: Bench) -> None:
    id = bench.launch("sleep", "1000")
    await bench.started(id)
    for _ in range(3):
        await bench.kill_supervisor()
        assert bench.launcher.loss is None
    bench.stop(id, grace=0.0)
    await bench.ended(id)


def test_the_facts_say_it_for_as_long_as_it_is_so() -> None:
    loss = Loss("a1", 1.0, "the journal is empty", open=True)
    before = facts_after(FACTS, None)
    unknown = facts_after(FACTS, loss)
    after = facts_after(unknown, Loss("a1", 1.0, "the journal is empty", open=False))
    assert before == FACTS
    assert unknown.instance == f"{FACTS.instance}~a1" and "the journal is empty" in unknown.unknown
    assert (after.instance, after.unknown) == (unknown.instance, "")


def test_the_table_starts_nothing_that_was_lost_and_keeps_what_was_not() -> None:
    table = Table()
    launches = {
        key: Launch(key, "j", "ann", 1, Grant(cores=(core,)), JobSpec(("true",)))
        for core, key in enumerate(("j-a.1", "j-b.1", "j-c.1"))
    }
    for launch in launches.values():
        table.handle(launch, 1.0)
    for key in ("j-a.1", "j-b.1"):
        assert [type(one) for one in table.handle(Ready(key), 2.0)] == [Run]
    table.handle(Started("j-a.1", 1), 3.0)
    table.lose({"j-b.1"})
    assert {one.allocation: one.state for one in table.inventory(4.0)} == {
        "j-b.1": State.STARTING,
        "j-c.1": State.STARTING,
    }
    assert table.handle(launches["j-a.1"], 5.0) == []
    assert {one.allocation for one in table.holdings()} == {"j-b.1", "j-c.1"}
