"""The fork server is a process of its own that makes spawners, is replaced when it is gone, and makes nobody a person.
(What its spawners do: test_spawner.py.)"""

import errno
import fcntl
import gc
import os
import select
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.agent.walls import accounts, forkserver, syscalls, wire
from distributed_grid.agent.walls.enclosure import NONE, Slot
from distributed_grid.agent.walls.forkserver import ForkServer, ForkServerGone

SLOT_UID = accounts.LAST_UID


def hears(channel: socket.socket) -> wire.Message:
    """The next message of a spawner."""
    assert select.select([channel], [], [], 30.0)[0], "it says nothing"
    return wire.receive(channel)[0]


def made_by(server: ForkServer, folder: Path) -> int:
    """The pid of a spawner, once it is ready; it is ended by the end of its channel."""
    note = os.open(folder / "note", os.O_RDWR | os.O_CREAT, 0o600)
    wanted = Slot("s1", NONE, str(folder / "slot"), str(folder), os.geteuid(), os.getegid())
    with server.make(wanted, note) as channel:
        os.close(note)
        made = hears(channel)
        assert made["op"] == "made" and hears(channel)["op"] == "ready"
    return int(made["pid"])


def test_a_spawner_is_no_child_of_the_fork_server(fork_server: ForkServer, tmp_path: Path) -> None:
    pid = made_by(fork_server, tmp_path)
    assert pid not in (fork_server.pid, os.getpid())
    assert (tmp_path / "slot").stat().st_mode & 0o777 == 0o700, "its slot has a directory of its own"


def test_a_slot_that_cannot_be_made_is_told_in_words(fork_server: ForkServer, tmp_path: Path) -> None:
    wanted = Slot("s1", NONE, str(tmp_path / "not" / "there"), str(tmp_path), os.geteuid(), os.getegid())
    with fork_server.make(wanted, 2) as channel:
        told = {"op": "failed", "text": "No such file or directory", "cause": "spawn-failed"}
        assert hears(channel) == told, "and a folder that is not there is no fault of the disk"


def test_one_that_is_gone_is_replaced_by_the_next_request(fork_server: ForkServer, tmp_path: Path) -> None:
    first = fork_server.pid
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    assert made_by(fork_server, tmp_path) and fork_server.pid != first


@pytest.mark.parametrize("which", [2, 3], ids=["the first of two", "the second of two"])
def test_where_a_fork_fails_that_is_told_and_it_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    forked, fork = 0, os.fork

    def once_not() -> int:
        nonlocal forked
        forked += 1
        if forked == which:  # in the fork server, which was the first one, or in its child
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", once_not)
        server = ForkServer()
    wanted = Slot("s1", NONE, str(tmp_path / "slot"), str(tmp_path), os.geteuid(), os.getegid())
    with server.make(wanted, 2) as channel:
        said = hears(channel)
    assert said["op"] == "failed" and said["text"].endswith("Resource temporarily unavailable")
    if which == 2:  # else each of its children fails once
        assert made_by(server, tmp_path)
    assert os.waitpid(server.pid, os.WNOHANG) == (0, 0)
    server.close()
    os.waitpid(server.pid, 0)


def test_garbage_of_its_parent_closes_nothing_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else `ready` could come before `made`: the pipe between the two processes would be closed."""
    send, pipe = wire.send, os.pipe
    gc.disable()
    garbage: list[Any] = [os.fdopen(os.open(os.devnull, os.O_RDONLY)) for _ in range(40)]
    theirs = garbage[0].fileno()
    garbage.append(garbage)
    del garbage

    def collect_and_send(channel: socket.socket, message: wire.Message, *fds: Any) -> None:
        gc.collect()
        if message["op"] == "made":
            os.fstat(theirs)
        send(channel, message, *fds)

    def pipe_by_the_same_numbers() -> tuple[int, int]:
        low = pipe()
        reads, writes = (fcntl.fcntl(fd, fcntl.F_DUPFD, theirs) for fd in low)
        for fd in low:
            os.close(fd)
        return reads, writes

    monkeypatch.setattr(wire, "send", collect_and_send)
    monkeypatch.setattr(os, "pipe", pipe_by_the_same_numbers)
    server = ForkServer()
    gc.enable()
    assert made_by(server, tmp_path)
    server.close()
    os.waitpid(server.pid, 0)


def test_where_there_can_be_no_other_one_that_is_said(fork_server: ForkServer, tmp_path: Path) -> None:
    fork_server.only = True
    with pytest.raises(ForkServerGone):
        fork_server.start()
    assert made_by(fork_server, tmp_path), "the one that is there serves on"


def test_it_ends_with_its_channel_and_signals_do_not_end_it(tmp_path: Path) -> None:
    server = ForkServer()
    made_by(server, tmp_path)  # so it has begun, and ignores signals
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(server.pid, signum)
    assert os.waitpid(server.pid, os.WNOHANG) == (0, 0)
    server.close()
    assert os.waitstatus_to_exitcode(os.waitpid(server.pid, 0)[1]) == 0


def test_whoever_has_all_rights_that_it_takes_is_privileged(monkeypatch: pytest.MonkeyPatch) -> None:
    for permitted, enough in (
        (forkserver.PRIVILEGES, True),
        (forkserver.PRIVILEGES | 1, True),
        (1 << syscalls.CAP_SETUID, False),
        (0, False),
    ):
        monkeypatch.setattr(syscalls, "capabilities", lambda permitted=permitted: (0, permitted, 0))
        assert forkserver.privileged() is enough


def test_a_service_makes_nobody_a_person_or_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 60_777)
    monkeypatch.setattr(os, "getegid", lambda: 60_777)
    forkserver._check_user(60_777, 60_777)
    forkserver._check_user(SLOT_UID, SLOT_UID)
    for uid, gid, groups in ((0, 0, ()), (1000, 1000, ()), (SLOT_UID, 0, ()), (SLOT_UID, SLOT_UID, (0,))):
        with pytest.raises(PermissionError):
            forkserver._check_user(uid, gid, groups)
