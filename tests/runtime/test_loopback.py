"""The kernel says who is at the other end of a TCP connection of this machine, and a stranger's coordinator gets
nothing."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from distributed_grid.runtime import loopback
from distributed_grid.runtime.loopback import NotTrusted, UnknownUser

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can come as somebody else")
# Listens, says where, accepts one connection, and says what came over it until it was closed.
STRANGER = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
there = socket.create_server(("127.0.0.1", 0))
print(there.getsockname()[1], flush=True)
ours, _ = there.accept()
print(ours.recv(100), flush=True)
"""


@contextmanager
def stranger(uid: int) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    command = [sys.executable, "-c", STRANGER, str(uid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


@contextmanager
def pair(listening: socket.socket, host: str, family: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    with listening, socket.socket(family) as ours:
        ours.connect((host, listening.getsockname()[1]))
        theirs, _ = listening.accept()
        with theirs:
            yield ours, theirs


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


by_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
WAYS: list[Callable[..., "loopback._End | None"]] = [loopback._from_netlink, loopback._from_proc]


@pytest.mark.parametrize("way", WAYS, ids=["netlink", "proc"])
@pytest.mark.parametrize(
    ("listens", "host", "family"),
    [
        pytest.param("127.0.0.1", "127.0.0.1", socket.AF_INET, id="4"),
        pytest.param("::1", "::1", socket.AF_INET6, id="6", marks=by_ipv6),
        pytest.param("127.0.0.1", "::ffff:127.0.0.1", socket.AF_INET6, id="4 by a socket for 6", marks=by_ipv6),
    ],
)
def test_the_other_end_is_found_by_either_way(
    way: Callable[..., "loopback._End | None"], listens: str, host: str, family: int
) -> None:
    kind = socket.AF_INET6 if ":" in listens else socket.AF_INET
    with pair(socket.create_server((listens, 0), family=kind), host, family) as (ours, theirs):
        for end, other in ((ours, theirs), (theirs, ours)):
            found = way(loopback._at(end.getpeername()), loopback._at(end.getsockname()))
            assert found == (os.geteuid(), os.fstat(other.fileno()).st_ino)


@pytest.mark.parametrize(
    ("far", "near"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("192.0.2.1", False),
        pytest.param("::1", True, marks=by_ipv6),
        pytest.param("::ffff:127.9.9.9", True, marks=by_ipv6),
        pytest.param("::ffff:192.0.2.1", False, marks=by_ipv6),
    ],
)
def test_which_connections_are_within_this_machine(far: str, near: bool) -> None:
    with socket.socket(socket.AF_INET6 if ":" in far else socket.AF_INET, socket.SOCK_DGRAM) as ours:
        try:
            ours.connect((far, 7))  # nothing is sent
        except OSError as error:
            pytest.skip(f"no route: {error}")
        assert loopback._is_near(ours) is near
        ours.connect(ours.getsockname()[:2])
        assert loopback._is_near(ours), "both ends have one address"


@pytest.mark.parametrize("way", WAYS, ids=["netlink", "proc"])
def test_who_only_listens_there_is_not_the_other_end(way: Callable[..., "loopback._End | None"]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert way(loopback._at(listening.getsockname()), loopback._at(("127.0.0.1", 1))) is None


def test_what_was_not_accepted_yet_or_was_closed_is_nobodys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname()) as ours, pytest.raises(UnknownUser):
            loopback.peer_user(ours)
        theirs, _ = listening.accept()
        with theirs, pytest.raises(UnknownUser, match="is gone"):  # or else it would count as root's
            loopback.peer_user(theirs)


def test_ones_own_coordinator_is_reached_once_it_accepts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        accepted: list[object] = []
        late = threading.Timer(0.1, lambda: accepted.append(listening.accept()))
        late.start()
        with loopback.connect("127.0.0.1", listening.getsockname()[1], 30.0) as ours:
            assert loopback.peer_user(ours) == os.geteuid()
        late.join()


def test_who_hangs_up_at_once_is_not_waited_for() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as ours,
    ):
        listening.accept()[0].close()
        with pytest.raises(ConnectionResetError):
            loopback._check_server(ours, time.monotonic() + 60.0, "ws://127.0.0.1", "")


def test_who_accepts_nobody_is_not_waited_for_without_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(TimeoutError):
        loopback.connect("127.0.0.1", listening.getsockname()[1], 0.2)


@as_root
def test_a_strangers_coordinator_is_refused_and_nothing_is_sent_to_it() -> None:
    with stranger(NOBODY) as (port, process):
        with pytest.raises(NotTrusted) as refused:
            loopback.connect("127.0.0.1", port, timeout=30.0)
        assert process.stdout is not None and process.stdout.readline() == "b''\n"
    assert refused.value.what == f"the coordinator at ws://127.0.0.1:{port} is another user's"
    assert "nobody" in refused.value.why and "GRID_COORDINATOR__USER=nobody" in refused.value.hint


@as_root
@pytest.mark.parametrize("trusts", ["nobody", str(NOBODY)])
def test_who_is_told_to_trust_that_user_does(trusts: str) -> None:
    with stranger(NOBODY) as (port, _):
        loopback.connect("127.0.0.1", port, timeout=30.0, trusts=trusts).close()


@as_root
def test_roots_coordinator_and_the_machines_are_trusted_by_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.geteuid()
    with stranger(0) as (port, _):
        os.seteuid(NOBODY)
        try:
            loopback.connect("127.0.0.1", port, timeout=30.0).close()
        finally:
            os.seteuid(own)
    monkeypatch.setattr(loopback, "service_users", lambda service: {NOBODY} if service == "grid-coordinator" else set())
    with stranger(NOBODY) as (port, _):
        loopback.connect("127.0.0.1", port, timeout=30.0).close()


def test_without_netlink_proc_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr(loopback, "_from_netlink", forbidden)
    with pair(socket.create_server(("127.0.0.1", 0)), "127.0.0.1", socket.AF_INET) as (ours, _):
        assert loopback.peer_user(ours) == os.geteuid()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_plain_name_is_looked_up_without_the_codec_for_international_ones(host: str) -> None:
    code = (
        "import sys; from distributed_grid.runtime.loopback import connect;"
        "connect(sys.argv[1], int(sys.argv[2]), 30).close(); print('encodings.idna' in sys.modules)"
    )
    with socket.create_server(("127.0.0.1", 0)) as there:
        command = [sys.executable, "-c", code, host, str(there.getsockname()[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            accepted, _ = there.accept()
            with accepted:
                assert process.communicate(timeout=60)[0] == "False\n"
