"""The launcher's own part: finding or starting a supervisor, and getting over its loss."""

import asyncio
import fcntl
import json
import os
import resource
import signal
import socket
from pathlib import Path

import pytest
import uvloop

from distributed_grid.agent.core.entry import Kept
from distributed_grid.agent.launch.launcher import Launcher
from distributed_grid.agent.launch.supervisor import start
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import VERSION
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Cause, State
from distributed_grid.protocol.messages import Stop
from distributed_grid.protocol.resources import MIB, Grant
from distributed_grid.runtime.unix import bound
from tests.agent.conftest import Bench, runs
from tests.apart import apart


async def test_the_supervisor_is_named_by_pid_and_start_time(bench: Bench) -> None:
    said = json.loads((bench.dir / "supervisor.pid").read_text())
    seen = procs.stat(bench.launcher.supervisor_pid)
    assert seen is not None
    assert said == {"pid": bench.launcher.supervisor_pid, "start": seen.start}


async def test_there_is_never_a_second_supervisor_on_one_directory(bench: Bench) -> None:
    other = Bench(bench.dir)
    await other.start()
    assert other.launcher.supervisor_pid == bench.launcher.supervisor_pid
    await other.launcher.close()
    with open(bench.dir / "supervisor.lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


async def test_the_newest_agent_is_the_one_that_is_told(bench: Bench) -> None:
    newer = Bench(bench.dir)
    await bench.launcher.close()
    await newer.start()
    assert (await newer.run("sh", "-c", "exit 3")).code == 3
    assert bench.reports == []
    await newer.launcher.close()


async def test_an_agent_can_leave_while_it_parts_from_a_supervisor_that_was_killed(bench: Bench) -> None:
    parting = asyncio.create_task(bench.launcher._disconnect())
    await asyncio.sleep(0)
    parting.cancel()
    await asyncio.wait({parting})
    await bench.launcher.close()


async def test_a_state_directory_with_a_long_path_works(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    bench = Bench(deep)
    await bench.start()
    assert (await bench.run("true")).code == 0
    await bench.close()


async def test_what_runs_and_what_ended_is_known_with_its_state(bench: Bench) -> None:
    begun = procs.now()
    running, stopping = bench.launch("sleep", "1000"), bench.launch("sh", "-c", "trap '' TERM; echo up; sleep 1000")
    ended = bench.launch("sh", "-c", "echo out; exit 5")
    await bench.started(running)
    await bench.wrote(stopping)
    bench.stop(stopping, grace=60)
    await bench.ended(ended)
    await bench.restart()
    known = {one.allocation: one for one in bench.known}
    states = {id: one.state for id, one in known.items()}
    assert states == {running: State.RUNNING, stopping: State.STOPPING, ended: State.ENDED}
    assert bench.launcher.pids.keys() == {running, stopping}
    assert all(pid in bench.alive(id) for id, pid in bench.launcher.pids.items())
    outcome = known[ended].outcome
    assert outcome is not None and (outcome.code, outcome.stdout_tail) == (5, b"out\n")
    assert 0 < known[running].started_for <= procs.now() - begun


async def test_what_was_launched_is_known_to_the_next_agent_whichever_process_was_killed(bench: Bench) -> None:
    grant = Grant(cores=(0,), memory=256 * MIB)
    lives = bench.launch("sleep", "60", grant=grant, grace=7.0)
    over = bench.launch("true", grant=grant, workdir="/tmp")
    await bench.started(lives)
    await bench.ended(over)
    await bench.kill_supervisor()
    await bench.restart()
    assert bench.launcher.kept[lives] == Kept(user="u", grant=grant, grace=7.0)
    assert (bench.launcher.kept[over].grant, bench.launcher.kept[over].workdir) == (grant, "/tmp")
    assert bench.launcher.slots.find(over).user == "u"
    bench.stop(lives, grace=0.0)
    await bench.ended(lives)
    bench.launcher.forget([lives, over])
    assert bench.launcher.kept == {}


async def test_what_was_acknowledged_is_not_told_again(bench: Bench) -> None:
    ids = [bench.launch("true") for _ in range(3)]
    for id in ids:
        await bench.ended(id)
    bench.launcher.forget(ids[:2])
    await bench.restart()
    assert [one.allocation for one in bench.known] == ids[2:]
    await bench.kill_supervisor()
    await bench.restart()
    assert [one.allocation for one in bench.known] == ids[2:]


async def test_the_loss_of_the_supervisor_is_told_and_got_over(bench: Bench) -> None:
    await bench.run("true")
    await bench.kill_supervisor()
    assert (await bench.run("sh", "-c", "exit 8")).code == 8
    assert bench.log == ["the supervisor is gone: another one takes over"]


def test_what_is_asked_in_any_moment_of_the_loss_is_asked_again_on_the_loop_that_agents_have(tmp_path: Path) -> None:
    async def scene() -> None:
        bench = Bench(tmp_path)
        await bench.start()
        try:
            ids = [bench.launch("sleep", "60") for _ in range(2)]
            for id in ids:
                await bench.started(id)
            old = bench.launcher.supervisor_pid
            os.kill(old, signal.SIGKILL)
            bench.stop(ids[0], grace=1)
            while bench.launcher.supervisor_pid == old:
                bench.launcher.signal(ids[1], signal.SIGCONT)
                await asyncio.sleep(0)
            bench.stop(ids[1], grace=1)
            assert [(await bench.ended(id)).cause for id in ids] == [Cause.CANCELLED] * 2
        finally:
            await bench.close()

    apart(lambda: uvloop.run(scene()))


async def test_an_end_is_reported_once_even_if_the_supervisor_dies_after_it(bench: Bench) -> None:
    ids = [bench.launch("true") for _ in range(20)]
    for id in ids:
        await bench.ended(id)
    await bench.kill_supervisor()
    await bench.run("true")
    assert all(len(bench.outcomes(id)) == 1 for id in ids)


async def test_a_supervisor_of_another_release_leaves_when_nothing_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = bench.launcher.supervisor_pid
    await bench.launcher.close()
    monkeypatch.setattr("distributed_grid.agent.launch.launcher.VERSION", VERSION + 1)
    newer = Launcher(bench.dir, lambda _: None)
    monkeypatch.setattr("distributed_grid.agent.launch.launcher._START_SECONDS", 1.0)
    # Whoever comes next is of this release again, so it never fits; but the old one has left.
    with pytest.raises(GridError):
        await newer.start()
    await newer.close()
    await bench.until(lambda: not runs(old))


async def test_one_of_another_release_that_leaves_just_when_it_is_told_to_is_got_over(tmp_path: Path) -> None:
    listener = bound(tmp_path / "supervisor.sock")
    listener.listen()

    def greets_and_goes() -> socket.socket:
        with listener:
            peer, _ = listener.accept()
        peer.shutdown(socket.SHUT_RD)
        peer.sendall(b'{"op":"hello","version":0,"known":[]}\n')
        return peer

    bench = Bench(tmp_path)
    gone, _ = await asyncio.gather(asyncio.to_thread(greets_and_goes), bench.start())
    assert (await bench.run("sh", "-c", "exit 3")).code == 3
    gone.close()
    await bench.close()


async def test_a_supervisor_of_another_release_is_left_alone_while_jobs_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = bench.launch("sleep", "1000")
    pid = await bench.started(id)
    await bench.launcher.close()
    monkeypatch.setattr("distributed_grid.agent.launch.launcher.VERSION", VERSION + 1)
    newer = Launcher(bench.dir, lambda _: None)
    with pytest.raises(GridError, match="version") as caught:
        await newer.start()
    await newer.close()
    assert "1 running jobs" in caught.value.why
    assert runs(pid)


async def test_what_runs_is_told_with_the_walls_that_it_has_and_not_with_those_of_a_newer_agent(bench: Bench) -> None:
    id = bench.launch("sleep", "1000")
    await bench.started(id)
    await bench.launcher.close()
    newer = Launcher(bench.dir, lambda _: None, walls="namespace")
    known = await newer.start()
    assert [(one.allocation, one.walls) for one in known] == [(id, "none")]
    assert "behind walls none" in newer.other_walls
    await newer.close()


async def test_a_supervisor_with_other_walls_leaves_when_nothing_runs(bench: Bench) -> None:
    id = bench.launch("sleep", "1000")
    await bench.started(id)
    await bench.launcher.close()
    changes: list[str] = []
    newer = bench.launcher = Launcher(bench.dir, bench.reports.append, walls="namespace")
    await newer.start()
    newer.walls_changed = lambda: changes.append(newer.other_walls)
    old = newer.supervisor_pid
    newer.stop(Stop(allocation=id, grace=0.0))
    await bench.until(lambda: changes == [""])
    assert (newer.walls, newer.supervisor_pid != old) == ("namespace", True)
    await newer.close(leave=True)


async def test_a_supervisor_that_cannot_start_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journal").mkdir()
    assert (first := start(tmp_path, 1 << 20, "none", "none", faults=False)) is not None
    assert await asyncio.to_thread(first.wait, 60)
    monkeypatch.setattr(
        "distributed_grid.agent.launch.launcher._START_SECONDS", 0.5
    )  # or those that follow take longer
    with pytest.raises(GridError) as caught:
        await Launcher(tmp_path, lambda _: None).start()
    assert "Is a directory" in caught.value.why


async def test_sigterm_lets_the_supervisor_leave_once_nothing_runs(bench: Bench) -> None:
    id = bench.launch("sh", "-c", "echo up; sleep 0.3; exit 4")
    await bench.wrote(id)
    old = bench.launcher.supervisor_pid
    os.kill(old, signal.SIGTERM)
    assert (await bench.ended(id)).code == 4
    await bench.until(lambda: not runs(old))


async def test_a_full_disk_starts_nothing_loses_no_end_and_passes(bench: Bench) -> None:
    """A file size limit on the supervisor stands in for the full disk: writes of the journal fail just the same."""
    go = bench.dir / "go"
    running = bench.launch("sh", "-c", f"echo up; until [ -e {go} ]; do sleep 0.02; done; exit 6")
    await bench.wrote(running)
    pid = bench.launcher.supervisor_pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, before[1]))
    refused = await bench.run("true")
    assert (refused.cause, refused.started) == (Cause.DISK_FAILED, False)
    assert "journal" in refused.text
    go.touch()
    await bench.until(lambda: not bench.alive(running))
    await asyncio.sleep(0.1)
    assert bench.outcomes(running) == []  # not durable, so not told
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert (await bench.ended(running)).code == 6
    assert (await bench.run("true")).code == 0
    assert bench.launcher.supervisor_pid == pid


