"""The supervisor, driven through a real launcher with real processes."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from distributed_grid.agent.launch import workdir
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.journal import line, parse
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.jobs import Cause, exit_status
from distributed_grid.protocol.messages import Exited, Started
from distributed_grid.protocol.resources import Grant, ResourceType
from tests.agent.conftest import Bench, runs
from tests.depth import DEEP

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {hide}
        print(os.getpid(), flush=True)
        time.sleep(1000)
    os._exit(0)
os.wait()
{stay}
"""
"""A command whose grandchild outlives it: that one does `hide` first, and the command ends after `stay`."""
STAYS = "time.sleep(1000)"
NOTE = "note = os.environ['GRID_WORKDIR'] + '/pid'"
NOTES = f"{NOTE}; open(note + '.new', 'w').write(str(os.getpid())); os.rename(note + '.new', note)"
UNTIL_NOTED = f"{NOTE}\nwhile not os.path.exists(note): time.sleep(0.01)\n"
HIDES = NOTES + "; os.execve('/bin/sleep', ['sleep', '1000'], {})"
UNTIL_HIDDEN = (
    UNTIL_NOTED
    + """
while open(f'/proc/{open(note).read()}/comm').read() != 'sleep\\n': time.sleep(0.01)
"""
)


def daemon_of(bench: Bench, id: str) -> int:
    """The pid that it noted."""
    return int((bench.folder(id) / "pid").read_text())


# --- how commands end ------------------------------------------------------------------------------------------------


async def test_the_exit_code_is_the_jobs_own(bench: Bench) -> None:
    outcome = await bench.run("sh", "-c", "exit 7")
    assert (outcome.cause, outcome.code, outcome.signal, outcome.started) == (Cause.EXITED, 7, 0, True)
    assert outcome.text == "exited with code 7"
    assert exit_status(outcome) == 7


async def test_a_signal_is_told_by_number_and_name(bench: Bench) -> None:
    outcome = await bench.run("sh", "-c", "kill -9 $$")
    assert (outcome.cause, outcome.signal, outcome.text) == (Cause.SIGNALLED, 9, "killed by signal 9 (SIGKILL)")
    assert exit_status(outcome) == 137


async def test_a_missing_program_is_127_and_nothing_ran(bench: Bench) -> None:
    outcome = await bench.run("no-such-program-here")
    assert (outcome.cause, outcome.started, exit_status(outcome)) == (Cause.NOT_FOUND, False, 127)
    assert "no-such-program-here: not found in PATH" in outcome.text
    assert (await bench.run("/no/such/file")).cause is Cause.NOT_FOUND
    outcome = await bench.run("echo", "x" * (128 << 10))
    assert (outcome.cause, outcome.started) == (Cause.SPAWN_FAILED, False) and "too long" in outcome.text


async def test_what_cannot_be_executed_is_126(bench: Bench, tmp_path: Path) -> None:
    (folder := tmp_path / "here").mkdir()
    (folder / "plain").write_text("text")
    (folder / "odd").write_text("no interpreter line")
    (folder / "odd").chmod(0o755)
    for name in ("./plain", "./odd", "/"):
        outcome = await bench.run(name, directory=folder)
        assert (outcome.cause, exit_status(outcome)) == (Cause.NOT_EXECUTABLE, 126), name
    found = await bench.run("plain", directory=folder, env={"PATH": str(folder)})
    assert (found.cause, found.started) == (Cause.NOT_EXECUTABLE, False)


async def test_an_interpreter_that_cannot_be_executed_is_asked_about_and_not_its_script(
    bench: Bench, tmp_path: Path
) -> None:
    (folder := tmp_path / "here").mkdir()
    (folder / "plain").write_text("text")
    (folder / "script").write_text(f"#!{folder / 'plain'}\n")
    (folder / "script").chmod(0o755)
    outcome = await bench.run("./script", directory=folder)
    assert outcome.cause is Cause.NOT_EXECUTABLE and "run the interpreter in its first line?" in outcome.text
    outcome = await bench.run("./plain", directory=folder)
    assert outcome.text.endswith("(is it executable?)")


