"""Leases: the arithmetic alone, and then the supervisor that ends jobs by itself, with an agent, with a stopped one and
without any."""

import asyncio
import math
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import Leases
from distributed_grid.agent.supervisor.journal import parse
from distributed_grid.protocol.jobs import Cause
from tests.agent.conftest import Bench, renewed, runs
from tests.agent.supervisor.test_loop import DAEMON, STAYS

LONG = 600.0


# --- the arithmetic --------------------------------------------------------------------------------------------------


def test_a_lease_is_over_so_many_seconds_after_the_newest_renewal_or_its_own_begin() -> None:
    leases = Leases()
    leases.hold("a", 10.0, since=100.0)
    leases.hold("b", 10.0, since=105.0)
    assert leases.next == 110.0
    leases.renew(103.0, now=104.0)
    assert leases.over(112.9) == {}
    assert leases.over(113.0) == {"a": 10.0}
    assert leases.next == 115.0
    assert leases.over(115.0) == {"b": 10.0}
    assert (leases.over(1e9), leases.next) == ({}, math.inf)


def test_what_has_no_lease_is_never_over() -> None:
    leases = Leases()
    leases.hold("a", 0.0, since=100.0)
    assert leases.next == math.inf
    assert leases.over(1e9) == {}


def test_what_ended_is_not_over_later() -> None:
    leases = Leases()
    leases.hold("a", 10.0, since=100.0)
    leases.drop("a")
    leases.drop("never held")
    assert leases.over(200.0) == {}


@pytest.mark.parametrize("at", [50.0, math.nan, -math.inf])
def test_an_older_word_shortens_nothing(at: float) -> None:
    leases = Leases()
    leases.renew(103.0, now=104.0)
    leases.renew(at, now=105.0)
    leases.hold("a", 10.0, since=0.0)
    assert leases.next == 113.0


def test_a_word_from_the_future_counts_from_now() -> None:
    leases = Leases()
    leases.hold("a", 10.0, since=100.0)
    leases.renew(1e12, now=105.0)
    assert leases.over(114.9) == {}
    assert leases.over(115.0) == {"a": 10.0}


def test_renewals_are_noted_each_quarter_of_the_shortest_lease_and_not_without_one() -> None:
    leases = Leases()
    assert not leases.renew(100.0, now=100.0)
    leases.hold("a", 80.0, since=100.0)
    leases.hold("b", 40.0, since=100.0)
    # Noted now and then, not each time.
    noted = [at for at in range(102, 150, 2) if leases.renew(float(at), now=float(at))]
    assert noted == [102, 112, 122, 132, 142]


# --- the supervisor --------------------------------------------------------------------------------------------------


def log_of(bench: Bench) -> str:
    return (bench.dir / "supervisor.log").read_text()


async def test_a_leased_job_is_ended_when_no_word_comes_and_a_plain_one_runs_on(bench: Bench) -> None:
    plain = bench.launch("sleep", "1000")
    begun = procs.now()
    leased = bench.launch("sleep", "1000", lease=2.0)
    outcome = await bench.ended(leased)
    assert procs.now() - begun >= 2.0
    assert (outcome.cause, outcome.signal, outcome.started) == (Cause.LEASE_EXPIRED, 15, True)
    said = "no word from the coordinator for 2 s; a leased job does not run on without it"
    assert outcome.text == f"{said}; killed by signal 15 (SIGTERM)"
    assert runs(await bench.started(plain))
    assert bench.outcomes(plain) == []


async def test_as_long_as_it_is_renewed_it_runs_on_and_no_longer(bench: Bench) -> None:
    lease = 3.0
    id = bench.launch("sleep", "1000", lease=lease)
    async with renewed(bench):
        pid = await bench.started(id)
    begun = last = procs.now()
    while procs.now() < begun + 1.5 * lease:
        last = procs.now()
        bench.launcher.renew(last)
        await asyncio.sleep(0.05)
    assert runs(pid)
    assert (await bench.ended(id)).cause is Cause.LEASE_EXPIRED
    assert procs.now() >= last + lease


async def test_it_has_a_second_at_most_to_end_well(bench: Bench) -> None:
    # Its trap comes while it waits, and needs no other process to be made in that second.
    script = "trap 'echo bye' TERM; sleep 1000 & echo up; wait; while :; do sleep 0.02; done"
    id = bench.launch("sh", "-c", script, lease=2.0, grace=1000.0)
    async with renewed(bench):
        assert await bench.wrote(id) == ["up"]
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.signal) == (Cause.LEASE_EXPIRED, 9)
    assert (bench.read(id), bench.alive(id)) == (b"up\nbye\n", [])


async def test_what_it_left_running_dies_with_it(bench: Bench) -> None:
    id = bench.launch(sys.executable, "-c", DAEMON.format(hide="pass", stay=STAYS), lease=2.0)
    async with renewed(bench):
        daemon = int((await bench.wrote(id))[0])
    assert (await bench.ended(id)).cause is Cause.LEASE_EXPIRED
    assert (runs(daemon), bench.alive(id)) == (False, [])


