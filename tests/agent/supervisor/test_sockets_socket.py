"""The supervisor's end of its talk with the agent: what leaves when."""

import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import NEVER
from distributed_grid.agent.supervisor.sockets import PATIENCE, AgentSocket, FilesSocket
from distributed_grid.agent.walls.enclosure import NAMESPACE, Slot
from distributed_grid.agent.walls.forkserver import ForkServer


class Talk:
    """An AgentSocket with an agent that has heard its greeting."""

    def __init__(self, state_dir: Path) -> None:
        self.selector = selectors.DefaultSelector()
        greet, hear, is_job = (lambda: {"op": "hello"}), (lambda _: None), (lambda _: False)
        self.ours = AgentSocket(str(state_dir), self.selector, greet, hear, print, is_job, lambda: None)
        self.agent = socket.socket(socket.AF_UNIX)
        folder = os.open(state_dir, os.O_RDONLY)
        self.agent.connect(f"/proc/self/fd/{folder}/supervisor.sock")
        os.close(folder)
        for key, _ in self.selector.select(60):
            key.data()
        self.ours.flush()
        assert self.heard() == b'{"op":"hello"}\n'

    def heard(self) -> bytes:
        try:
            return self.agent.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    talk = Talk(tmp_path)
    yield talk
    talk.agent.close()
    talk.selector.close()


COME = """
import os, socket, sys
ours = socket.socket(socket.AF_UNIX)
ours.connect(sys.argv[1])
if sys.argv[2] == "passes it on" and os.fork():
    os._exit(0)
print("connected", flush=True)
print(ours.recv(100) or "refused", flush=True)
"""


@pytest.mark.parametrize("how", ["stays", "passes it on"])
def test_a_job_does_not_take_the_agents_place(talk: Talk, tmp_path: Path, how: str) -> None:
    """What the supervisor, which is this process, has below it is a job, whoever writes on its connection."""
    words = [sys.executable, "-c", COME, str(tmp_path / "supervisor.sock"), how]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None and job.stdout.readline() == "connected\n"
        if how == "passes it on":
            job.wait()
        for key, _ in talk.selector.select(60):
            key.data()
        assert job.stdout.readline() == "refused\n"
    talk.ours.tell({"op": "exited"})
    talk.ours.flush()
    assert talk.heard() == b'{"op":"exited"}\n'


def test_a_patient_message_goes_with_the_next_one_and_before_it(talk: Talk) -> None:
    before = procs.now()
    talk.ours.tell({"op": "started"}, patient=True)
    assert before + PATIENCE <= talk.ours.due <= procs.now() + PATIENCE
    talk.ours.tell({"op": "exited"})
    talk.ours.flush()
    assert talk.heard() == b'{"op":"started"}\n{"op":"exited"}\n'
    assert talk.ours.due == NEVER


def test_a_patient_message_goes_alone_when_it_is_due(talk: Talk) -> None:
    talk.ours.tell({"op": "started"}, patient=True)
    due = talk.ours.due
    heard = b""
    while not heard:
        talk.ours.flush()
        heard = talk.heard()
    assert procs.now() >= due
    assert heard == b'{"op":"started"}\n'
    assert talk.ours.due == NEVER


def test_what_the_agent_does_not_take_yet_is_due_at_once_and_comes_whole(talk: Talk) -> None:
    sent = b""
    while talk.ours.due == NEVER:
        talk.ours.tell({"op": "x" * 10_000})
        talk.ours.flush()
        sent += b'{"op":"' + b"x" * 10_000 + b'"}\n'
    assert talk.ours.due == 0.0
    heard = b""
    while len(heard) < len(sent):
        heard += talk.heard()
        talk.ours.flush()
    assert heard == sent
    assert talk.ours.due == NEVER


class Forks:
    """A fork server that notes for which slots it was asked."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []

    def serve_files(self, slot: Slot, peer: socket.socket) -> None:
        self.slots.append(slot)


def test_the_files_of_a_strangers_job_are_read_where_the_agents_user_is_hidden(tmp_path: Path) -> None:
    forks, selector = Forks(), selectors.DefaultSelector()
    FilesSocket(str(tmp_path), NAMESPACE, "", cast(ForkServer, forks), selector, print, lambda _: False)
    folder = os.open(tmp_path, os.O_RDONLY)
    for count, name in enumerate(("0a1b", "o0a1b"), 1):
        (tmp_path / "jobs" / name).mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(f"/proc/self/fd/{folder}/files.sock")
            agent.sendall(b'{"slot": "%s"}\n' % name.encode())
            while len(forks.slots) < count:
                for key, _ in selector.select(60):
                    key.data()
    os.close(folder)
    assert [slot.private for slot in forks.slots] == [True, False]
    selector.close()