async def test_a_missing_interpreter_is_said_to_be_that(bench: Bench, tmp_path: Path) -> None:
    (folder := tmp_path / "here").mkdir()
    (folder / "script").write_text("#!/no/such/interpreter\n")
    (folder / "script").chmod(0o755)
    outcome = await bench.run("./script", directory=folder)
    assert outcome.cause is Cause.NOT_FOUND
    assert "interpreter" in outcome.text


async def test_programs_are_looked_up_in_the_jobs_own_path_and_directory(bench: Bench, tmp_path: Path) -> None:
    (folder := tmp_path / "here").mkdir()
    (folder / "bin").mkdir()
    (folder / "bin" / "tool").write_text("#!/bin/sh\necho here\n")
    (folder / "bin" / "tool").chmod(0o755)
    outcome = await bench.run("tool", directory=folder, env={"PATH": "bin:/usr/bin:/bin"})
    assert outcome.stdout_tail == b"here\n"


async def test_a_missing_working_directory_is_told(bench: Bench) -> None:
    outcome = await bench.run("true", directory=bench.dir / "nowhere")
    assert (outcome.cause, outcome.started) == (Cause.WORKDIR_FAILED, False)


async def test_a_command_with_a_zero_byte_does_no_harm(bench: Bench) -> None:
    assert (await bench.run("echo", "a\0b")).cause is Cause.SPAWN_FAILED
    assert (await bench.run("true")).code == 0


async def test_usage_and_output_come_with_the_outcome(bench: Bench) -> None:
    code = "import sys; x = bytearray(60 << 20); sum(range(3_000_000)); print('out'); print('err', file=sys.stderr)"
    outcome = await bench.run(sys.executable, "-c", code)
    assert (outcome.stdout_tail, outcome.stderr_tail) == (b"out\n", b"err\n")
    assert (outcome.stdout_size, outcome.stderr_size) == (4, 4)
    assert outcome.peak_memory > 60 << 20
    assert 0.01 < outcome.cpu_seconds < outcome.seconds + 1


async def test_output_is_byte_exact(bench: Bench) -> None:
    code = "import os; os.write(1, bytes(range(256)) * 4096 + b'no newline'); os.write(2, b'\\r 50%\\r100%')"
    id = bench.launch(sys.executable, "-c", code)
    outcome = await bench.ended(id)
    assert bench.read(id) == bytes(range(256)) * 4096 + b"no newline"
    assert bench.read(id, "stderr") == b"\r 50%\r100%"
    assert outcome.stdout_size == (1 << 20) + 10
    assert outcome.stdout_tail == bench.read(id)[-(16 << 10) :]


# --- where they run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("found", "jobs", "own"), [(0, 500, -500), (-900, 500, -1000), (800, 800, 300)])
def test_what_spares_the_agent_from_the_oom_killer_spares_no_job(found: int, jobs: int, own: int) -> None:
    assert procs.oom_scores(found) == (jobs, own), "the unit gives its agent -900"


async def test_a_job_starts_with_a_clean_slate(bench: Bench) -> None:
    code = """
import os, signal, sys
print(os.getcwd() == os.environ["GRID_WORKDIR"], os.getpgid(0) == os.getpid(), sys.stdin.read() == "")
print(sorted(os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd")))
text = open("/proc/self/status").read()
print([int(line.split()[1], 16) & 0x7fffffff for line in text.splitlines() if line.startswith(("SigBlk", "SigIgn"))])
print(open("/proc/self/oom_score_adj").read().strip() == sys.argv[1], oct(os.umask(0)) == sys.argv[2])
"""
    os.umask(mask := os.umask(0))
    score = str(max(500, int(Path("/proc/self/oom_score_adj").read_text())))
    outcome = await bench.run(sys.executable, "-c", code, score, oct(mask))
    # Python itself ignores SIGPIPE and SIGXFSZ, and posix_spawn the two signals (32, 33) that the C library keeps to
    # itself. The fourth descriptor is the listing's own.
    assert outcome.stdout_tail.decode().splitlines() == [
        "True True True",
        "['0', '1', '2'] 4",
        str([0, 1 << 12 | 1 << 24]),
        "True True",
    ]