async def test_neither_a_long_grace_nor_leftovers_outlast_the_lease(bench: Bench) -> None:
    stubborn = "trap '' TERM; echo up; touch up; while :; do sleep 0.02; done"
    cancelled = bench.launch("sh", "-c", stubborn, lease=2.0)
    script = f"({stubborn}) & until [ -e up ]; do sleep 0.02; done; exit 2"
    left = bench.launch("sh", "-c", script, lease=2.0, grace=1000.0)
    async with renewed(bench):
        await bench.wrote(cancelled)
        await bench.wrote(left)
        # Its main process ends by itself, and not because its lease is over.
        main = await bench.started(left)
        await bench.until(lambda: not runs(main))
        bench.stop(cancelled, grace=1000.0)
    assert (await bench.ended(cancelled)).cause is Cause.CANCELLED
    outcome = await bench.ended(left)
    assert (outcome.cause, outcome.code) == (Cause.EXITED, 2)
    assert bench.alive(cancelled, left) == []


async def test_a_launch_that_comes_when_its_lease_is_over_starts_nothing_and_never_will(bench: Bench) -> None:
    ran = bench.dir / "ran"
    bench.launcher.renew(procs.now())  # a newer word does not count: it was not about this one
    id = bench.launch("touch", str(ran), lease=5.0, since=procs.now() - 5.0)
    outcome = await bench.ended(id)
    assert (outcome.cause, outcome.started) == (Cause.LEASE_EXPIRED, False)
    assert "no word from the coordinator for 5 s" in outcome.text
    await bench.kill_supervisor()
    bench.reports.clear()
    bench.launch("touch", str(ran), id=id)
    assert (await bench.ended(id)).started is False
    assert not ran.exists()


async def test_without_any_agent_it_is_ended_and_the_next_agent_is_told(bench: Bench) -> None:
    leased, plain = bench.launch("sleep", "1000", lease=2.0), bench.launch("sleep", "1000")
    pid = await bench.started(leased)
    await bench.started(plain)
    await bench.launcher.close()
    await bench.until(lambda: not runs(pid))
    await bench.restart()
    known = {one.allocation: one.outcome for one in bench.known}
    outcome = known[leased] or await bench.ended(leased)
    assert (outcome.cause, outcome.signal) == (Cause.LEASE_EXPIRED, 15)
    assert known[plain] is None
    assert bench.alive(plain)


AGENT = """
import asyncio, os, pathlib, sys
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.launch import workdir
from distributed_grid.agent.launch.launcher import Launcher
from distributed_grid.protocol.jobs import JobSpec
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.resources import Grant

async def main(state_dir, id, lease):
    started = asyncio.Event()
    launcher = Launcher(pathlib.Path(state_dir), lambda _: started.set())
    await launcher.start()
    spec = JobSpec(argv=("sleep", "1000"))
    launch = Launch(allocation=id, job="j", user="u", epoch=1, grant=Grant(), spec=spec, lease=float(lease))
    env = {"PATH": os.environ["PATH"], "GRID_ALLOCATION_ID": id}
    workdir.Folders(pathlib.Path(state_dir)).make(id); launcher.launch(launch, None, env, procs.now())
    while True:
        launcher.renew(procs.now())
        await asyncio.sleep(0.05)
        if started.is_set():
            print("renewed since it was started", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
async def test_an_agent_that_is_killed_or_stopped_renews_nothing(bench: Bench, signum: signal.Signals) -> None:
    await bench.launcher.close()
    lease, id = 2.5, f"j-{os.getpid()}{signum}.1"
    with subprocess.Popen([sys.executable, "-c", AGENT, bench.dir, id, str(lease)], stdout=subprocess.PIPE) as agent:
        try:
            assert agent.stdout is not None
            begun = procs.now()
            while procs.now() < begun + lease + 0.5:  # longer than it would have lived without
                assert await asyncio.to_thread(agent.stdout.readline)
            assert len(bench.alive(id)) == 1
            agent.send_signal(signum)
            await bench.until(lambda: not bench.alive(id))
        finally:
            agent.kill()
    await bench.restart()
    outcome = bench.known[0].outcome or await bench.ended(id)
    assert outcome.cause is Cause.LEASE_EXPIRED


async def test_a_supervisor_that_was_stopped_does_not_take_a_late_word_for_a_renewal(bench: Bench) -> None:
    deadline = procs.now() + 2.0
    id = bench.launch("sleep", "1000", lease=LONG, since=deadline - LONG)
    await bench.started(id)
    os.kill(bench.launcher.supervisor_pid, signal.SIGSTOP)
    await bench.until(lambda: procs.now() > deadline)
    bench.launcher.renew(procs.now())  # waits in the socket, and is the first that it hears
    await asyncio.sleep(0.05)
    os.kill(bench.launcher.supervisor_pid, signal.SIGCONT)
    assert (await bench.ended(id)).cause is Cause.LEASE_EXPIRED


async def test_nor_does_one_that_was_held_up_by_its_disk(
    make_bench: Callable[..., Awaitable[Bench]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back from a slow sync with the deadline behind it and the word before it."""
    monkeypatch.setenv("GRID_FAULTS", "supervisor.sync:2:delay=3")
    bench = await make_bench()
    deadline = procs.now() + 2.5
    id = bench.launch("sleep", "1000", lease=LONG, since=deadline - LONG)
    await bench.started(id)
    bench.launch("true")
    await bench.until(lambda: procs.now() > deadline)
    bench.launcher.renew(procs.now())
    assert (await bench.ended(id)).cause is Cause.LEASE_EXPIRED