async def test_garbage_on_the_socket_does_no_harm(bench: Bench) -> None:
    await bench.launcher.close()
    with socket.socket(socket.AF_UNIX) as rude:
        folder = os.open(bench.dir, os.O_RDONLY)
        rude.connect(f"/proc/self/fd/{folder}/supervisor.sock")
        os.close(folder)
        for text in (
            b"\xff\xfe\n",
            b"[]\n",
            b"{}\n",
            b'{"op":"launch"}\n',
            b'{"op":"stop","id":[]}\n',
            b'"x"\n' * 1000,
        ):
            rude.sendall(text)
        rude.sendall(b'{"op":"launch","id":"../x","argv":[],"env":{},"cwd":"/","cores":[],"limit":0,"grace":0}\n')
        rude.sendall(b"half a line")
    await bench.restart()
    assert bench.known == []
    assert (await bench.run("true")).code == 0


async def test_jobs_of_a_burst_that_an_agent_left_in_the_middle_are_told_to_the_next(bench: Bench) -> None:
    ids = [bench.launch("true") for _ in range(50)]
    await bench.begun(ids[-1])
    await bench.restart()
    for id in {*ids} - {one.allocation for one in bench.known}:  # its spawner was not ready: it never was
        bench.launch("true", id=id)
    codes = {one.allocation: one.outcome.code for one in bench.known if one.outcome}
    for id in ids:
        if id not in codes:
            codes[id] = (await bench.ended(id)).code
    assert codes == dict.fromkeys(ids, 0)