async def test_a_job_is_on_its_cores_from_the_first_instruction(bench: Bench) -> None:
    cores = sorted(os.sched_getaffinity(0))
    ids = {}
    for number in range(40):
        core = cores[number % len(cores)]
        ids[bench.launch("sh", "-c", "taskset -cp $$", grant=Grant(cores=(core,)))] = core
    free = bench.launch("sh", "-c", "taskset -cp $$")
    for id, core in ids.items():
        await bench.ended(id)
        assert bench.read(id).decode().split()[-1] == str(core)
    await bench.ended(free)
    assert procs_list(bench.read(free).decode().split()[-1]) == set(cores)
    await bench.run("true", grant=Grant(cores=(cores[0],)))
    assert os.sched_getaffinity(bench.launcher.supervisor_pid) == set(cores)


def procs_list(text: str) -> set[int]:
    """`0-2,5` as numbers."""
    spans = [part.partition("-") for part in text.split(",")]
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


async def test_virtual_cores_pin_nothing(bench: Bench) -> None:
    id = bench.launch("sh", "-c", "taskset -cp $$", grant=Grant(cores=(700,), virtual=True))
    assert (await bench.ended(id)).code == 0
    assert procs_list(bench.read(id).decode().split()[-1]) == os.sched_getaffinity(0)


async def test_cores_that_are_not_there_are_told(bench: Bench) -> None:
    outcome = await bench.run("true", grant=Grant(cores=(900,)))
    assert (outcome.cause, outcome.text) == (Cause.SPAWN_FAILED, "the cores [900] cannot be used on this node")
    assert (await bench.run("true")).code == 0


# --- ending ----------------------------------------------------------------------------------------------------------


async def test_stop_ends_with_sigterm_and_tells_the_cause(bench: Bench) -> None:
    id = bench.launch("sleep", "1000")
    await bench.started(id)
    bench.stop(id, grace=1000)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.signal) == (Cause.CANCELLED, 15)
    assert outcome.text == "cancelled; killed by signal 15 (SIGTERM)"


async def test_a_job_may_end_well_within_its_grace(bench: Bench) -> None:
    id = bench.launch("sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done")
    await bench.wrote(id)
    bench.stop(id, grace=20)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.code, bench.read(id)) == (Cause.CANCELLED, 3, b"up\nbye\n")


async def test_a_raylets_main_process_alone_is_asked_to_end_and_what_it_leaves_is_ended(bench: Bench) -> None:
    child = "trap 'echo told' TERM; echo up; while :; do sleep 0.01; done"
    code = f"trap 'echo draining; exit 1' TERM; sh -c \"{child}\" & while :; do sleep 0.01; done"
    id = bench.launch("sh", "-c", code, boost=Boost("n", "192.0.2.1:1", ResourceType.CPU, 1000), grace=3.0)
    await bench.wrote(id)
    bench.stop(id, grace=3.0)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.code, bench.alive(id)) == (Cause.CANCELLED, 1, [])
    assert bench.read(id) == b"up\ndraining\n"


async def test_a_job_that_ignores_sigterm_is_killed_after_its_grace(bench: Bench) -> None:
    id = bench.launch("sh", "-c", "trap '' TERM; echo up; sleep 1000; sleep 1000")
    await bench.wrote(id)
    begun = time.monotonic()
    bench.stop(id, grace=0.3)
    outcome = await bench.ended(id)
    assert (outcome.signal, bench.alive(id)) == (9, [])
    assert 0.3 <= time.monotonic() - begun < 30


