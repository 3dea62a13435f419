"""Between a launch and its run: measured once more, and laid out with what was shipped."""

import asyncio
import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distributed_grid.agent.launch import raylet
from distributed_grid.agent.launch.staging import FRESH
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import SLOT_LOST
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.bundle import blob_hash
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import (
    Exited,
    Heartbeat,
    Launch,
    Renewed,
    Stale,
    Stop,
    WantBlob,
)
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.resources import GpuShare, Grant, ResourceType
from tests.agent.scene import (
    LONG,
    Coordinator,
    Node,
    launch,
    shipped,
)
from tests.agent.scene import coordinator as coordinator
from tests.agent.scene import node as node


async def test_a_lease_that_is_over_while_the_job_is_laid_out_is_not_revived_by_a_later_word(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator may have run it elsewhere by then, and its word to stop may still be on its way."""
    gate = asyncio.Event()

    async def slow(launch: Launch, slot: str) -> None:
        await gate.wait()

    monkeypatch.setattr(node.runtime._staging, "_unpack", slow)
    order = launch("j0.1", *LONG)
    spec = msgspec.structs.replace(order.spec, bundle="b")
    begun = procs.now()
    await coordinator.say(msgspec.structs.replace(order, spec=spec, lease=1.0))
    beat = await coordinator.until(lambda: [one for one in coordinator.all(Heartbeat) if one.at > begun + 2.0])
    await coordinator.say(Renewed(at=beat[-1].at))
    await coordinator.until(lambda: node.runtime.table.renewed > begun + 2.0)
    gate.set()
    outcome = (await coordinator.hears(Exited, "j0.1")).outcome
    assert (outcome.cause, outcome.started) == (Cause.LEASE_EXPIRED, False)


async def test_a_job_goes_elsewhere_while_the_node_cannot_be_measured(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(at: float | None = None, read_gpus: bool = True) -> Sample:
        raise OSError("Stale file handle")

    meter = node.runtime._meter
    monkeypatch.setattr(node.probe, "sample", fails)
    await coordinator.until(lambda: meter.newest is not None and meter.newest.at < procs.now() - FRESH)
    await coordinator.say(launch("j0.1", *LONG))
    stale = await coordinator.hears(Stale, "j0.1")
    assert stale.reason == "this node could not be measured: Stale file handle"


async def test_a_gpu_is_measured_anew_at_the_claim(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bool] = []
    sample = node.probe.sample

    def counted(at: float | None = None, read_gpus: bool = True) -> Sample:
        read.append(read_gpus)
        return sample(at, read_gpus)

    monkeypatch.setattr(node.probe, "sample", counted)
    monkeypatch.setattr(node.runtime._lender, "verify", lambda grant, sample, held, key: len(read) and None)
    begun = len(read)
    await coordinator.say(launch("j0.1", grant=Grant(gpus=(GpuShare("GPU-a"),))))
    await coordinator.hears(Exited, "j0.1")
    assert len(read) > begun and read[-1]


async def test_what_was_shipped_is_there_when_the_job_runs_and_is_fetched_once(
    coordinator: Coordinator, node: Node
) -> None:
    large = os.urandom(2 * PART_BYTES + 17)
    bundle = shipped(coordinator, {"a/b.txt": b"hello", "large": large, "again": b"hello"})
    script = "cat a/b.txt again; wc -c < large; echo changed > a/b.txt"
    jobs = [launch(f"j{number}.1", "sh", "-c", script, bundle=bundle) for number in range(3)]
    await coordinator.say(*jobs)
    for job in jobs:
        ended = await coordinator.hears(Exited, job.allocation)
        assert ended.outcome.stdout_tail == b"hellohello%d\n" % len(large), ended
    assert len(coordinator.asked) == 1 + 1 + 3
    assert (node.dir / "blobs" / blob_hash(large)).read_bytes() == large


async def test_what_an_agent_that_was_killed_had_unpacked_is_in_nobodys_way(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = node.runtime._files.make

    def half_made(slot: str, above: bytes, name: bytes, *rest: Any) -> None:
        (path := Path(os.fsdecode(above + b"/" + name))).mkdir()
        (path / "a").write_bytes(b"hel")
        make(slot, above, name, *rest)

    monkeypatch.setattr(node.runtime._files, "make", half_made)
    bundle = shipped(coordinator, {"a": b"hello"})
    await coordinator.say(launch("j0.1", "cat", "a", bundle=bundle))
    assert (await coordinator.hears(Exited, "j0.1")).outcome.stdout_tail == b"hello"


async def test_a_blob_that_is_missing_or_damaged_fails_the_job_in_words(coordinator: Coordinator, node: Node) -> None:
    bundle = shipped(coordinator, {"a": b"hello"})
    del coordinator.blobs[blob_hash(b"hello")]
    await coordinator.say(launch("j0.1", bundle=bundle))
    outcome = (await coordinator.hears(Exited, "j0.1")).outcome
    assert (outcome.cause, outcome.started) == (Cause.WORKDIR_FAILED, False) and "no such blob" in outcome.text
    coordinator.blobs[blob_hash(b"hello")] = b"jello"
    await coordinator.say(launch("j1.1", bundle=bundle))
    assert "damaged" in (await coordinator.hears(Exited, "j1.1")).outcome.text
    assert sorted(os.listdir(node.dir / "blobs")) == [bundle]


async def test_fetching_goes_on_over_the_next_connection(coordinator: Coordinator, node: Node) -> None:
    bundle = shipped(coordinator, {"a": b"hello"})
    content = coordinator.blobs.pop(bundle)
    held: list[WantBlob] = []

    async def hold(messages: list[Any]) -> None:
        held.extend(messages)

    give, coordinator._give_blobs = coordinator._give_blobs, hold  # type: ignore[method-assign]
    await coordinator.say(launch("j0.1", "cat", "a", bundle=bundle))
    await coordinator.until(lambda: held)
    coordinator.blobs[bundle] = content
    coordinator._give_blobs = give  # type: ignore[method-assign]
    await coordinator.cut("agent")
    assert (await coordinator.hears(Exited, "j0.1")).outcome.stdout_tail == b"hello"


@pytest.mark.parametrize("unpacked", [True, False])
async def test_a_job_never_begins_without_its_files_when_the_supervisor_dies_before(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch, unpacked: bool
) -> None:
    launcher, lay_out = node.runtime.launcher, node.runtime._files.lay_out

    def lay_out_and_kill(*about: Any) -> None:
        if unpacked:
            lay_out(*about)
        os.kill(launcher.supervisor_pid, signal.SIGKILL)
        if not unpacked:
            raise OSError("there is no such slot")

    monkeypatch.setattr(node.runtime._files, "lay_out", lay_out_and_kill)
    bundle = shipped(coordinator, {"a": b"hello"})
    await coordinator.say(launch("j0.1", "cat", "a", bundle=bundle))
    if unpacked:
        outcome = (await coordinator.hears(Exited, "j0.1")).outcome
        assert (outcome.cause, outcome.text, outcome.started) == (Cause.WITHDRAWN, SLOT_LOST, False)
    else:
        assert (await coordinator.hears(Stale, "j0.1")).reason == SLOT_LOST
    monkeypatch.undo()
    await coordinator.say(launch("j0.2", "cat", "a", bundle=bundle))
    assert (await coordinator.hears(Exited, "j0.2")).outcome.stdout_tail == b"hello"


async def test_a_stop_while_fetching_wins(coordinator: Coordinator, node: Node) -> None:
    held: list[WantBlob] = []

    async def hold(messages: list[Any]) -> None:
        held.extend(messages)

    coordinator._give_blobs = hold  # type: ignore[method-assign]
    await coordinator.say(launch("j0.1", bundle="0" * 64))
    await coordinator.until(lambda: held)
    await coordinator.say(Stop(allocation="j0.1"))
    outcome = (await coordinator.hears(Exited, "j0.1")).outcome
    assert (outcome.cause, outcome.started) == (Cause.CANCELLED, False)
    assert not node.runtime._staging._tasks


async def test_the_slot_of_a_boost_is_made_while_the_raylet_is_prepared_and_given_up_if_that_fails(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    launcher = node.runtime.launcher
    monkeypatch.setattr(launcher, "announce", lambda launch, account: said.append("announced"))
    monkeypatch.setattr(launcher, "unreserve", lambda allocation: said.append(f"given up {allocation}"))

    def prepare(*about: object) -> raylet.Lease:
        said.append("prepared")
        raise GridError("no ports")

    monkeypatch.setattr(raylet, "prepare", prepare)
    order = launch("j0.1")
    boost = Boost("n", "192.0.2.1:1", ResourceType.CPU, 1)
    await coordinator.say(msgspec.structs.replace(order, spec=msgspec.structs.replace(order.spec, boost=boost)))
    assert (await coordinator.hears(Exited, "j0.1")).outcome.cause is Cause.NOT_JOINED
    assert said == ["announced", "prepared", "given up j0.1"]


async def test_what_was_prepared_for_a_raylet_that_was_stopped_meanwhile_is_removed_after_it(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of its cluster's token would stay there for ever."""
    begun, stopped = threading.Event(), threading.Event()
    made: list[Path] = []

    def prepare(order: Launch, *about: object) -> raylet.Lease:
        begun.set()
        assert stopped.wait(60)
        made.append(raylet.make_folder(order.allocation))
        (made[0] / raylet.COPY_NAME).touch()
        return raylet.Lease((), {})

    monkeypatch.setattr(raylet, "prepare", prepare)
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        order = launch("j0.1")
        boost = Boost("n", "192.0.2.1:1", ResourceType.CPU, 1)
        await coordinator.say(msgspec.structs.replace(order, spec=msgspec.structs.replace(order.spec, boost=boost)))
        await coordinator.until(begun.is_set)
        await coordinator.say(Stop(allocation="j0.1"))
        assert (await coordinator.hears(Exited, "j0.1")).outcome.cause is Cause.CANCELLED
        stopped.set()
        await coordinator.until(lambda: made and not made[0].exists())
        await coordinator.until(lambda: not node.runtime._staging._clearing)
