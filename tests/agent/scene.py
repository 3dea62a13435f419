"""An agent with real jobs under a real supervisor, and a coordinator that is played by the test over a real socket."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.agent.gpus.base import NoGpus
from distributed_grid.agent.launch.launcher import Launcher
from distributed_grid.agent.runtime import Runtime, RuntimeSettings
from distributed_grid.agent.sampling.probe import Probe
from distributed_grid.agent.settings import NodeSettings
from distributed_grid.agent.supervisor import procs
from distributed_grid.protocol.bundle import Entry, Manifest, blob_hash, encode_manifest
from distributed_grid.protocol.jobs import JobSpec
from distributed_grid.protocol.link import PROTOCOL, Link
from distributed_grid.protocol.messages import (
    BlobData,
    Hello,
    Inventory,
    Launch,
    OpenData,
    Refused,
    WantBlob,
    Welcome,
)
from distributed_grid.protocol.nodes import Layer, Lending, Stamp
from distributed_grid.protocol.resources import Grant
from tests import forked
from tests.agent import supervisors

M = TypeVar("M")


LENIENT = Limits(
    offer_after=0.0,
    cpu_percent_max=100.0,
    memory_percent_max=100.0,
    memory_min=0,
    reserve_memory=0,
    owner_pressure=100.0,
)
"""However much the machine of these tests is used."""


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
        self.settings = Layer()
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
        """Disappear as if killed: without a goodbye, and without a listener."""
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
            known["settings"] = self.settings
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
        await self.say(OpenData())
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
        """Wait for `count` messages of this kind, and return the latest."""
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


def settings(state_dir: Path, limits: Limits, interval: float) -> NodeSettings:
    """Return the settings of an agent whose own configuration is empty."""
    return NodeSettings(state_dir, Layer(), Lending(monitoring_interval_seconds=interval), limits)


class Node:
    """An agent in this process."""

    def __init__(self, state_dir: Path, url: str, trusts: str = "", hidden: str = "") -> None:
        self.dir = state_dir
        self.probe = Probe(CORES, 0, NoGpus(), virtual=True, own_roots=lambda: (os.getpid(),))
        process = supervisors.started(state_dir)
        self.launcher = Launcher(state_dir, lambda told: self.runtime.feed(told), process=process)
        facts = self.probe.facts("node1", 1, LENIENT)
        place = RuntimeSettings(url, state_dir, trusts=trusts, hidden=hidden)
        self.settings = settings(state_dir, LENIENT, 0.2)
        self.settings.load()
        self.runtime = Runtime(place, facts, self.settings, self.probe, self.launcher)
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
        while left := [pid for pid in procs.all_pids() if _works_in(state_dir, pid) and _alive(pid)]:
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
    (tmp_path / "agent").mkdir()
    one = Node(tmp_path / "agent", f"ws://127.0.0.1:{coordinator.port}")
    await coordinator.connected()
    yield one
    await one.stop()
    await clean(one.dir)


async def open_gate(gate: Path) -> None:
    """Let the job continue that reads from this FIFO. Never waits in a thread, which could not be ended."""
    async with asyncio.timeout(60):
        while True:
            try:
                fd = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:  # nobody reads yet
                await asyncio.sleep(0.01)
    os.write(fd, b"go\n")
    os.close(fd)


def shipped(coordinator: Coordinator, files: dict[str, bytes]) -> str:
    entries = [Entry(path, size=len(content), blob=blob_hash(content)) for path, content in files.items()]
    manifest = encode_manifest(Manifest(tuple(entries)))
    for content in (manifest, *files.values()):
        coordinator.blobs[blob_hash(content)] = content
    return blob_hash(manifest)


# --- the agent's process ----------------------------------------------------------------------------------------------


PROGRAM = """
import sys
from distributed_grid.agent.main import AgentSettings, main
from distributed_grid.config.schema import Agent
from distributed_grid.config.sharing import ResourceSharing, Thresholds
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


@dataclass
class Program:
    """The agent's process, and the file with all that it says."""

    process: "subprocess.Popen[bytes] | forked.Service"
    log: Path

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)


def start(state_dir: Path, url: str, program: str = PROGRAM) -> Program:
    """Start a program in a fork of an interpreter that has imported everything, if that is possible for it."""
    folder = Path(tempfile.mkdtemp(prefix="agent-", dir=next(one for one in state_dir.parents if one.is_dir())))
    file, log, words = folder / "program.py", folder / "log", [str(state_dir), url]
    file.write_text(program)
    with log.open("wb") as said:
        if forked.can_run(os.environ):
            return Program(forked.program(file, words, os.environ, folder, said), log)
        return Program(subprocess.Popen([sys.executable, str(file), *words], stdout=said, stderr=said), log)


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path / "state"
    await clean(tmp_path / "state")


async def ended(agent: Program) -> tuple[int, str]:
    """Wait for its end; returns its exit code and output."""
    code = await asyncio.wait_for(asyncio.to_thread(agent.process.wait), 60)
    return code, agent.log.read_text()