async def test_a_stopped_job_can_be_ended(bench: Bench) -> None:
    # Not a shell: one that was stopped while it waits in vfork is not shown as stopped.
    code = (
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(4))\nprint('up', flush=True)\ntime.sleep(1000)"
    )
    id = bench.launch(sys.executable, "-c", code)
    await bench.wrote(id)
    pid = await bench.started(id)
    bench.launcher.signal(id, signal.SIGSTOP)
    await bench.until(lambda: (seen := procs.stat(pid)) and seen.state == "T")
    bench.stop(id, grace=20)
    assert (await bench.ended(id)).code == 4


async def test_a_time_limit_can_be_changed_while_it_runs_also_for_the_next_supervisor(bench: Bench) -> None:
    ids = [bench.launch("sleep", "1000", time_limit=1000.0) for _ in range(2)]
    for id in ids:
        await bench.started(id)
    bench.launcher.limit(ids[0], 0.2)
    assert (await bench.ended(ids[0])).cause is Cause.TIME_LIMIT
    bench.launcher.limit(ids[1], 2.0)
    await bench.run("true")  # by its end, what was said before it is in the journal
    await bench.kill_supervisor()
    assert (await bench.ended(ids[1])).cause is Cause.TIME_LIMIT


async def test_the_time_limit_is_kept_and_told(bench: Bench) -> None:
    outcome = await bench.run("sleep", "1000", time_limit=0.2)
    assert (outcome.cause, exit_status(outcome)) == (Cause.TIME_LIMIT, 124)
    assert "time limit of 0.2 s" in outcome.text
    assert 0.2 <= outcome.seconds < 30


async def test_a_signal_goes_to_the_process_group(bench: Bench) -> None:
    id = bench.launch("sh", "-c", "trap 'exit 5' INT; echo up; while :; do sleep 0.01; done")
    await bench.wrote(id)
    bench.launcher.signal(id, signal.SIGINT)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.code) == (Cause.EXITED, 5)


@pytest.mark.parametrize(
    "hide", ["pass", "os.closerange(0, 3); os.open('/dev/null', 2); os.chdir('/'); sys.stdout = open('/dev/null', 'w')"]
)
async def test_what_a_job_leaves_behind_is_ended_before_its_exit_is_told(bench: Bench, hide: str) -> None:
    daemon = DAEMON.format(hide=f"{hide}; {NOTES}", stay=UNTIL_NOTED)
    id = bench.launch(sys.executable, "-c", daemon + "sys.exit(9)")
    outcome = await bench.ended(id)
    assert not runs(daemon_of(bench, id))
    assert (outcome.cause, outcome.code, bench.alive(id)) == (Cause.EXITED, 9, [])


async def test_a_leftover_that_ignores_sigterm_holds_the_exit_back_until_its_grace_is_over(bench: Bench) -> None:
    stubborn = "trap '' TERM; echo up; touch up; sleep 1000; sleep 1000"
    script = f"({stubborn}) & until [ -e up ]; do sleep 0.02; done; sleep 0.2; exit 2"
    id = bench.launch("sh", "-c", script, grace=0.4)
    await bench.wrote(id)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.code, bench.alive(id)) == (Cause.EXITED, 2, [])
    assert outcome.seconds >= 0.5


async def test_a_daemon_that_hides_whose_it_is_is_ended_with_its_job_and_no_other(bench: Bench) -> None:
    other = bench.launch("sleep", "1000")
    id = bench.launch(sys.executable, "-c", DAEMON.format(hide=HIDES, stay=UNTIL_HIDDEN))
    assert (await bench.ended(id)).code == 0
    assert not runs(daemon_of(bench, id))
    assert bench.outcomes(other) == []
    assert runs(await bench.started(other))


