"""The supervisor where its disk, its socket or itself fails, at every fault point: nothing starts twice, no end is
wrong, and what passes leaves no trace. On a slow disk the suite tries what is deadliest, and what syncs meet;
`GRID_FAULT_MATRIX=all` (`make chaos`) tries all of it."""

import asyncio
import os
import resource
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from distributed_grid.agent.supervisor.journal import Journal, parse
from distributed_grid.protocol.jobs import Cause
from tests.agent.conftest import Bench, runs

MakeBench = Callable[..., Awaitable[Bench]]
ALL = os.environ.get("GRID_FAULT_MATRIX") == "all"
CASES = [
    f"supervisor.{point}:{action}"
    for point in ("write", "sync", "spawn", "tell")
    for action in ("2:kill", "2:eio", "2-4:enospc", "2:drop")
] + [
    "supervisor.write.after:2:kill",
    "supervisor.sync.after:2:kill",
    "supervisor.spawn.after:2:kill",
    "supervisor.tell.after:2:kill",
    "supervisor.tell:1:drop",
    "supervisor.rewrite:1:kill",
    "supervisor.rewrite.after:1:kill",
    "supervisor.rewrite:1-2:enospc",
    "supervisor.rewrite:1:drop",
]
SLOW = "supervisor.sync:1:delay=0.02"
"""A disk so slow at first that all that follows is synced by the thread."""
CASES += [
    f"{asked},{SLOW}" for asked in CASES if ".rewrite" not in asked and (ALL or "kill" in asked or ".sync" in asked)
]
CASES += [f"supervisor.sync:1+:delay=0.02,supervisor.sync{asked}" for asked in (":3:eio", ":3:kill", ".after:3:kill")]
CASES += [
    f"supervisor.sync:1+:delay=0.02,supervisor.sync:2:eio,supervisor.rewrite:{passes}:enospc" for passes in ("2", "2-3")
]

NEVER_BEGAN = (Cause.SPAWN_FAILED, Cause.DISK_FAILED, Cause.WITHDRAWN)
"""No process could be made; or, of those that go to another node: the disk took no intent, or the supervisor was killed
before it ordered a spawner to start it."""


def starts(bench: Bench, id: str) -> int:
    """How often its command ran, by its own witness."""
    file = bench.folder(id) / "starts"
    return file.read_text().count("\n") if file.exists() else 0


@pytest.mark.parametrize("asked", CASES)
async def test_no_job_starts_twice_and_no_end_is_wrong_whatever_fails(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setenv("GRID_FAULTS", asked)
    bench = await make_bench()
    pid = bench.launcher.supervisor_pid
    codes = {}
    for code in range(6):
        id = bench.launch("sh", "-c", f"echo $$ >> starts; exit {code}")
        codes[id] = code
        if code % 2:
            await bench.ended(id)
    for id, code in codes.items():
        outcome = await bench.ended(id)
        if outcome.cause is Cause.EXITED:
            assert (outcome.code, starts(bench, id)) == (code, 1)
        elif outcome.started:
            assert outcome.cause is Cause.SUPERVISOR_LOST and "kill" in asked and starts(bench, id) <= 1
        else:
            assert outcome.cause in NEVER_BEGAN and starts(bench, id) == 0
            assert outcome.cause is not Cause.WITHDRAWN or "kill" in asked
    await bench.until(lambda: f"GRID_FAULTS {asked.partition(':')[0]}:" in (bench.dir / "supervisor.log").read_text())
    assert bench.log == [] or "kill" in asked or "tell" in asked  # it went on by itself
    assert (bench.launcher.supervisor_pid == pid) == (not bench.log or "tell:" in asked and "kill" not in asked)
    assert (await bench.run("true")).cause is Cause.EXITED
    # And not by one that has only the journal to go by, either.
    await bench.kill_supervisor()
    before = {id: starts(bench, id) for id in codes}
    for id in codes:
        bench.launch("sh", "-c", "echo $$ >> starts", id=id)
    for id in codes:
        await bench.until(lambda id=id: len(bench.outcomes(id)) >= 2)  # type: ignore[misc]
    twice = {id for id in codes if starts(bench, id) != before[id]}
    assert not {id for id in twice if before[id]}
    # What was refused without a trace, since the disk took none, may be asked for anew.
    assert all(bench.outcomes(id)[0].cause in NEVER_BEGAN for id in twice)


async def test_a_job_for_whose_output_the_disk_has_no_inode_goes_elsewhere_and_the_next_runs(
    bench: Bench, few_inodes: Callable[[Path, int], Path]
) -> None:
    id = bench.launch("true")
    few_inodes(bench.dir / "allocs" / id, 1)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.started) == (Cause.DISK_FAILED, False)
    assert outcome.text == "no process could be made: No space left on device"
    assert (await bench.run("sh", "-c", "exit 7")).code == 7


