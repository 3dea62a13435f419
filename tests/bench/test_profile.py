"""What a profile is made of: system calls by strace, functions by cProfile."""

import os
import pstats
import signal
import subprocess
import sys
from pathlib import Path

from bench import _profile
from bench._common import wait_for
from bench._probe import sitecustomize

STRACE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 61.07    0.004123          41       100           fdatasync
 30.00    0.002026           5       400        20 openat
  8.93    0.000603           3       200           epoll_wait
------ ----------- ----------- --------- --------- ----------------
100.00    0.006752           9       700        20 total
"""


def test_calls_are_read_from_what_strace_prints() -> None:
    assert _profile.parse_strace(STRACE) == {"fdatasync": 100, "openat": 400, "epoll_wait": 200}
    assert _profile.parse_strace("strace: attach: Operation not permitted\n") == {}


PERF = """
 Summary of events:

 python3 (25087), 883 events, 99.9%

   syscall            calls  errors  total       min       avg       max       stddev
                                     (msec)    (msec)    (msec)    (msec)        (%)
   --------------- --------  ------ -------- --------- --------- ---------     ------
   fdatasync            148      0   361.722     0.000     2.444    11.942     11.65%
   write                147      0     4.697     0.018     0.032     0.074      1.65%


 store_0 (25090), 20 events, 0.1%

   syscall            calls  errors  total       min       avg       max       stddev
                                     (msec)    (msec)    (msec)    (msec)        (%)
   --------------- --------  ------ -------- --------- --------- ---------     ------
   write                  3      1     0.097     0.018     0.032     0.074      1.65%
"""


def test_calls_of_all_threads_are_read_from_what_perf_prints() -> None:
    assert _profile.parse_perf(PERF) == {"fdatasync": 148, "write": 150}
    assert _profile.parse_perf("Error: no permission to trace 12 13 1.5\n") == {}


def test_calls_and_syncs_are_counted_for_each_unit_of_work() -> None:
    found = _profile.calls_each(_profile.parse_strace(STRACE), 100)
    assert found == {"syscalls": 7.0, "syncs": 1.0, "most": {"openat": 4.0, "epoll_wait": 2.0, "fdatasync": 1.0}}


def test_a_supervisor_is_started_through_our_program_and_nothing_else_is() -> None:
    supervisor = ["python", "-I", "-S", "-X", "utf8", "/grid/agent/supervisor/main.py", "/state"]
    *before, ours, folder, main, state = sitecustomize.through(supervisor, "/out")
    assert (before, folder, main, state) == (supervisor[:5], "/out", supervisor[5], "/state")
    assert Path(ours).name == "toggled.py" and Path(ours).exists()
    for command in (["true"], "true", ["python", "-I", "-S", "-X", "utf8", "/job/main.py"]):
        assert sitecustomize.through(command, "/out") == command


PROGRAM = """
import sys, time
def work():
    return sum(range(1000))
while True:
    work()
    time.sleep(0.001)
"""


def test_a_process_is_profiled_between_two_signals(tmp_path: Path) -> None:
    main = tmp_path / "main.py"
    main.write_text(f"print('up', flush=True)\n{PROGRAM}")
    wrapper = Path(sitecustomize.__file__).with_name("toggled.py")
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(wrapper), str(tmp_path), str(main)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout and process.stdout.readline() == "up\n"
        with _profile.profiled(tmp_path, {"supervisor": process.pid}):
            wait_for(lambda: (tmp_path / f"{process.pid}.on").exists(), "the profile")
            os.kill(process.pid, 0)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    seen = pstats.Stats(str(tmp_path / f"{process.pid}.pstats"))
    assert seen.total_calls > 0  # type: ignore[attr-defined]
    assert "ms a unit" in _profile.top(tmp_path / f"{process.pid}.pstats", 1, 3)
