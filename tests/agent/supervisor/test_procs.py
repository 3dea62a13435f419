"""Real processes, seen and signalled as the supervisor does it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from distributed_grid.agent.supervisor import procs


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_a_process_is_seen_as_it_is_also_under_an_odd_name(child: subprocess.Popen[bytes]) -> None:
    seen = procs.stat(child.pid)
    assert seen is not None and procs.lives(seen)
    assert (seen.parent, seen.threads, seen.session) == (os.getpid(), 1, os.getsid(0))
    code = "open('/proc/self/comm', 'w').write('a) R 1 (b'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as odd:
        assert odd.stdin is not None and odd.stdout is not None and odd.stdout.readline()
        assert (at := procs.stat(odd.pid)) is not None and at.parent == os.getpid()
        odd.stdin.close()


def test_memory_is_read_whatever_a_process_calls_itself() -> None:
    code = """
import ctypes, sys, threading
libc = ctypes.CDLL(None)
libc.prctl(15, sys.argv[1].encode(), 0, 0, 0)
threading.Thread(target=input).start()
libc.pthread_exit(None)
"""  # without its first thread the kernel shows no rollup of its memory
    for name in ("evil kB", "evil: kB", "\rVmSwap: 1 TB", "\nVmSwap: 1 TB"):
        argv = [sys.executable, "-c", code, name]
        with subprocess.Popen(argv, stdin=subprocess.PIPE) as odd:
            while (seen := procs.stat(odd.pid)) is not None and seen.state != "Z":
                pass
            assert seen is not None and procs.lives(seen)
            assert procs.unreclaimable(odd.pid) < 1 << 30
            odd.kill()


def test_only_the_one_process_with_that_start_time_is_signalled(child: subprocess.Popen[bytes]) -> None:
    seen = procs.stat(child.pid)
    assert seen is not None
    assert not procs.send(child.pid, seen.start + 1, signal.SIGKILL)
    assert child.poll() is None
    assert procs.send(child.pid, seen.start, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not procs.send(child.pid, seen.start, signal.SIGKILL)


def test_the_exit_of_who_is_not_reaped_is_known_by_its_pidfd(child: subprocess.Popen[bytes]) -> None:
    seen, fd = procs.stat(child.pid), os.pidfd_open(child.pid)
    assert seen is not None and procs.pid_of(fd) == child.pid
    assert procs.status_by_pidfd(fd, child.pid, seen.start) is None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert procs.status_by_pidfd(fd, child.pid, seen.start) == signal.SIGKILL
    os.close(fd)


def test_all_below_a_process_are_found(child: subprocess.Popen[bytes]) -> None:
    found = procs.descendants([os.getpid()])
    assert {os.getpid(), child.pid} <= found.keys()
    assert child.pid in procs.children(os.getpid()) and child.pid in procs.OwnChildren().read()


@pytest.mark.parametrize(("found", "jobs", "own"), [(0, 500, -500), (-1000, 500, -1000), (900, 900, 400)])
def test_the_killer_for_want_of_memory_takes_jobs_before_us(found: int, jobs: int, own: int) -> None:
    assert procs.oom_scores(found) == (jobs, own)


def test_an_oom_score_is_of_the_process_that_is_meant_and_of_no_later_one_with_its_number() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        seen, before = procs.stat(process.pid), procs.oom_score(process.pid)
        assert seen is not None and before is not None
        procs.set_oom_score(process.pid, seen.start - 1, before + 10)
        assert procs.oom_score(process.pid) == before
        procs.set_oom_score(process.pid, seen.start, before + 10)
        assert procs.oom_score(process.pid) == before + 10
        process.kill()