async def test_faults_are_for_the_supervisor_and_never_for_its_jobs(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRID_FAULTS", "supervisor.spawn:1:eio")
    bench = await make_bench()
    outcome = await bench.run("true")
    assert (outcome.cause, outcome.started) == (Cause.SPAWN_FAILED, False)
    assert "Input/output error" in outcome.text
    outcome = await bench.run("env")
    assert b"GRID_ALLOCATION_ID=" in outcome.stdout_tail and b"GRID_FAULTS" not in outcome.stdout_tail


async def test_a_supervisor_that_replaces_another_one_has_no_faults(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRID_FAULTS", "supervisor.write:1:kill")
    bench = await make_bench()
    assert (await bench.run("true")).cause is Cause.EXITED
    assert bench.log == ["the supervisor is gone: another one takes over"]


# --- a disk that takes nothing for a while ---------------------------------------------------------------------------


async def test_what_happens_while_the_disk_takes_nothing_is_known_when_it_does_again(bench: Bench) -> None:
    """A limit for the size of its files stands in for the full disk: a new journal breaks off in the middle."""
    go = bench.dir / "go"
    ended = [bench.launch("sh", "-c", f"until [ -e {go} ]; do sleep 0.02; done; exit {code}") for code in range(4)]
    cancelled, lasting = bench.launch("sleep", "1000"), bench.launch("sleep", "1000")
    acknowledged = bench.launch("true")
    await bench.ended(acknowledged)
    for id in [*ended, cancelled, lasting]:
        await bench.started(id)
    pid = bench.launcher.supervisor_pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, before[1]))
    go.touch()
    bench.stop(cancelled)
    bench.launcher.forget([acknowledged])
    await bench.until(lambda: not bench.alive(*ended, cancelled))
    refused = await bench.run("true")
    assert (refused.cause, refused.started) == (Cause.DISK_FAILED, False)
    log = bench.dir / "supervisor.log"
    log.rename(bench.dir / "log")  # the log is a file of its own, and beyond the limit as well
    await asyncio.sleep(2.2)  # so that it is tried again and again
    assert not [id for id in [*ended, cancelled] if bench.outcomes(id)]  # not durable, so not told
    assert not (bench.dir / "journal.new").exists()
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert [(await bench.ended(id)).code for id in ended] == [0, 1, 2, 3]
    assert (await bench.ended(cancelled)).cause is Cause.CANCELLED
    assert (await bench.run("sh", "-c", "exit 9")).code == 9
    assert bench.launcher.supervisor_pid == pid
    # All of that is in the journal: also what was written there while it could not be.
    await bench.kill_supervisor()
    await bench.restart()
    known = {one.allocation: one.outcome for one in bench.known}
    assert [outcome.code for id in ended if (outcome := known[id])] == [0, 1, 2, 3]
    assert (outcome := known[cancelled]) and outcome.cause is Cause.CANCELLED
    assert acknowledged not in known
    assert known[lasting] is None
    assert runs(bench.launcher.pids[lasting])