BOMB = """
import os, sys, time
for _ in range(50):
    if os.fork() == 0:
        if {apart}: os.setsid()
        while True:
            if os.fork() == 0:
                if {apart}: os.setsid()
                time.sleep(0.02)
                if os.getpid() % 2: os._exit(0)
            else:
                time.sleep(0.05); os._exit(0)
print("up", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("apart", [False, True])
async def test_a_fork_bomb_is_ended(bench: Bench, apart: bool) -> None:
    other = bench.launch("sleep", "1000")
    id = bench.launch(sys.executable, "-S", "-c", BOMB.format(apart=apart))
    await bench.wrote(id)
    bench.stop(id, grace=0.1)
    await bench.ended(id)
    assert bench.alive(id) == []
    assert runs(await bench.started(other))


async def test_a_daemon_of_a_running_job_lives_on_while_others_end(bench: Bench) -> None:
    id = bench.launch(sys.executable, "-c", DAEMON.format(hide="pass", stay=STAYS))
    pid = int((await bench.wrote(id))[0])
    for _ in range(3):
        await bench.run("true")
    assert runs(pid)
    bench.stop(id)
    await bench.ended(id)
    assert not runs(pid)


# --- once, whatever happens ------------------------------------------------------------------------------------------


async def test_a_launch_sent_twice_starts_once(bench: Bench) -> None:
    go = bench.dir / "go"
    for _ in range(5):
        id = bench.launch("sh", "-c", f"echo once; until [ -e {go} ]; do sleep 0.02; done", id="j-a.1")
    await bench.wrote(id)
    go.touch()
    await bench.ended(id)
    bench.launch("sh", "-c", "echo twice", id=id)
    await bench.until(lambda: len(bench.outcomes(id)) == 2)
    assert bench.read(id) == b"once\n"
    assert bench.outcomes(id)[0] == bench.outcomes(id)[1]


async def test_a_stop_of_a_forgotten_allocation_is_answered(bench: Bench) -> None:
    id = bench.launch("true")
    await bench.ended(id)
    bench.launcher.forget([id])
    await bench.restart()
    bench.stop(id)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.started) == (Cause.NODE_LOST, True)
    assert "over" in outcome.text


async def test_a_launch_of_a_forgotten_allocation_starts_nothing(bench: Bench) -> None:
    id = bench.launch("echo", "once")
    await bench.ended(id)
    bench.launcher.forget([id])
    await bench.restart()
    assert bench.known == []
    bench.launch("echo", "twice", id=id)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.started) == (Cause.NODE_LOST, True)
    assert bench.read(id) == b"once\n"


async def test_a_stop_before_its_launch_refuses_it(bench: Bench) -> None:
    bench.stop("j-late.1")
    outcome = await bench.ended("j-late.1")
    assert (outcome.cause, outcome.started) == (Cause.CANCELLED, False)
    await bench.kill_supervisor()
    bench.reports.clear()
    bench.launch("touch", str(bench.dir / "ran"), id="j-late.1")
    assert (await bench.ended("j-late.1")).started is False
    assert not (bench.dir / "ran").exists()


async def test_a_stop_on_the_heels_of_its_launch_takes_effect_once(bench: Bench) -> None:
    ids = [bench.launch("sleep", "1000") for _ in range(20)]
    for id in ids:
        bench.stop(id)
    for id in ids:
        assert (await bench.ended(id)).cause is Cause.CANCELLED
    assert bench.alive(*ids) == []
    assert all(len(bench.outcomes(id)) == 1 for id in ids)


async def test_output_without_a_record_is_never_overwritten(bench: Bench, tmp_path: Path) -> None:
    id = bench.launch("true", id="j-b.1", directory=tmp_path)
    await bench.ended(id)
    (folder := workdir.folder(bench.dir, "j-c.1")).mkdir()
    (folder / "stdout").write_text("from before")
    outcome = await bench.run("echo", "again", id="j-c.1")
    assert (outcome.cause, outcome.started) == (Cause.SUPERVISOR_LOST, False)
    assert bench.read("j-c.1") == b"from before"


# --- agents and supervisors come and go ------------------------------------------------------------------------------


async def test_a_new_agent_adopts_twenty_running_jobs_and_gets_exact_codes(bench: Bench) -> None:
    go = bench.dir / "go"
    ids = [bench.launch("sh", "-c", f"until [ -e {go} ]; do sleep 0.02; done; exit {n}") for n in range(20)]
    gone = bench.launch("sh", "-c", "exit 42")
    await bench.ended(gone)
    for id in ids:
        await bench.started(id)
    supervisor = bench.launcher.supervisor_pid
    await bench.restart()
    assert bench.launcher.supervisor_pid == supervisor
    known = {one.allocation: one for one in bench.known}
    assert known.keys() == {*ids, gone}
    outcome = known[gone].outcome
    assert outcome is not None and outcome.code == 42
    go.touch()
    assert [(await bench.ended(id)).code for id in ids] == [*range(20)]


async def test_jobs_that_end_without_an_agent_are_told_to_the_next(bench: Bench) -> None:
    ids = [bench.launch("sh", "-c", f"sleep 0.1; exit {n}") for n in range(10)]
    for id in ids:
        await bench.started(id)
    await bench.launcher.close()
    await bench.until(lambda: not bench.alive(*ids))
    await bench.restart()
    codes = {one.allocation: one.outcome.code for one in bench.known if one.outcome}
    for id in ids:
        codes.setdefault(id, (await bench.ended(id)).code if id not in codes else -1)
    assert [codes[id] for id in ids] == [*range(10)]


async def test_an_end_that_the_disk_did_not_take_yet_is_no_job_that_a_new_agent_does_not_know(
    make_bench: Callable[..., Awaitable[Bench]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The intent and the start are written, the end is not before a while.
    monkeypatch.setenv("GRID_FAULTS", "supervisor.write:3:enospc,supervisor.rewrite:2-6:enospc")
    bench = await make_bench()
    go = bench.dir / "go"
    id = bench.launch("sh", "-c", f"until [ -e {go} ]; do sleep 0.02; done; exit 7")
    await bench.started(id)
    go.touch()
    await bench.until(lambda: "no new journal can be written" in (bench.dir / "supervisor.log").read_text())
    await bench.restart()
    assert [(one.allocation, one.outcome) for one in bench.known] == [(id, None)]
    assert (await bench.ended(id)).code == 7


async def test_a_job_is_prepared_while_its_intent_is_synced_and_not_started_before(
    make_bench: Callable[..., Awaitable[Bench]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRID_FAULTS", "supervisor.sync:1:kill")
    bench = await make_bench()
    id = bench.launch("true")
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.started) == (Cause.WITHDRAWN, False)
    await bench.until(lambda: list((bench.dir / "jobs").glob(f"*/{id}")))
    assert not (bench.dir / "allocs" / id / "stdout").exists()


async def test_after_the_supervisor_was_killed_its_jobs_run_on_and_are_not_started_again(bench: Bench) -> None:
    go = bench.dir / "go"
    id = bench.launch("sh", "-c", f"echo once; until [ -e {go} ]; do sleep 0.02; done; exit 6")
    pid = await bench.started(id)
    await bench.wrote(id)
    await bench.kill_supervisor()
    bench.launch("sh", "-c", "echo twice", id=id)
    assert runs(pid)
    go.touch()
    outcome = await bench.ended(id)
    assert bench.read(id) == b"once\n"
    # The code where the kernel tells it to somebody who is not the parent.
    assert (outcome.cause, outcome.code) in ((Cause.EXITED, 6), (Cause.SUPERVISOR_LOST, 0))


async def test_jobs_of_a_killed_supervisor_can_be_ended_whole(bench: Bench) -> None:
    id = bench.launch(sys.executable, "-c", DAEMON.format(hide="pass", stay=STAYS))
    pid = int((await bench.wrote(id))[0])
    await bench.kill_supervisor()
    bench.stop(id, grace=1)
    outcome = await bench.ended(id)
    assert outcome.cause is Cause.CANCELLED
    assert (runs(pid), bench.alive(id)) == (False, [])


async def test_what_ended_while_no_supervisor_lived_ends_as_far_as_is_known(bench: Bench) -> None:
    id = bench.launch("sleep", "1000")
    pid = await bench.started(id)
    os.kill(bench.launcher.supervisor_pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    await bench.kill_supervisor()
    outcome = await bench.ended(id)
    # Where its new parent has not reaped it yet, the signal is still known.
    assert outcome.started
    assert (outcome.cause, outcome.signal) in ((Cause.SUPERVISOR_LOST, 0), (Cause.SIGNALLED, 9))


@pytest.mark.parametrize("walls", ["none", "namespace"])
async def test_a_job_whose_spawner_is_killed_before_it_began_never_ran_and_waits_again(
    make_bench: Callable[..., Awaitable[Bench]], walls: str
) -> None:
    bench = await make_bench(walls=walls)
    spawner = await bench.idle_spawner()
    os.kill(spawner, signal.SIGSTOP)  # it does not get to its order, and is given up
    outcome = await bench.ended(bench.launch("sh", "-c", "echo ran"))
    assert (outcome.cause, outcome.started) == (Cause.WITHDRAWN, False)
    assert outcome.text == "its spawner on the node was killed before it started this"
    assert (await bench.run("sh", "-c", "exit 7")).code == 7


async def test_what_ended_by_itself_before_its_supervisor_was_told_to_end_it_keeps_its_own_end(bench: Bench) -> None:
    os.mkfifo(gate := bench.dir / "gate")
    id = bench.launch("sh", "-c", f"read go <{gate}; exit 3")
    pid = await bench.started(id)
    spawner, supervisor = await bench.spawner(id), bench.launcher.supervisor_pid
    os.kill(supervisor, signal.SIGSTOP)  # it finds both when it goes on, the order first
    bench.stop(id)
    bench.launcher.flush()
    gate.write_text("go\n")
    await bench.until(lambda: procs.stat(pid) is None)
    await bench.until(lambda: (seen := procs.stat(spawner)) is not None and seen.state == "S")  # it has reported
    os.kill(supervisor, signal.SIGCONT)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.code) == (Cause.EXITED, 3)


async def test_what_a_main_process_leaves_behind_that_ends_after_its_spawner_was_killed_is_ended(bench: Bench) -> None:
    os.mkfifo(gate := bench.dir / "gate")
    left = "(trap '' TERM; echo up; while :; do sleep 1; done) &"
    id = bench.launch("sh", "-c", f"{left}\nread go <{gate}; exit 7", grace=0.2)
    pid = await bench.started(id)
    await bench.wrote(id)
    os.kill(stat.parent if (stat := procs.stat(pid)) is not None else 0, signal.SIGKILL)
    await bench.until(lambda: "its spawner was killed" in (bench.dir / "supervisor.log").read_text())
    gate.write_text("go\n")
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.code) == (Cause.EXITED, 7)
    assert bench.alive(id) == [], "it is over when nothing of it is left"


async def test_launches_on_their_way_when_the_supervisor_dies_start_exactly_once(bench: Bench) -> None:
    ids = [bench.launch("sh", "-c", "echo $$ >> count") for _ in range(50)]
    await bench.until(lambda: len(bench.reports) > 5)
    await bench.kill_supervisor()
    outcomes = [await bench.ended(id) for id in ids]
    for id, outcome in zip(ids, outcomes, strict=True):
        count = bench.folder(id) / "count"
        ran = count.read_text().count("\n") if count.exists() else 0
        assert ran == 1 if outcome.cause is Cause.EXITED else ran <= 1


async def test_no_job_survives_a_reboot_and_none_is_started_again(bench: Bench) -> None:
    id = bench.launch("sleep", "1000")
    pid = await bench.started(id)
    os.kill(bench.launcher.supervisor_pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    journal = bench.dir / "journal"
    lines = [parse(text) for text in journal.read_bytes().splitlines()]
    lines = [["boot", "another-boot"] if one and one[0] == "boot" else one for one in lines]
    journal.write_bytes(b"".join(line(one) for one in lines if one))
    await bench.kill_supervisor()
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.started) == (Cause.REBOOTED, True)


async def test_a_job_missing_from_a_damaged_journal_is_still_found_and_not_started_again(bench: Bench) -> None:
    id = bench.launch("sh", "-c", "echo up; sleep 1000")
    await bench.wrote(id)
    done = bench.launch("sh", "-c", "exit 3")
    await bench.ended(done)
    os.kill(bench.launcher.supervisor_pid, signal.SIGSTOP)
    journal = bench.dir / "journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(b"garbage\n" if id.encode() in text else text for text in lines))
    await bench.kill_supervisor()
    bench.launch("sh", "-c", "echo twice", id=id)
    outcome = await bench.ended(id)
    assert outcome.cause is Cause.SUPERVISOR_LOST
    assert (bench.read(id), bench.alive(id)) == (b"up\n", [])
    assert [*bench.dir.glob("journal.corrupt-*")]
    assert "damaged" in (bench.dir / "supervisor.log").read_text()


async def test_the_socket_is_for_this_user_only(bench: Bench) -> None:
    assert (bench.dir / "supervisor.sock").stat().st_mode & 0o777 == 0o600


async def test_the_supervisor_is_small_and_apart(bench: Bench) -> None:
    pid = bench.launcher.supervisor_pid
    assert os.getsid(pid) == pid
    assert len(os.listdir(f"/proc/{pid}/task")) == 1
    memory = Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]
    assert int(memory) < 20_000
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        os.kill(pid, signum)
    assert (await bench.run("true")).code == 0


async def test_output_is_bounded_on_disk(make_bench: Callable[..., Awaitable[Bench]]) -> None:
    bench = await make_bench(limit=4 << 20)
    code = """
