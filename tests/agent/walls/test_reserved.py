"""What a stranger's job in namespaces reaches of what only the agent's user may use."""

import ctypes
import os
import pty
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from distributed_grid.agent.walls import enclosure, reserved, syscalls
from distributed_grid.agent.walls.enclosure import NAMESPACE, Slot
from distributed_grid.agent.walls.leftovers import MEMORY, Leftovers
from tests.agent.walls.test_enclosure import in_a_child

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes a machine with another user: needs root")
USER, ENGINES, HOME = 60_901, 60_950, Path("/media/home")
ENGINE, SCREEN, OPEN = "/media/engine.sock", "/media/screens/1.sock", "/media/open.sock"

QUEUES = Path("/dev/mqueue")


class Machine:
    """In a mount and IPC namespace of its own: a user with a home, a terminal, a POSIX queue and a session behind a
    socket, in the group that may use another one, as that of a container engine; and a socket for everybody."""

    def __init__(self) -> None:
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC)
        syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_SLAVE)
        syscalls.mount("tmpfs", "/media", "tmpfs", data="mode=0755")
        for folder in (HOME, Path("/media/state/recalls"), Path("/media/state/jobs/s1"), Path("/media/screens")):
            folder.mkdir(parents=True)
            os.chown(folder, USER, USER)
        HOME.chmod(0o700)
        Path("/media/screens").chmod(0o700)
        (HOME / "key").write_text("SECRET")
        Path("/media/passwd").write_text(f"{Path('/etc/passwd').read_text()}keeper:x:{USER}:{USER}::{HOME}:/bin/sh\n")
        syscalls.mount("/media/passwd", "/etc/passwd", flags=syscalls.MS_BIND)
        syscalls.mount("mqueue", "/dev/mqueue", "mqueue")
        self.servers = [served(ENGINE, 0, ENGINES, 0o660), served(SCREEN, USER, USER, 0o666), served(OPEN, 0, 0, 0o666)]
        self.open = pty.openpty()
        self.terminal = os.ttyname(self.open[1])
        os.chown(self.terminal, USER, -1)
        os.setgroups([ENGINES])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        assert ctypes.CDLL(None).mq_open(b"/keepers", os.O_CREAT | os.O_RDWR, 0o600, None) >= 0
        for path in (ENGINE, SCREEN, OPEN):
            assert reached(path)


def served(path: str, uid: int, gid: int, mode: int) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    os.chown(path, uid, gid)
    os.chmod(path, mode)
    server.listen()
    return server


def reached(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def on_a_machine(private: bool, act: Callable[[Machine], None], afterwards: Callable[[], None] = lambda: None) -> None:
    """Do the one in a slot of a stranger or an owner, and the other where the agent is."""
    slot = Slot(
        "s1", NAMESPACE, "/media/state/jobs/s1", "/media/state", USER, USER, login="ann" * private, private=private
    )

    def begin() -> None:
        machine = Machine()

        def enter() -> None:
            enclosure.enter(slot)
            in_a_child(settle)

        def settle() -> None:
            enclosure.settle(slot)
            act(machine)

        in_a_child(enter)
        afterwards()

    made = not QUEUES.exists()
    QUEUES.mkdir(exist_ok=True)
    try:
        in_a_child(begin)
    finally:
        if made:
            QUEUES.rmdir()


def test_the_home_is_hidden_though_the_job_has_another_one_by_that_user_id() -> None:
    def act(_: Machine) -> None:
        assert os.listdir(HOME) == []

    on_a_machine(True, act)


def test_sockets_for_the_users_id_or_groups_are_out_of_reach_and_those_for_everybody_are_not() -> None:
    def act(_: Machine) -> None:
        assert [reached(path) for path in (ENGINE, SCREEN, OPEN)] == [False, False, True]

    on_a_machine(True, act)


def test_the_users_terminals_are_not_there_and_those_of_the_job_are() -> None:
    def act(machine: Machine) -> None:
        assert not os.path.exists(machine.terminal)
        _, ours = pty.openpty()
        assert os.write(os.open(os.ttyname(ours), os.O_RDWR | os.O_NOCTTY), b"x") == 1

    on_a_machine(True, act)


def test_the_users_queues_outlive_what_the_job_left() -> None:
    def act(_: Machine) -> None:
        assert ctypes.CDLL(None).mq_open(b"/strangers", os.O_CREAT | os.O_RDWR, 0o600, None) >= 0
        assert os.listdir("/dev/mqueue") == ["strangers"]
        Leftovers(USER).clear(MEMORY)
        assert os.listdir("/dev/mqueue") == []

    def afterwards() -> None:
        assert os.listdir("/dev/mqueue") == ["keepers"]

    on_a_machine(True, act, afterwards)


def test_an_owners_job_reaches_all_of_it() -> None:
    def act(machine: Machine) -> None:
        assert (HOME / "key").exists() and os.path.exists(machine.terminal)
        assert all(map(reached, (ENGINE, SCREEN, OPEN)))

    on_a_machine(False, act)


def test_a_link_that_a_job_put_in_place_of_its_socket_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = [served(str(tmp_path / name), 0, 0, 0o600) for name in ("socket", "elsewhere")]
    (tmp_path / "program").touch()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    covered: list[str] = []
    monkeypatch.setattr(syscalls, "mount", lambda _, target, **how: covered.append(os.readlink(target)))
    for name in ("socket", "link", "program"):
        reserved._cover_one(str(tmp_path / name))
    assert covered == [str(tmp_path / "socket")]
    for server in servers:
        server.close()
