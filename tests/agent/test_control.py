"""The agent's own socket: whoever connects is judged before a word of theirs is read."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from distributed_grid.agent.control import CLOSED, SOCKET, Control
from distributed_grid.agent.core.table import Table
from distributed_grid.agent.launch.launcher import Launcher

ASK = """
import os, socket, sys
ours = socket.socket(socket.AF_UNIX)
ours.connect(sys.argv[1])
def ask():
    try: ours.sendall(b'{"op":"stop","jobs":"kill"}\\n')
    except BrokenPipeError: pass  # refused before it was asked
    print(ours.makefile().readline(), flush=True)
"""
LIVES = ASK + "ask()"
PASSES_ON = ASK + "if os.fork() == 0: ask()"


class Agent:
    """A Control whose agent is this process, so that what the test starts is below it: a job."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / SOCKET
        self.killed: list[str] = []
        launcher = Launcher(state_dir, lambda _: None)
        about = lambda: {"node": "n1", "connected_for": None}  # noqa: E731
        self.changed = asyncio.Event()
        self.control = Control(state_dir, launcher, Table(), about, self.killed.append, self.changed.set)


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    made = Agent(tmp_path)
    running = asyncio.create_task(made.control.run())
    while not made.path.exists():  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    yield made
    running.cancel()
    await asyncio.wait({running})


async def answer(agent: Agent, *words: str) -> Any:
    """What a program is answered at the socket; it may have ended before the agent accepts it."""
    with subprocess.Popen([sys.executable, "-c", *words], stdout=subprocess.PIPE) as process:
        if words[0] is PASSES_ON:
            process.wait()
        assert process.stdout is not None
        said = await asyncio.to_thread(process.stdout.readline)
    return json.loads(said or b"null")


async def test_a_job_is_refused(agent: Agent) -> None:
    said = await answer(agent, LIVES, str(agent.path))
    assert "a job may not order its own node" in said["error"]
    assert not agent.killed and not agent.control.closed


async def test_a_connection_that_a_job_passed_on_before_it_ended_is_refused(agent: Agent) -> None:
    for _ in range(5):
        said = await answer(agent, PASSES_ON, str(agent.path))
        assert "the process that connected is gone" in said["error"]
    assert not agent.killed and not agent.control.closed


async def test_a_node_stays_closed_until_the_last_request_to_stop_is_withdrawn(agent: Agent) -> None:
    async def drain() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_unix_connection(agent.path)
        writer.write(b'{"op":"stop","jobs":"drain"}\n')
        assert json.loads(await reader.readline()) == {"ready": True, "left": 0}
        return writer

    first, second = await drain(), await drain()
    agent.changed.clear()
    first.close()
    await agent.changed.wait()
    assert agent.control.closed == CLOSED
    agent.changed.clear()
    second.close()
    await agent.changed.wait()
    assert not agent.control.closed


async def test_the_agents_user_is_answered(tmp_path: Path) -> None:
    """From a process that is not below it."""
    served = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom tests.agent.test_control import Agent\n"
        "made = Agent(Path(sys.argv[1]))\nasyncio.run(made.control.run())"
    )
    with subprocess.Popen([sys.executable, "-c", served, str(tmp_path)], cwd=Path(__file__).parents[2]) as process:
        path = tmp_path / SOCKET
        try:
            async with asyncio.timeout(30):
                while True:
                    try:
                        reader, writer = await asyncio.open_unix_connection(path)
                        break
                    except OSError:
                        await asyncio.sleep(0.01)
                writer.write(b'{"op":"status"}\n')
                assert json.loads(await reader.readline()) == {"node": "n1", "connected_for": None}
            writer.close()
        finally:
            process.kill()
