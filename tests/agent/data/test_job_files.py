"""The files of jobs: listed and read as the job could, and laid out nowhere else."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from distributed_grid.agent.data.job_files import JobFiles, shipped
from distributed_grid.agent.supervisor.sockets import FILES_SOCKET
from distributed_grid.agent.walls.files_socket import serve
from distributed_grid.protocol.bundle import Entry, Kind, Manifest, blob_hash
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.messages import (
    Exited,
    FileData,
    Files,
    WantFile,
    WantFiles,
)
from tests.agent.scene import Coordinator, Node, launch
from tests.agent.scene import coordinator as coordinator
from tests.agent.scene import node as node


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


def file(path: str, content: bytes = b"x") -> Entry:
    return Entry(path, size=len(content), blob=blob_hash(content))


def test_a_manifest_is_laid_out_by_numbers_of_its_blobs_each_of_which_is_there_once() -> None:
    link = Entry("here", Kind.LINK, target="a")
    entries, blobs = shipped(Manifest((file("a"), file("b"), file("c", b"other"), link)))
    assert blobs == [blob_hash(b"x"), blob_hash(b"other")]
    assert [(one[1], one[5]) for one in entries] == [(b"a", 0), (b"b", 0), (b"c", 1), (b"here", -1)]


@pytest.mark.parametrize(
    "entry",
    [
        file("../a"),
        file("/etc/passwd"),
        file("a/../../b"),
        Entry("a", Kind.LINK, target="../../etc"),
        Entry("a", Kind.LINK, target="/etc"),
        Entry("a", blob="../../spec"),
        Entry("a"),
    ],
)
def test_a_manifest_that_would_write_elsewhere_or_read_other_files_is_refused(entry: Entry) -> None:
    with pytest.raises(BadValue):
        shipped(Manifest((entry,)))


# --- the process with the job's rights --------------------------------------------------------------------------------


def killed(_: socket.socket) -> None:
    """As by another process of its user: it has taken the question, and answers nothing."""


@contextmanager
def processes(state: Path, *do: Callable[[socket.socket], None]) -> Iterator[JobFiles]:
    """For each connection a process that does this with it, in turn."""
    made = list[int]()

    def accept() -> None:
        for does in do:
            wire, _ = listening.accept()
            with wire.makefile("rb", 0) as asked:
                asked.readline()
            if not (pid := os.fork()):
                os.closerange(3, wire.fileno())  # also the caller's end, which is in this process
                os.closerange(wire.fileno() + 1, 1024)
                try:
                    does(wire)
                finally:
                    os._exit(0)
            made.append(pid)
            wire.close()

    (state / "jobs" / "s1" / "j0.1").mkdir(parents=True)
    (state / "jobs" / "s1" / "j0.1" / "a").write_bytes(b"hello")
    files = JobFiles(state)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(state / FILES_SOCKET))
        listening.listen()
        thread = Thread(target=accept)
        thread.start()
        yield files
        thread.join(60)
    files.close()
    for pid in made:
        os.waitpid(pid, 0)


def test_where_the_process_was_killed_another_one_does_it(tmp_path: Path) -> None:
    with processes(tmp_path, killed, serve) as files:
        assert files.read("s1", files.root("s1", "j0.1"), "a", 1, 100) == (b"ello", True, 0)


def test_where_the_next_one_is_killed_too_it_is_told(tmp_path: Path) -> None:
    with processes(tmp_path, killed, killed) as files, pytest.raises(GridError, match="cannot be accessed") as caught:
        files.read("s1", files.root("s1", "j0.1"), "a", 1, 100)
    assert caught.value.why == "the job's side ended before it answered"


def test_what_lies_in_a_slot_is_told_and_removed_with_its_users_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the agent is not root, and its jobs are users of their own."""
    with processes(tmp_path, serve) as files:
        (tmp_path / "jobs" / "s1" / os.fsdecode(b"\xff")).mkdir()
        monkeypatch.setattr(os, "geteuid", lambda: -1)
        assert sorted(files.names("s1")) == ["j0.1", "\udcff"]
        files.remove("s1", "\udcff")
        monkeypatch.undo()
    assert os.listdir(tmp_path / "jobs" / "s1") == ["j0.1"]