async def test_a_stop_that_the_disk_refused_is_still_the_cause_when_the_next_supervisor_tells_it(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRID_FAULTS", "supervisor.write:3:eio")  # an intent, a start, and then the stop
    bench = await make_bench()
    id = bench.launch("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done")
    await bench.wrote(id)
    bench.stop(id, grace=3.0)
    await bench.until(lambda: b'"stop"' in (bench.dir / "journal").read_bytes())
    assert "the journal cannot be written (Input/output error" in (bench.dir / "supervisor.log").read_text()
    await bench.kill_supervisor()
    assert (await bench.ended(id)).cause is Cause.CANCELLED


async def test_a_supervisor_starts_on_a_disk_that_takes_nothing_and_watches_what_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = bench.launch("sleep", "1000", time_limit=5.0)  # which is over before the disk takes something again
    ended = bench.launch("sh", "-c", "exit 3")
    await bench.ended(ended)
    pid = await bench.started(limited)
    old = bench.launcher.supervisor_pid
    await bench.launcher.close()
    monkeypatch.setenv("GRID_FAULTS", "supervisor.rewrite:1-7:erofs")
    os.kill(old, signal.SIGKILL)
    await bench.restart()
    known = {one.allocation: one.outcome for one in bench.known}
    assert (outcome := known[ended]) and outcome.code == 3
    assert runs(pid)
    assert (await bench.run("true")).cause is Cause.DISK_FAILED
    assert (await bench.ended(limited)).cause is Cause.TIME_LIMIT
    assert (await bench.run("true")).cause is Cause.EXITED
    words = (bench.dir / "supervisor.log").read_text()
    assert words.count("no new journal can be written") == 1
    assert words.count("a new journal could be written again") == 1


# --- the journal alone -----------------------------------------------------------------------------------------------


def refuse_once(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Let the next call of this name in `os` fail as a disk does, and all after it succeed, as they do after that."""
    real = getattr(os, call)

    def failing(*args: object) -> object:
        monkeypatch.setattr(os, call, real)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, call, failing)


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_file_that_failed_once_is_never_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, threaded: bool
) -> None:
    path = tmp_path / "journal"
    journal = Journal(str(path), print)
    journal.rewrite([["boot", "b"]])
    refuse_once(monkeypatch, call)
    journal.append("forget", "a")

    def sync() -> None:
        if not threaded:
            journal.sync()
        elif journal.begin_sync():
            journal.end_sync()

    with pytest.raises(OSError, match="Input/output"):
        journal.commit()
        sync()
    held = path.read_bytes()
    file = path.stat().st_ino
    for _ in range(2):
        journal.append("forget", "b")
        with pytest.raises(OSError, match="earlier write failed"):
            journal.commit()
        with pytest.raises(OSError, match="earlier write failed"):
            journal.sync()
        assert not journal.begin_sync()
    assert path.read_bytes() == held
    journal.rewrite([["boot", "b"], ["forget", "a"], ["forget", "b"]])
    journal.append("forget", "c")
    journal.commit()
    journal.sync()
    assert path.stat().st_ino != file
    assert [*map(parse, path.read_bytes().rstrip(b"\0").splitlines())][2:] == [["forget", key] for key in "abc"]


def test_a_new_journal_that_fails_leaves_the_old_one_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(str(tmp_path / "journal"), print)
    journal.rewrite([["boot", "b"]])
    refuse_once(monkeypatch, "rename")
    journal.append("forget", "a")
    with pytest.raises(OSError, match="Input/output"):
        journal.rewrite([["boot", "b"], ["forget", "a"]])
    assert sorted(os.listdir(tmp_path)) == ["journal", "journal.mark"]
    journal.commit()
    journal.sync()
    assert journal.load() == [["boot", "b"], ["forget", "a"]]


def test_a_new_journal_whose_name_may_not_last_is_made_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is the folder's, and is synced with it: where that fails, a power cut may bring the old file back."""
    journal = Journal(str(tmp_path / "journal"), print)
    journal.rewrite([["boot", "b"]])
    real = os.fsync
    calls = []

    def failing(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 2:  # the file, then the folder
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", failing)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Input/output"):
        journal.rewrite([["boot", "c"]])
    with pytest.raises(OSError, match="earlier write failed"):
        journal.commit()
    journal.rewrite([["boot", "d"]])
    assert set(os.listdir("/proc/self/fd")) <= before
    assert journal.load() == [["boot", "d"]]
