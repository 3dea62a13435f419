"""An agent with real jobs under a real supervisor, and a coordinator that is played by the test over a real socket."""

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import msgspec
import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.agent.gpus.base import NoGpus
from distributed_grid.agent.launch.launcher import Launcher
from distributed_grid.agent.runtime import Place, Runtime
from distributed_grid.agent.sampling.probe import Probe
from distributed_grid.agent.session import CannotConnect
from distributed_grid.agent.supervisor import procs
from distributed_grid.protocol.bundle import Entry, Manifest, blob_hash, encode_manifest
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.jobs import Cause, JobSpec, State
from distributed_grid.protocol.link import PROTOCOL, Link
from distributed_grid.protocol.messages import (
    Ack,
    BlobData,
    Exited,
    FileData,
    Files,
    Heartbeat,
    Hello,
    Inventory,
    Launch,
    OpenData,
    Output,
    Refused,
    Renewed,
    Signal,
    Stale,
    Started,
    Stop,
    WantBlob,
    WantFile,
    WantFiles,
    WantOutput,
    Welcome,
)
from distributed_grid.protocol.nodes import GpuSample, Offer, Sample, Stamp
from distributed_grid.protocol.placement import Walls
from distributed_grid.protocol.resources import GpuShare, Grant

M = TypeVar("M")
LENIENT = Limits(offer_after=0.0, cpu_percent_max=100.0, memory_percent_max=100.0, memory_min=0, reserve_memory=0)
CORES = tuple(range(8))
LONG = ("sleep", "600")