# --- the next supervisor ---------------------------------------------------------------------------------------------


async def test_the_next_supervisor_keeps_the_lease_without_any_agent(bench: Bench) -> None:
    id = bench.launch(sys.executable, "-c", DAEMON.format(hide="pass", stay=STAYS), lease=3.0)
    async with renewed(bench):
        daemon = int((await bench.wrote(id))[0])
        pid = await bench.started(id)
        await bench.kill_supervisor()
    assert runs(pid)
    await bench.launcher.close()
    await bench.until(lambda: not runs(pid) and not runs(daemon))
    await bench.restart()
    outcome = bench.known[0].outcome or await bench.ended(id)
    assert outcome.cause is Cause.LEASE_EXPIRED
    assert "no word from the coordinator for 3 s" in outcome.text


async def test_the_next_supervisor_ends_at_once_what_was_over_before_it_came(bench: Bench) -> None:
    deadline = procs.now() + 3.0
    id = bench.launch("sleep", "1000", lease=LONG, since=deadline - LONG)
    pid = await bench.started(id)
    old = bench.launcher.supervisor_pid
    await bench.launcher.close()
    os.kill(old, signal.SIGKILL)
    await bench.until(lambda: procs.now() > deadline)
    assert runs(pid)  # nobody was there to end it
    await bench.restart()
    bench.launcher.renew(procs.now())  # too late
    outcome = bench.known[0].outcome or await bench.ended(id)
    assert outcome.cause is Cause.LEASE_EXPIRED


async def test_renewals_outlive_the_supervisor_that_heard_them(bench: Bench) -> None:
    """The journal has them, and the agent says the newest again."""
    lease = 5.0
    begun = procs.now()
    id = bench.launch("sleep", "1000", lease=lease)
    pid = await bench.started(id)
    while procs.now() < begun + 0.8 * lease:
        bench.launcher.renew(procs.now())
        await asyncio.sleep(0.05)
    # Noted now and then, not each time.
    noted = [
        one for one in map(parse, (bench.dir / "journal").read_bytes().splitlines()) if one and one[0] == "renewed"
    ]
    assert 1 <= len(noted) <= 6
    last = procs.now()
    bench.launcher.renew(last)
    await bench.kill_supervisor()
    await bench.until(lambda: procs.now() > begun + lease + 0.5)  # which leaves it some seconds
    assert runs(pid)
    assert (await bench.ended(id)).cause is Cause.LEASE_EXPIRED
    assert procs.now() >= last + lease


async def test_what_waits_for_the_next_supervisor_is_renewed_while_it_waits_and_not_after(bench: Bench) -> None:
    """A launch on its way: a word in time renews it, a word after its lease is over does not start it."""
    old = bench.launcher.supervisor_pid
    os.kill(old, signal.SIGSTOP)
    begun = procs.now()
    kept = bench.launch("true", lease=LONG, since=begun - LONG + 1.0)
    lost = bench.launch("true", lease=1.0, since=begun)
    bench.launcher.renew(begun)
    await bench.until(lambda: procs.now() > begun + 1.0)
    bench.launcher.renew(procs.now())
    await bench.kill_supervisor()
    assert (await bench.ended(kept)).cause is Cause.EXITED
    outcome = await bench.ended(lost)
    assert (outcome.cause, outcome.started) == (Cause.LEASE_EXPIRED, False)


async def test_the_lease_is_kept_where_the_journal_cannot_be_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = bench.launch("sleep", "1000", lease=3.0)
    pid = await bench.started(id)
    old = bench.launcher.supervisor_pid
    monkeypatch.setenv("GRID_FAULTS", "supervisor.rewrite:1+:enospc")
    await bench.launcher.close()
    os.kill(old, signal.SIGKILL)
    await bench.restart()
    assert "no new journal can be written" in log_of(bench)
    await bench.until(lambda: not runs(pid))
    await asyncio.sleep(0.1)
    assert bench.outcomes(id) == []  # not durable, so not told
    assert Path(f"/proc/{bench.launcher.supervisor_pid}").exists()
