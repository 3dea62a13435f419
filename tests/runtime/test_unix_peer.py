"""Who connected to a Unix socket: judged with real processes, as jobs and those who pass descriptors on are."""

import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from distributed_grid.runtime import unix
from distributed_grid.runtime.unix import PeerRefused, bound, judge, lineage

CONNECT = """
import os, socket, sys
ours = socket.socket(socket.AF_UNIX)
ours.connect(sys.argv[1])
def stay():
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""
STAY = CONNECT + "stay()"
PASS_ON = CONNECT + "if os.fork() == 0: stay()"
LEAVE = CONNECT
BELOW = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
libc.prctl(15, sys.argv[3].encode(), 0, 0, 0)
libc.prctl(36, 1, 0, 0, 0)
subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]]).wait()
sys.stdin.read()
"""
DAEMON = "import os\nif os.fork(): os._exit(0)\nos.setsid()\n" + STAY
AS_NOBODY = (
    """
import os, socket, sys
folder, sys.argv[1] = os.path.split(sys.argv[1])
os.chdir(folder)
os.seteuid(65534)
"""
    + STAY
)
KERNELS = pytest.mark.parametrize("option", [77, 9999], ids=["with SO_PEERPIDFD", "before Linux 6.5"])


class Door:
    """A listening socket, and the processes that come to it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.path = folder / "x.sock"
        self.listener = stack.enter_context(bound(self.path))
        self.listener.listen(8)
        self._stack = stack

    def come(self, program: str, *more: str, before: tuple[str, ...] = ()) -> socket.socket:
        """The connection of a program, once it says that it has connected, or has ended."""
        words = [*before, sys.executable, "-c", program, str(self.path), *more]
        self.process = self._stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert self.process.stdin is not None and self.process.stdout is not None
        self._stack.callback(self.process.stdin.close)
        self.said = self.process.stdout.readline()
        self.listener.settimeout(10)
        theirs, _ = self.listener.accept()
        self._stack.callback(theirs.close)
        return theirs


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with ExitStack() as stack:
        yield Door(tmp_path, stack)


@KERNELS
def test_a_living_process_is_told_by_its_pid_and_user(door: Door, monkeypatch: pytest.MonkeyPatch, option: int) -> None:
    monkeypatch.setattr(unix, "_SO_PEERPIDFD", option)
    theirs = door.come(STAY)
    gc.collect()  # what other tests have left open is closed now, not meanwhile
    before = os.listdir("/proc/self/fd")
    assert judge(theirs, "this agent") == (int(door.said), os.geteuid())
    assert len(os.listdir("/proc/self/fd")) == len(before)


@KERNELS
def test_a_connection_passed_on_by_a_process_that_is_gone_is_refused(
    door: Door, monkeypatch: pytest.MonkeyPatch, option: int
) -> None:
    monkeypatch.setattr(unix, "_SO_PEERPIDFD", option)
    theirs = door.come(PASS_ON)
    door.process.wait()
    with pytest.raises(PeerRefused, match="is gone"):
        judge(theirs)


@KERNELS
def test_a_process_that_has_ended_and_is_not_reaped_is_refused(
    door: Door, monkeypatch: pytest.MonkeyPatch, option: int
) -> None:
    monkeypatch.setattr(unix, "_SO_PEERPIDFD", option)
    theirs = door.come(LEAVE)
    os.waitid(os.P_PID, door.process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(PeerRefused, match="is gone"):
        judge(theirs)


def test_a_process_that_began_after_the_connection_only_has_its_number(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix, "_SO_PEERPIDFD", 9999)
    accepted = unix.boot_clock()
    with pytest.raises(PeerRefused, match="is gone"):
        judge(door.come(STAY), accepted=accepted - 1)


@pytest.mark.parametrize("name", [unix.AGENT, unix.SUPERVISOR])
@pytest.mark.parametrize("program", [STAY, DAEMON], ids=["child", "daemon"])
def test_what_is_below_an_agent_or_a_supervisor_is_a_job(door: Door, name: str, program: str) -> None:
    theirs = door.come(BELOW, program, name)
    with pytest.raises(PeerRefused, match="job's process") as refused:
        judge(theirs)
    assert refused.value.job
    os.kill(int(door.said), signal.SIGKILL)


def test_what_is_below_another_process_is_none(door: Door) -> None:
    assert judge(door.come(BELOW, STAY, "some-shell")).pid == int(door.said)
    os.kill(int(door.said), signal.SIGKILL)


def test_what_is_below_a_root_is_a_job_though_we_are_below_it_too(door: Door) -> None:
    theirs = door.come(STAY)
    for root in (os.getpid(), os.getppid()):
        with pytest.raises(PeerRefused, match="job's process"):
            judge(theirs, roots={root})


def test_what_else_is_known_of_a_peer_or_of_who_started_it_counts(door: Door) -> None:
    theirs = door.come(BELOW, STAY, "some-shell")
    peer, above = int(door.said), door.process.pid
    for known in (peer, above):
        with pytest.raises(PeerRefused, match="job's process") as refused:
            judge(theirs, is_job=known.__eq__)
        assert refused.value.job
    asked: list[int] = []

    def nobody(pid: int) -> bool:
        asked.append(pid)
        return False

    assert judge(theirs, is_job=nobody).pid == peer
    assert asked == [peer, above, os.getpid()], "not of what is above us, too"
    os.kill(peer, signal.SIGKILL)


def test_an_agent_may_run_in_a_job_of_another(door: Door) -> None:
    """What is above us as well makes nobody a job of ours."""
    inside = (
        "import os, socket, subprocess, sys\nfrom distributed_grid.runtime.unix import judge\n"
        "listener = socket.socket(socket.AF_UNIX); listener.bind(sys.argv[1] + '2'); listener.listen(1)\n"
        "come = subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1] + '2'], stdin=subprocess.PIPE,"
        " stdout=subprocess.DEVNULL)\n"
        "print(judge(listener.accept()[0]).pid == come.pid, flush=True); come.kill(); come.wait()\n"
    )
    below = BELOW.replace("sys.argv[2], sys.argv[1]]", "sys.argv[2], sys.argv[1], sys.argv[4]]")
    words = [sys.executable, "-c", below, str(door.path), inside, unix.SUPERVISOR, STAY]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done


@pytest.mark.skipif(
    subprocess.run(["unshare", "-Ur", "true"], capture_output=True).returncode != 0, reason="no user namespaces here"
)
def test_a_process_of_another_user_namespace_is_refused(door: Door) -> None:
    theirs = door.come(STAY, before=("unshare", "-Ur"))
    with pytest.raises(PeerRefused, match="another user namespace"):
        judge(theirs)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
@pytest.mark.parametrize("owned", ["", "this agent"])
def test_another_user_comes_only_where_every_user_may(door: Door, owned: str) -> None:
    door.path.chmod(0o666)
    door.path.parent.chmod(0o755)
    theirs = door.come(AS_NOBODY)
    if not owned:
        assert judge(theirs).uid == 65534
        return
    with pytest.raises(PeerRefused, match="user 65534 does not run this agent"):
        judge(theirs, owned)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_namespace_is_told_apart_by_its_map_where_it_may_not_be_looked_at(door: Door) -> None:
    inside = door.come(STAY, before=("unshare", "-Ur"))
    at_inside = int(door.said)
    door.come(STAY)
    at_outside = int(door.said)
    assert inside
    told = (
        "import os, sys\nfrom distributed_grid.runtime.unix import _in_another_namespace as other\nos.setuid(65534)\n"
        "print([other(int(one)) for one in sys.argv[1:]])"
    )
    words = [sys.executable, "-c", told, str(at_inside), str(at_outside)]
    assert subprocess.run(words, capture_output=True, text=True).stdout == "[True, False]\n"


def test_the_lineage_ends_at_the_first_process(door: Door) -> None:
    door.come(STAY)
    above = lineage(int(door.said))
    assert above[0][0] == os.getpid() and above[1:] == lineage(os.getpid())


def test_the_lineage_of_nobody_cannot_be_told() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(PeerRefused):
        lineage(gone.pid)


def test_a_process_can_be_named(door: Door) -> None:
    told = "from distributed_grid.runtime import unix; import os; unix.name_process(unix.SUPERVISOR)\n"
    words = [sys.executable, "-c", told + "print(unix.process_name(os.getpid()))"]
    assert subprocess.run(words, capture_output=True, text=True).stdout == "grid-supervisor\n"