class Coordinator:
    """Welcomes an agent, writes down what it says, frame by frame, and serves blobs."""

    def __init__(self) -> None:
        self.hellos: list[Hello] = []
        self.frames: list[list[Any]] = []
        self.data: list[Any] = []
        self.blobs: dict[str, bytes] = {}
        self.asked: list[WantBlob] = []
        self.answer: Refused | None = None
        self.epoch = 1
        self.instance = "first"
        self.sessions = 0
        self.port = 0
        self._server: Server | None = None
        self._ends: dict[str, tuple[ServerConnection, Link]] = {}
        self._changed = asyncio.Event()

    async def listen(self) -> None:
        self._server = await serve(self._serve, "127.0.0.1", self.port, compression=None, max_size=5 << 20)
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def leave(self) -> None:
        """As if killed: no goodbye, and nobody listens any more."""
        assert self._server is not None
        self._server.close(close_connections=False)
        for socket, _ in self._ends.values():
            socket.transport.abort()
        await self._server.wait_closed()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def cut(self, role: str) -> None:
        """The network between us and the agent breaks."""
        socket, _ = self._ends[role]
        socket.transport.abort()
        await socket.wait_closed()

    async def _serve(self, socket: ServerConnection) -> None:
        link = Link.answer(0.0)
        try:
            hello = link.receive(await socket.recv(), 0.0)[0]
            self.hellos.append(hello)
            if self.answer is not None:
                link.refuse(self.answer)
                await self._write(socket, link)
                return
            self.sessions += hello.role == "agent"
            session = f"s{self.sessions}"
            known: dict[str, Any] = {"instance": self.instance, "stamp": Stamp(self.epoch, 3, "seal")}
            link.accept(Welcome(PROTOCOL, "test", self.epoch, "grid", session, heartbeat=0.1, **known))
            await self._write(socket, link)
            self._ends[hello.role] = (socket, link)
            while True:
                messages = link.receive(await socket.recv(), 0.0)
                self._took(hello.role, messages)
                if hello.role == "agent-data":
                    await self._give_blobs(messages)
        except ConnectionClosed:
            pass
        finally:
            self._changed.set()

    def _took(self, role: str, messages: list[Any]) -> None:
        if role == "agent":
            self.frames.append(messages)
        else:
            self.data += messages
        self._changed.set()

    async def _give_blobs(self, messages: list[Any]) -> None:
        for want in messages:
            if isinstance(want, WantBlob):
                self.asked.append(want)
                content = self.blobs.get(want.blob)
                if content is None:
                    await self.say_data(BlobData(id=want.id, error="no such blob"))
                    continue
                data = content[want.offset : want.offset + want.size]
                await self.say_data(BlobData(id=want.id, data=data, end=want.offset + len(data) == len(content)))

    async def _write(self, socket: ServerConnection, link: Link) -> None:
        for frame in link.data_to_send():
            await socket.send(frame)

    async def say(self, *messages: Any) -> None:
        socket, link = self._ends["agent"]
        link.send(*messages)
        await self._write(socket, link)

    async def say_data(self, *messages: Any) -> None:
        socket, link = self._ends["agent-data"]
        link.send(*messages)
        await self._write(socket, link)

    async def open_data(self) -> None:
        before = len([hello for hello in self.hellos if hello.role == "agent-data"])
        await self.say(OpenData(session=f"s{self.sessions}"))
        await self.until(lambda: len([one for one in self.hellos if one.role == "agent-data"]) > before)
        await self.until(lambda: "agent-data" in self._ends)

    async def until(self, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
        async with asyncio.timeout(seconds):
            while not (found := condition()):
                self._changed.clear()
                waiting = asyncio.create_task(self._changed.wait())
                await asyncio.wait([waiting], timeout=0.02)
                waiting.cancel()
            return found

    def all(self, kind: type[M], allocation: str = "") -> list[M]:
        said = [message for frame in self.frames for message in frame if isinstance(message, kind)]
        return [one for one in said if not allocation or getattr(one, "allocation", "") == allocation]

    async def hears(self, kind: type[M], allocation: str = "", count: int = 1) -> M:
        """The latest message of this kind once there are so many of them."""
        await self.until(lambda: len(self.all(kind, allocation)) >= count)
        return self.all(kind, allocation)[-1]

    async def answers(self, number: int) -> Any:
        return await self.until(lambda: next((one for one in self.data if one.id == number), None))

    async def connected(self, count: int = 1) -> None:
        await self.until(lambda: self.sessions >= count and len(self.all(Inventory)) >= count)


def launch(key: str, *argv: str, grant: Grant | None = None, epoch: int = 1, **spec: Any) -> Launch:
    grant = grant if grant is not None else Grant(cores=(int(key[-3]) % 8,), virtual=True)
    return Launch(
        allocation=key, job=key[:-2], user="u", epoch=epoch, grant=grant, spec=JobSpec(argv=argv or ("true",), **spec)
    )


class Node:
    """An agent in this process."""

    def __init__(self, state_dir: Path, url: str) -> None:
        self.dir = state_dir
        self.probe = Probe(CORES, 0, NoGpus(), virtual=True, own_roots=lambda: (os.getpid(),))
        self.launcher = Launcher(state_dir, lambda told: self.runtime.told(told))
        facts = self.probe.facts("node1", 1, LENIENT)
        place = Place(url, state_dir, interval=0.2)
        self.runtime = Runtime(place, facts, LENIENT, self.probe, self.launcher)
        self.task = asyncio.create_task(self.runtime.run())

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def clean(state_dir: Path) -> None:
    """Leave nothing running, by pid."""
    path = state_dir / "supervisor.pid"
    if path.exists():
        _kill(int(json.loads(path.read_text())["pid"]))
    async with asyncio.timeout(60):
        while left := [pid for pid in procs.everyone() if _works_in(state_dir, pid) and _alive(pid)]:
            for pid in left:
                _kill(pid)
            await asyncio.sleep(0.01)


def _works_in(state_dir: Path, pid: int) -> bool:
    """Whether it is of a job of this agent: those of tests that run beside this one may have the same ids."""
    try:
        return b"\0GRID_WORKDIR=%s/" % bytes(state_dir) in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _kill(pid: int) -> None:
    seen = procs.stat(pid)
    if seen is not None:
        procs.send(pid, seen.start, signal.SIGKILL)


def _alive(pid: int) -> bool:
    seen = procs.stat(pid)
    return seen is not None and seen.state not in "ZX"


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    one = Coordinator()
    await one.listen()
    yield one
    await one.close()


@pytest.fixture
async def node(coordinator: Coordinator, tmp_path: Path) -> AsyncIterator[Node]:
    one = Node(tmp_path / "agent", f"ws://127.0.0.1:{coordinator.port}")
    one.dir.mkdir()
    await coordinator.connected()
    yield one
    await one.stop()
    await clean(one.dir)


# --- the connection ---------------------------------------------------------------------------------------------------


async def test_an_agent_tells_its_inventory_then_its_offer_then_heartbeats(
    coordinator: Coordinator, node: Node
) -> None:
    assert (coordinator.hellos[0].role, coordinator.hellos[0].name) == ("agent", "node1")
    assert coordinator.frames[0][0] == Inventory(known=())
    offer = coordinator.frames[0][1]
    assert isinstance(offer, Offer) and set(offer.cores) == {*CORES} and offer.counting == ()
    beat = await coordinator.hears(Heartbeat, count=2)
    assert beat.sample.memory_total > 0


async def test_a_final_refusal_ends_the_agent_and_says_why(coordinator: Coordinator, tmp_path: Path) -> None:
    coordinator.answer = Refused("a node named 'node1' is connected already", why="its agent lives", final=True)
    one = Node(tmp_path, f"ws://127.0.0.1:{coordinator.port}")
    await asyncio.wait([one.task], timeout=60)
    with pytest.raises(CannotConnect, match="connected already"):
        one.task.result()
    await clean(tmp_path)


async def test_a_refusal_that_is_not_final_is_tried_again(coordinator: Coordinator, tmp_path: Path) -> None:
    coordinator.answer = Refused("full")
    one = Node(tmp_path, f"ws://127.0.0.1:{coordinator.port}")
    await coordinator.until(lambda: len(coordinator.hellos) >= 2)
    coordinator.answer = None
    await coordinator.connected()
    await one.stop()
    await clean(tmp_path)


async def test_an_end_that_was_not_acknowledged_is_told_again_after_the_inventory_and_the_offer(
    coordinator: Coordinator, node: Node
) -> None:
    await coordinator.say(launch("j0.1", "sh", "-c", "exit 7"), launch("j1.1", *LONG))
    first = await coordinator.hears(Exited, "j0.1")
    await coordinator.hears(Started, "j1.1")
    assert first.outcome.code == 7
    await coordinator.leave()
    coordinator.frames.clear()
    coordinator.sessions = 0
    await coordinator.listen()
    await coordinator.connected()
    again = await coordinator.hears(Exited, "j0.1")
    said = [message for frame in coordinator.frames for message in frame if not isinstance(message, Heartbeat)]
    assert [type(one) for one in said[:3]] == [Inventory, Offer, Exited]
    assert {(one.allocation, one.state) for one in said[0].known} == {("j0.1", State.ENDED), ("j1.1", State.RUNNING)}
    assert said[1].counting == ("j1.1",) and 1 not in said[1].cores
    assert again.outcome == first.outcome
    await coordinator.say(Ack(allocations=("j0.1",)))
    await coordinator.cut("agent")
    await coordinator.connected(2)
    assert [one.allocation for one in coordinator.all(Inventory)[-1].known] == ["j1.1"]


async def let_through(gate: Path) -> None:
    """Let the job go on that reads from this FIFO. Never waits in a thread, which nobody could end."""
    async with asyncio.timeout(60):
        while True:
            try:
                fd = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:  # nobody reads yet
                await asyncio.sleep(0.01)
    os.write(fd, b"go\n")
    os.close(fd)


async def test_what_ends_while_the_coordinator_is_away_is_told_when_it_is_back(
    coordinator: Coordinator, node: Node, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    await coordinator.say(launch("j0.1", "sh", "-c", f"read x < {gate}; exit 5"))
    await coordinator.hears(Started, "j0.1")
    await coordinator.leave()
    await let_through(gate)
    await coordinator.until(lambda: not node.runtime.table.runs("j0.1"))
    assert not coordinator.all(Exited)
    await coordinator.listen()
    assert (await coordinator.hears(Exited, "j0.1")).outcome.code == 5


async def test_what_one_turn_brings_leaves_in_one_frame(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(*[launch(f"j{number}.1", grant=Grant(cores=(99,))) for number in range(20)])
    await coordinator.hears(Stale, count=20)
    frames = [frame for frame in coordinator.frames if any(isinstance(one, Stale) for one in frame)]
    assert len(frames) == 1


# --- jobs -------------------------------------------------------------------------------------------------------------


async def test_a_job_runs_and_its_end_returns_what_it_held(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(launch("j0.1", "sh", "-c", "echo out; echo err >&2; exit 7"))
    started = await coordinator.hears(Started, "j0.1")
    ended = await coordinator.hears(Exited, "j0.1")
    assert started.pid > 0 and ended.returned
    outcome = ended.outcome
    assert (outcome.cause, outcome.code, outcome.stdout_tail, outcome.stderr_tail) == (
        Cause.EXITED, 7, b"out\n", b"err\n",
    )  # fmt: skip


async def test_a_job_gets_the_grids_environment_and_a_fresh_directory(coordinator: Coordinator, node: Node) -> None:
    script = "pwd; echo $GRID_NODE $GRID_JOB_ID $GRID_ALLOCATION_ID $OWN; ls -A | wc -l"
    await coordinator.say(launch("j0.1", "sh", "-c", script, env={"OWN": "x"}))
    tail = (await coordinator.hears(Exited, "j0.1")).outcome.stdout_tail.decode()
    folder, *rest = tail.splitlines()
    assert rest == ["node1 j0 j0.1 x", "0"]
    assert Path(folder).parents[1] == node.dir / "jobs" and folder.endswith("/j0.1")


async def test_a_launch_sent_twice_runs_once(coordinator: Coordinator, node: Node, tmp_path: Path) -> None:
    order = launch("j0.1", "sh", "-c", f"echo ran >> {tmp_path}/ran")
    await coordinator.say(order, order)
    await coordinator.hears(Exited, "j0.1")
    await coordinator.say(order)
    await coordinator.hears(Exited, "j0.1", count=2)
    assert (tmp_path / "ran").read_text() == "ran\n"


async def test_what_was_acknowledged_is_not_run_by_the_next_agent_and_supervisor_either(
    coordinator: Coordinator, node: Node, tmp_path: Path
) -> None:
    key = f"j-{os.getpid()}-0.1"  # the next supervisor looks for what is left of its jobs by their ids
    order = launch(key, "sh", "-c", f"echo once >> {tmp_path / 'ran'}")
    await coordinator.say(order)
    await coordinator.hears(Exited, key)
    await coordinator.say(Ack(allocations=(key,)))
    await coordinator.until(lambda: not node.runtime.table.entries)
    await node.stop()
    _kill(json.loads((node.dir / "supervisor.pid").read_text())["pid"])
    again = Node(node.dir, f"ws://127.0.0.1:{coordinator.port}")
    await coordinator.connected(2)
    await coordinator.say(order)
    await coordinator.until(lambda: len(coordinator.all(Exited, key)) == 2)
    assert not coordinator.all(Exited, key)[-1].outcome.started
    assert (tmp_path / "ran").read_text() == "once\n"
    await again.stop()


async def test_a_core_held_by_another_job_is_refused(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(launch("j0.1", *LONG), launch("j1.1", grant=Grant(cores=(0,), virtual=True)))
    stale = await coordinator.hears(Stale, "j1.1")
    assert (stale.reason, stale.device) == ("core 0 is held by j0.1", "0")
    assert not coordinator.all(Started, "j1.1")


async def test_a_launch_of_an_older_epoch_is_refused_also_by_the_next_agent(
    coordinator: Coordinator, node: Node
) -> None:
    coordinator.epoch = 4
    await coordinator.cut("agent")
    await coordinator.connected(2)
    await node.stop()
    again = Node(node.dir, f"ws://127.0.0.1:{coordinator.port}")
    coordinator.epoch = 3
    tried = len(coordinator.hellos)
    await coordinator.until(lambda: len(coordinator.hellos) > tried + 1)  # it turned away, and asked again
    assert coordinator.hellos[-1].stamp == Stamp(4, 3, "seal"), "it shows whom it obeys"
    assert len(coordinator.all(Inventory)) == 2
    coordinator.epoch = 5
    await coordinator.until(lambda: len(coordinator.all(Inventory)) == 3)
    await coordinator.say(launch("j0.1", epoch=4))
    assert "epoch 4" in (await coordinator.hears(Stale, "j0.1")).reason
    await again.stop()


async def test_a_second_coordinator_that_claims_the_same_epoch_is_not_obeyed(
    coordinator: Coordinator, node: Node
) -> None:
    await coordinator.connected()
    coordinator.instance = "second"
    await coordinator.cut("agent")
    await coordinator.until(lambda: len(coordinator.hellos) > 2)  # it turned away, and asked again
    assert len(coordinator.all(Inventory)) == 1
    coordinator.instance = "first"
    await coordinator.until(lambda: len(coordinator.all(Inventory)) == 2)


async def test_while_the_node_cannot_keep_whom_it_obeys_nothing_is_started(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await coordinator.connected()
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(node.runtime._fence, "_keep", Mock(side_effect=full))
    coordinator.epoch = 2
    await coordinator.cut("agent")
    await coordinator.connected(2)
    await coordinator.say(launch("j0.1", epoch=2))
    assert "No space left" in (await coordinator.hears(Stale, "j0.1")).reason
    monkeypatch.undo()
    await coordinator.say(launch("j1.1", epoch=2))
    assert (await coordinator.hears(Exited, "j1.1")).outcome.code == 0
    assert json.loads((node.dir / "epoch").read_text()) == ["grid", 2, "first", [2, 3, "seal"]]


async def test_only_while_something_is_leased_heartbeats_ask_for_renewal_and_what_is_answered_reaches_the_supervisor(
    coordinator: Coordinator, node: Node
) -> None:
    await coordinator.until(lambda: len(coordinator.all(Heartbeat)) > 2)
    assert not any(beat.at for beat in coordinator.all(Heartbeat))
    leased = msgspec.structs.replace(launch("j0.1", *LONG), lease=4.0)
    await coordinator.say(leased, msgspec.structs.replace(launch("j1.1", *LONG), lease=4.0), launch("j2.1", *LONG))
    await coordinator.hears(Started, "j2.1")

    def renew() -> bool:
        """Until nobody could live on the first lease."""
        newest = coordinator.all(Heartbeat)[-1].at
        if newest:
            renewed.append(newest)
        return bool(renewed) and newest - renewed[0] > 5.0

    renewed: list[float] = []
    while not renew():
        await coordinator.say(Renewed(at=renewed[-1] if renewed else 0.0))
        await asyncio.sleep(0.1)
    assert not coordinator.all(Exited)
    outcome = (await coordinator.hears(Exited, "j0.1")).outcome  # from now on nobody answers
    assert outcome.cause is Cause.LEASE_EXPIRED
    assert (await coordinator.hears(Exited, "j1.1")).outcome.cause is Cause.LEASE_EXPIRED
    await coordinator.until(lambda: not coordinator.all(Heartbeat)[-1].at)
    assert not coordinator.all(Exited, "j2.1")


async def test_a_lease_that_is_over_while_the_job_is_laid_out_is_not_revived_by_a_later_word(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator may have run it elsewhere by then, and its word to stop may still be on its way."""
    gate = asyncio.Event()

    async def slow(launch: Launch, account: object) -> None:
        await gate.wait()

    monkeypatch.setattr(node.runtime._preparing, "_lay_out", slow)
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


async def test_a_stop_ends_a_job_and_a_signal_reaches_it(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(launch("j0.1", "sh", "-c", "trap 'exit 9' INT; echo up; while :; do sleep 0.01; done"))
    await coordinator.say(launch("j1.1", *LONG))
    await coordinator.hears(Started, "j1.1")
    stdout = node.dir / "allocs/j0.1/stdout"
    await coordinator.until(lambda: stdout.exists() and stdout.read_bytes())
    await coordinator.say(Signal(allocation="j0.1", signal=signal.SIGINT), Stop(allocation="j1.1"))
    assert (await coordinator.hears(Exited, "j0.1")).outcome.code == 9
    outcome = (await coordinator.hears(Exited, "j1.1")).outcome
    assert (outcome.cause, outcome.signal) == (Cause.CANCELLED, signal.SIGTERM)


async def test_a_stop_that_comes_before_its_launch_keeps_it_from_running(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(Stop(allocation="j0.1"), launch("j0.1"))
    outcome = (await coordinator.hears(Exited, "j0.1")).outcome
    assert (outcome.cause, outcome.started) == (Cause.CANCELLED, False)
    await coordinator.say(launch("j0.1"))
    await coordinator.hears(Exited, "j0.1", count=2)
    assert not coordinator.all(Started)


async def test_an_id_that_would_lead_out_of_the_state_directory_fails_alone(
    coordinator: Coordinator, node: Node
) -> None:
    await coordinator.say(launch("../0.1"), launch("j1.1"))
    assert (await coordinator.hears(Exited, "../0.1")).outcome.cause is Cause.WORKDIR_FAILED
    assert (await coordinator.hears(Exited, "j1.1")).outcome.code == 0


async def test_a_job_that_does_not_free_what_is_offered_again_brings_a_new_offer_in_the_same_frame(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.runtime._lender, "would_return", lambda grant, holdings: False)
    await coordinator.say(launch("j0.1"))
    ended = await coordinator.hears(Exited, "j0.1")
    assert not ended.returned
    (frame,) = [frame for frame in coordinator.frames if ended in frame]
    offers = [one for one in frame if isinstance(one, Offer)]
    assert offers and "j0.1" not in offers[-1].counting and frame.index(offers[-1]) > frame.index(ended)


# --- measuring --------------------------------------------------------------------------------------------------------


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


async def test_a_measurement_that_hangs_stops_no_heartbeat_and_gpus_are_told_as_unreadable(
    coordinator: Coordinator, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed_grid.agent.sampling.probe.STUCK_AFTER", 0.1)
    sample = node.probe.sample
    release = threading.Event()

    def hanging(at: float | None = None, read_gpus: bool = True) -> Sample:
        release.wait(20)
        return sample(at, read_gpus)

    newest = node.runtime._meter.newest
    assert newest is not None
    node.runtime._meter.newest = msgspec.structs.replace(newest, gpus=(GpuSample("GPU-a", memory_total=1),))
    monkeypatch.setattr(node.probe, "sample", hanging)
    stuck = await coordinator.until(
        lambda: [one for one in coordinator.all(Heartbeat) if "hangs" in one.sample.gpu_error]
    )
    before = len(coordinator.all(Heartbeat))
    await coordinator.hears(Heartbeat, count=before + 3)
    assert all("hangs" in gpu.error for gpu in stuck[-1].sample.gpus)
    release.set()


# --- bulk data --------------------------------------------------------------------------------------------------------


async def test_output_is_told_as_it_comes_to_many_who_wait(
    coordinator: Coordinator, node: Node, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    await coordinator.say(launch("j0.1", "sh", "-c", f"read x < {gate}; printf 'a\\rb'; printf c >&2"))
    await coordinator.hears(Started, "j0.1")
    await coordinator.open_data()
    want = WantOutput(id=0, allocation="j0.1", stream="stdout", offset=0, size=100, wait=20)
    await coordinator.say_data(*[msgspec.structs.replace(want, id=number) for number in range(50)])
    await let_through(gate)
    for number in range(50):
        answer = await coordinator.answers(number)
        assert isinstance(answer, Output) and answer.data == b"a\rb"
    await coordinator.say_data(WantOutput(id=100, allocation="j0.1", stream="stdout", offset=3, size=9, wait=20))
    last = await coordinator.answers(100)
    assert (last.data, last.end) == (b"", True)


async def test_files_are_listed_and_read_and_nothing_outside_is(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(launch("j0.1", "sh", "-c", "mkdir out; printf hello > out/a; ln -s /etc/passwd out/p"))
    await coordinator.hears(Exited, "j0.1")
    await coordinator.open_data()
    await coordinator.say_data(
        WantFiles(id=1, allocation="j0.1", globs=("out/*",)),
        WantFile(id=2, allocation="j0.1", path="out/a", offset=1, size=100),
        WantFile(id=3, allocation="j0.1", path="../../../lock", offset=0, size=100),
        WantFile(id=4, allocation="j0.1", path="out/p", offset=0, size=100),
        WantFiles(id=5, allocation="never.1", globs=("*",)),
    )
    listed = await coordinator.answers(1)
    assert isinstance(listed, Files) and [(one.path, one.size) for one in listed.files] == [("out/a", 5)]
    assert await coordinator.answers(2) == FileData(id=2, data=b"ello", end=True)
    assert (await coordinator.answers(3)).error and (await coordinator.answers(4)).error
    assert "never.1" in (await coordinator.answers(5)).error


async def test_the_data_connection_is_opened_again_after_it_broke(coordinator: Coordinator, node: Node) -> None:
    await coordinator.say(launch("j0.1", "printf", "x"))
    await coordinator.hears(Exited, "j0.1")
    await coordinator.open_data()
    await coordinator.cut("agent-data")
    await coordinator.open_data()
    await coordinator.say_data(WantOutput(id=1, allocation="j0.1", stream="stdout", offset=0, size=9))
    assert (await coordinator.answers(1)).data == b"x"
    hellos = [hello for hello in coordinator.hellos if hello.role == "agent-data"]
    assert [(hello.session, hello.facts) for hello in hellos] == [("s1", None)] * 2


def shipped(coordinator: Coordinator, files: dict[str, bytes]) -> str:
    entries = [Entry(path, size=len(content), blob=blob_hash(content)) for path, content in files.items()]
    manifest = encode_manifest(Manifest(tuple(entries)))
    for content in (manifest, *files.values()):
        coordinator.blobs[blob_hash(content)] = content
    return blob_hash(manifest)


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
    assert not node.runtime._preparing._tasks


# --- the agent's process ----------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from distributed_grid.agent.main import AgentSettings, main
from distributed_grid.config.schema import Agent, ResourceSharing, Thresholds
from distributed_grid.config.settings import ClusterConfig
thresholds = Thresholds(cpu_percent_max=100.0, memory_percent_max=100.0, memory_min_gb=0)
sys.exit(main(AgentSettings(ClusterConfig(
    agent=Agent(
        state_dir=sys.argv[1], cores=tuple(range(8)), virtual=True, gpu_backend="none", trust="everyone",
        offer_after=0.0, reserve_memory_gb=0, nice=0, cgroup="none",
    ),
    resource_sharing=ResourceSharing(monitoring_interval_seconds=0.2, thresholds=thresholds),
), "node1", sys.argv[2], {})))
"""


def start(state_dir: Path, url: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(state_dir), url], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path / "state"
    await clean(tmp_path / "state")


async def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, errors = await asyncio.wait_for(asyncio.to_thread(process.communicate), 60)
    return process.returncode, errors


async def test_jobs_run_on_when_the_agent_is_killed_and_the_next_one_adopts_them(
    coordinator: Coordinator, home: Path, tmp_path: Path
) -> None:
    url = f"ws://127.0.0.1:{coordinator.port}"
    gate = tmp_path / "gate"
    first = start(home, url)
    await coordinator.connected()
    os.mkfifo(gate)
    script = f"echo begun; read x < {gate}; echo done; exit 6"
    await coordinator.say(launch("j0.1", "sh", "-c", script), launch("j1.1", *LONG))
    await coordinator.hears(Started, "j0.1")
    await coordinator.hears(Started, "j1.1")
    first.send_signal(signal.SIGKILL)
    await ended(first)
    second = start(home, url)
    await coordinator.connected(2)
    known = coordinator.all(Inventory)[-1].known
    assert {(one.allocation, one.state) for one in known} == {("j0.1", State.RUNNING), ("j1.1", State.RUNNING)}
    assert set(coordinator.all(Offer)[-1].counting) == {"j0.1", "j1.1"}
    facts = [hello.facts for hello in coordinator.hellos]
    assert [one.incarnation for one in facts if one] == [1, 2]
    assert len({one.instance for one in facts if one}) == 1
    await coordinator.say(launch("j2.1", grant=Grant(cores=(1,), virtual=True)), launch("j0.1", "sh", "-c", script))
    assert "held by j1.1" in (await coordinator.hears(Stale, "j2.1")).reason
    await let_through(gate)
    outcome = (await coordinator.hears(Exited, "j0.1")).outcome
    assert (outcome.code, outcome.stdout_tail) == (6, b"begun\ndone\n")
    second.send_signal(signal.SIGTERM)
    assert (await ended(second))[0] == 0


async def test_an_agent_without_walls_refuses_what_is_not_its_owners(coordinator: Coordinator, home: Path) -> None:
    url = f"ws://127.0.0.1:{coordinator.port}"
    program = PROGRAM.replace('trust="everyone"', 'walls="none", owners=("ann",)')
    agent = subprocess.Popen([sys.executable, "-c", program, str(home), url], stderr=subprocess.PIPE, text=True)
    await coordinator.connected()
    await coordinator.say(msgspec.structs.replace(launch("j0.1", "true"), user="eve"))
    stale = await coordinator.hears(Stale, "j0.1")
    assert stale.reason == "its walls are none, and it runs jobs of its owners only"
    await coordinator.say(msgspec.structs.replace(launch("j1.1", "true"), user="ann", walls=Walls.USER))
    assert "the job asks for user" in (await coordinator.hears(Stale, "j1.1")).reason
    await coordinator.say(msgspec.structs.replace(launch("j2.1", "true"), user="ann"))
    assert (await coordinator.hears(Started, "j2.1")).walls == "none"
    assert (await coordinator.hears(Exited, "j2.1")).outcome.code == 0
    agent.send_signal(signal.SIGTERM)
    assert (await ended(agent))[0] == 0


async def test_an_agent_that_is_told_to_go_leaves_its_jobs_running(coordinator: Coordinator, home: Path) -> None:
    agent = start(home, f"ws://127.0.0.1:{coordinator.port}")
    await coordinator.connected()
    await coordinator.say(launch("j0.1", *LONG))
    pid = (await coordinator.hears(Started, "j0.1")).pid
    agent.send_signal(signal.SIGTERM)
    code, errors = await ended(agent)
    assert code == 0 and "agent node1 is up" in errors and "Traceback" not in errors
    assert _alive(pid)


async def test_a_second_agent_on_one_state_directory_says_so_and_fails(coordinator: Coordinator, home: Path) -> None:
    url = f"ws://127.0.0.1:{coordinator.port}"
    first = start(home, url)
    await coordinator.connected()
    code, errors = await ended(start(home, url))
    assert code == 1 and f"error: another agent runs on {home}" in errors and "Traceback" not in errors
    assert len(coordinator.hellos) == 1
    first.send_signal(signal.SIGTERM)
    await ended(first)


async def test_a_name_that_is_taken_is_one_clear_error(coordinator: Coordinator, home: Path) -> None:
    coordinator.answer = Refused("a node named 'node1' is connected already", "it lives", "take another", final=True)
    code, errors = await ended(start(home, f"ws://127.0.0.1:{coordinator.port}"))
    assert code == 1 and errors.endswith(
        "error: a node named 'node1' is connected already\n  why: it lives\n  try: take another\n"
    )


@pytest.mark.parametrize("url", ["http://x", "nonsense", "ws://"])
async def test_an_address_that_is_none_is_one_clear_error(home: Path, url: str) -> None:
    code, errors = await ended(start(home, url))
    assert code == 1 and "is no address of a coordinator" in errors and "Traceback" not in errors


async def test_a_state_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, errors = await ended(start(tmp_path / "file" / "state", "ws://127.0.0.1:1"))
    assert code == 1 and "cannot be written" in errors and "Traceback" not in errors