import os, time
for n in range(12): os.write(1, bytes([65 + n]) * (1 << 20))
print("end")
time.sleep(1000)
"""
    id = bench.launch(sys.executable, "-u", "-c", code)
    path = workdir.folder(bench.dir, id) / "stdout"
    await bench.until(lambda: path.exists() and path.stat().st_size == (12 << 20) + 4)
    await bench.until(lambda: path.with_name("stdout.gap").exists() and path.stat().st_blocks * 512 <= 4 << 20)
    bench.stop(id, grace=0)
    outcome = await bench.ended(id)
    assert outcome.stdout_size == (12 << 20) + 4
    whole = bench.read(id)
    assert whole[: 1 << 20] == b"A" * (1 << 20)
    assert whole.endswith(b"L" * (1 << 20) + b"end\n")


async def test_reports_are_started_then_exited_and_nothing_else(bench: Bench) -> None:
    id = bench.launch("true")
    await bench.ended(id)
    await bench.run("true")
    assert [type(one) for one in bench.reports if one.allocation == id] == [Started, Exited]


async def test_a_burst_is_done_and_reported_whole(bench: Bench) -> None:
    ids = [bench.launch("true") for _ in range(200 if DEEP else 100)]
    async with asyncio.timeout(60):
        for id in ids:
            assert (await bench.ended(id)).code == 0


async def test_a_time_limit_of_months_does_not_end_an_idle_supervisor(bench: Bench) -> None:
    supervisor = bench.launcher.supervisor_pid
    for limit in (400 * 86400.0, 1e15):
        assert (await bench.run("true", time_limit=limit)).code == 0
    for _ in range(20):  # turns of the loop with nothing due but the limits of what is over
        bench.launcher.signal("nobody", 1)
        await asyncio.sleep(0.1)
        assert runs(supervisor), (bench.dir / "supervisor.log").read_text()
    assert (await bench.run("true")).code == 0
    assert bench.launcher.supervisor_pid == supervisor
