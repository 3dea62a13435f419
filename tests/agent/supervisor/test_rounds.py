"""Ending processes without a group, a user id or a pid namespace of their own: real ones that try to get away, all
within a limit of processes, so that none of this can harm the machine."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from distributed_grid.agent.cgroups import hierarchies
from distributed_grid.agent.supervisor import procs, rounds
from distributed_grid.agent.supervisor.rounds import Found
from tests.depth import DEEP

MOST = 400 if DEEP else 160
NOBODY = 65534
FORKER = """
import os, sys, time
for _ in range({lines}):
    if os.fork() == 0:
        while True:
            try:
                if os.fork(): os._exit(0)
                os.setsid()
            except OSError: pass
            time.sleep({pause})
time.sleep(1000)
"""
BOMB = """
import os, time
while True:
    try: os.fork()
    except OSError: time.sleep(0.001)
"""
BUSY = """
import os
while True:
    try: os.fork()
    except OSError: pass
"""
GUARDS = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def guard(other):
    while True:
        try:
            if other == 0 or os.kill(other, 0) is not None: raise OSError
        except OSError:
            mine = os.getpid()
            other = os.fork()
            if other == 0:
                os.setsid()
                guard(mine)
        try: os.waitpid(-1, os.WNOHANG)
        except OSError: pass
for _ in range(5):
    if os.fork() == 0: guard(0)
time.sleep(1000)
"""
WAKERS = """
import os, signal, time
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        first = os.getppid()
        while True:  # wake all that may have been stopped
            for pid in range(first, first + 60):
                try: os.kill(pid, signal.SIGCONT)
                except OSError: pass
time.sleep(1000)
"""
HEADLESS = """
import ctypes, os, threading, time
for _ in range(5):
    if os.fork() == 0:
        threading.Thread(target=time.sleep, args=(1000,)).start()
        ctypes.CDLL(None).syscall(60, 0)  # the first thread ends, and the process looks like a zombie
time.sleep(1000)
"""
REAPER = """
import json, os, signal, subprocess, sys, time
from distributed_grid.agent.supervisor import procs, rounds
from distributed_grid.agent.walls import syscalls
code, user, keeps_root, neighbour = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1", sys.argv[4] == "1"
nice = int(sys.argv[6])
syscalls.become_subreaper()
spare = [subprocess.Popen(["sh", "-c", "sleep 1000 & wait"]).pid] if neighbour else []
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # all are reaped at once
if keeps_root:
    subprocess.Popen(["sleep", "1000"])
if user:
    os.setgid(user); os.setuid(user)
if os.fork() == 0:
    os.setsid()
    os.nice(nice)
    os.close(0), os.close(1)
    exec(code)
sys.stdin.readline()
all_below = rounds.Descendants(os.getpid(), lambda: spare)
print(json.dumps([rounds.end_in_rounds(all_below.scan, all_below.is_member, float(sys.argv[5])), spare]), flush=True)
sys.stdin.readline()
"""


class Ended(NamedTuple):
    proven: bool
    ended: int
    rounds: int
    left: set[int]
    """Of the whole group, but the subreaper."""
    spare: list[int]


