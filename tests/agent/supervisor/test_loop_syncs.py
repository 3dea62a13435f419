"""What a real supervisor does while its disk takes its time: it goes on, and tells and starts nothing too early."""

import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import Exited
from tests.agent.conftest import Bench, runs

MakeBench = Callable[..., Awaitable[Bench]]


def gated(gate: Path) -> tuple[str, ...]:
    """A command that ends when this file is there."""
    return ("sh", "-c", f"until [ -e {gate} ]; do sleep 0.01; done")


def passes(bench: Bench) -> int:
    """How many slow syncs have begun."""
    return (bench.dir / "supervisor.log").read_text().count("GRID_FAULTS supervisor.sync:")


@pytest.fixture
async def slow(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose second sync takes three seconds, and is done by the thread as the first one was slow."""
    monkeypatch.setenv("GRID_FAULTS", "supervisor.sync:1:delay=0.02,supervisor.sync:2:delay=3")
    return await make_bench()


async def test_a_job_is_ended_during_a_sync_and_that_is_told_once_durable(slow: Bench, tmp_path: Path) -> None:
    first = slow.launch("sleep", "1000")
    await slow.started(first)
    second = slow.launch("touch", str(tmp_path / "second"))
    await slow.until(lambda: passes(slow) == 2)
    slow.stop(first)
    await slow.until(lambda: not slow.alive(first))
    third = slow.launch("true")
    assert not (tmp_path / "second").exists() and not any(one.allocation != first for one in slow.reports)
    assert slow.outcomes(first) == [], "it is not durable"
    assert [(await slow.ended(id)).cause for id in (first, second, third)] == [Cause.CANCELLED, *[Cause.EXITED] * 2]


async def test_a_successor_with_a_durable_intent_waits_for_no_sync(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRID_FAULTS", "supervisor.sync:1:delay=0.02,supervisor.sync:3:delay=3")
    bench = await make_bench()
    first = bench.launch(*gated(tmp_path / "go"))
    await bench.started(first)
    second = bench.launch("touch", str(tmp_path / "second"), chain=first)
    beside = bench.launch("sleep", "1000")
    await bench.started(beside)
    third = bench.launch("touch", str(tmp_path / "third"))
    await bench.until(lambda: passes(bench) == 2)
    (tmp_path / "go").touch()
    await bench.until((tmp_path / "second").exists)
    assert not (tmp_path / "third").exists() and bench.outcomes(first) == [], "the third sync is under way"
    for id in (first, second, third):
        assert (await bench.ended(id)).code == 0
    told = [one.allocation for one in bench.reports if isinstance(one, Exited)]
    assert told.index(first) < told.index(second)


async def test_what_is_stopped_while_its_intent_is_synced_never_starts(slow: Bench, tmp_path: Path) -> None:
    first = slow.launch("sleep", "1000")
    await slow.started(first)
    second, third = slow.launch("touch", str(tmp_path / "ran")), slow.launch("true")
    await slow.until(lambda: passes(slow) == 2)
    slow.stop(second)
    slow.stop(first, grace=0.0)
    outcome = await slow.ended(second)
    assert (outcome.cause, outcome.started) == (Cause.CANCELLED, False)
    assert (await slow.ended(first)).cause is Cause.CANCELLED and (await slow.ended(third)).code == 0
    assert not (tmp_path / "ran").exists()


async def test_a_new_agent_is_told_of_an_intent_once_it_is_durable(slow: Bench, tmp_path: Path) -> None:
    first = slow.launch("sleep", "1000")
    await slow.started(first)
    second = slow.launch("sh", "-c", f"echo ran >> {tmp_path}/second; exit 4")
    await slow.until(lambda: passes(slow) == 2)
    await slow.restart()
    assert {one.allocation for one in slow.known} == {first, second}
    assert (await slow.ended(second)).code == 4
    assert (tmp_path / "second").read_text() == "ran\n"


async def test_a_spawner_that_dies_while_an_intent_is_synced_is_replaced(slow: Bench) -> None:
    first = slow.launch("sleep", "1000")
    await slow.started(first)
    second = slow.launch("sh", "-c", "exit 4")
    await slow.until(lambda: passes(slow) == 2)
    notes = [note for note in (slow.dir / "spawners").iterdir() if note.name != slow.launcher.slots.slot(first)]
    pids = [json.loads(note.read_text().splitlines()[0])[6] for note in notes]
    assert len(pids) == 1 and runs(pids[0])
    os.kill(pids[0], signal.SIGKILL)
    assert (await slow.ended(second)).code == 4