@pytest.fixture
def group() -> Iterator[Path]:
    mount = hierarchies.mounted().get("pids")
    if mount is None or os.geteuid() != 0:
        pytest.skip("needs root, and the pids controller in version 1")
    made = Path(mount, f"grid-test-{secrets.token_hex(4)}")
    made.mkdir()
    (made / "pids.max").write_text(str(MOST))
    yield made
    (made / "pids.max").write_text("0")
    deadline = time.monotonic() + 30
    while True:
        for pid in (made / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        try:
            made.rmdir()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def ended(
    group: Path,
    code: str,
    count: int,
    user: int = 0,
    root: bool = False,
    neighbour: bool = False,
    seconds: float = 20.0,
    nice: int = 0,
) -> Ended:
    """Have a subreaper with this user end a job of this niceness once that has so many processes."""
    argv = [sys.executable, "-c", REAPER, code, str(user), f"{root:d}", f"{neighbour:d}", str(seconds), str(nice)]
    enter = f'echo $$ > "{group}/cgroup.procs"; exec "$@"'
    with subprocess.Popen(
        ["sh", "-c", enter, "sh", *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reaper:
        assert reaper.stdin is not None and reaper.stdout is not None
        deadline = time.monotonic() + 30
        while int((group / "pids.current").read_text()) < 1 + count:
            assert time.monotonic() < deadline and reaper.poll() is None
            time.sleep(0.01)
        reaper.stdin.write("go\n")
        reaper.stdin.flush()
        (proven, many, turns), spare = json.loads(reaper.stdout.readline())
        left = set(map(int, (group / "cgroup.procs").read_text().split())) - {reaper.pid}
        reaper.stdin.write("go\n")
        reaper.stdin.close()
    return Ended(proven, many, turns, left, spare)


@pytest.mark.parametrize("user", [0, NOBODY])
@pytest.mark.parametrize(
    ("code", "count"),
    [
        pytest.param(FORKER.format(lines=1, pause=0.0002), 2, id="one-line"),
        pytest.param(FORKER.format(lines=30, pause=0.0002), 20, id="many-lines"),
        pytest.param(FORKER.format(lines=4, pause=0), 3, id="without-pause"),
        pytest.param(BOMB, MOST * 3 // 4, id="bomb"),
        pytest.param(GUARDS, 10, id="guards"),
        pytest.param(WAKERS, 20, id="wakers"),
        pytest.param(HEADLESS, 11, id="headless"),
    ],
)
def test_what_forks_anew_all_the_time_is_ended_and_that_is_proven(
    group: Path, code: str, count: int, user: int
) -> None:
    done = ended(group, code, count, user)
    assert (done.proven, done.left) == (True, set())


def test_other_jobs_of_the_same_supervisor_are_not_hit(group: Path) -> None:
    done = ended(group, FORKER.format(lines=10, pause=0.0002), 8, neighbour=True)
    assert done.proven and len(done.left) == 2 and done.left > set(done.spare)


def test_what_may_not_be_signalled_is_not_promised(group: Path) -> None:
    done = ended(group, "import time; time.sleep(1000)", 2, NOBODY, root=True, seconds=1.0)
    assert not done.proven and len(done.left) == 1


def test_an_ordinary_users_supervisor_ends_a_bomb_that_never_rests(group: Path) -> None:
    (group / "pids.max").write_text("150")
    done = ended(group, BUSY, 140, NOBODY, seconds=60.0, nice=15)
    assert (done.proven, done.left) == (True, set())


def test_a_process_that_was_not_found_is_stopped_with_its_group() -> None:
    script = "sleep 1000 & sleep 1000 & sleep 1000 & wait"
    with subprocess.Popen(["sh", "-c", script], process_group=0) as shell:
        try:
            deadline = time.monotonic() + 30
            while len(below := procs.descendants([shell.pid])) < 4 and time.monotonic() < deadline:
                time.sleep(0.005)
            *seen, missed = below
            starts = {pid: below[pid].start for pid in seen}
            looks, stopped = 0, False

            def scan() -> Found:
                nonlocal looks, stopped
                looks += 1
                # Before they are killed: the kernel continues a stopped group that has no parent any more.
                while looks == 2 and not stopped and time.monotonic() < deadline:
                    at = procs.stat(missed)
                    stopped = at is not None and at.state == "T"
                return Found(starts, True, dict.fromkeys(seen, shell.pid))

            rounds.end_in_rounds(scan, seconds=0.1)
            assert stopped
        finally:
            os.killpg(shell.pid, 9)


def test_a_group_is_not_stopped_that_has_others_in_it() -> None:
    with subprocess.Popen(["sleep", "1000"]) as beside, subprocess.Popen(["sleep", "1000"], process_group=0) as apart:
        try:
            found = rounds.Descendants(os.getpid()).scan()
            assert {beside.pid, apart.pid} <= found.members.keys()
            assert beside.pid not in found.groups and found.groups[apart.pid] == apart.pid
        finally:
            beside.kill()
            apart.kill()


def test_without_real_time_priority_no_process_is_brought_to_our_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    moved: list[int] = []
    monkeypatch.setattr(os, "sched_setscheduler", refused)
    with subprocess.Popen(["sleep", "1000"], process_group=0) as one:
        found = rounds.Descendants(os.getpid()).scan()
        monkeypatch.setattr(os, "sched_setaffinity", lambda pid, _: moved.append(pid))
        rounds.end_in_rounds(lambda: Found({one.pid: found.members[one.pid]}, True), seconds=0.1)
    assert {*moved} <= {0} and one.returncode == -9


def test_what_does_not_end_by_being_killed_is_left_to_the_next_call() -> None:
    with subprocess.Popen(["true"]) as one:  # as long as nobody reaps it, it is still there
        at = procs.stat(one.pid)
        assert at is not None
        verdict = rounds.end_in_rounds(lambda: Found({one.pid: at.start}, True), seconds=60.0)
    assert not verdict.proven and verdict.rounds < 50


def test_walks_that_miss_somebody_prove_nothing() -> None:
    verdict = rounds.end_in_rounds(lambda: Found({}, False), seconds=0.1)
    assert not verdict.proven and verdict.ended == 0


def test_the_supervisors_own_priority_and_processors_are_as_before() -> None:
    before = os.sched_getaffinity(0), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    assert rounds.end_in_rounds(lambda: Found({}, True)).proven
    assert (os.sched_getaffinity(0), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)) == before
