"""A slot that is reserved for a launch before it comes, to unpack files there: who gets it, and when it is lost."""

import asyncio
import json
import os
import signal

from distributed_grid.agent.supervisor import procs
from distributed_grid.protocol.jobs import Cause, JobSpec
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.resources import Grant
from tests.agent.conftest import Bench, runs

ANNOUNCED = Launch(allocation="j-a.1", job="j-a", user="u", epoch=1, grant=Grant(), spec=JobSpec(argv=("true",)))


async def test_a_spawner_that_an_agent_reserved_before_it_died_serves_the_next_job(bench: Bench) -> None:
    slot = await bench.launcher.reserve(ANNOUNCED)
    await bench.restart()
    id = bench.launch("true")
    await bench.ended(id)
    assert bench.launcher.slots.slot(id) == slot


async def test_a_spawner_that_was_announced_for_a_launch_serves_another_one_once_that_is_given_up(bench: Bench) -> None:
    bench.launcher.announce(ANNOUNCED)
    slot = await bench.launcher.reserve(ANNOUNCED)
    bench.launcher.unreserve("j-a.1")
    id = bench.launch("true")
    await bench.ended(id)
    assert bench.launcher.slots.slot(id) == slot


async def test_a_slot_that_was_asked_for_when_the_supervisor_died_is_asked_for_again(bench: Bench) -> None:
    os.kill(bench.launcher.supervisor_pid, signal.SIGSTOP)
    asking = asyncio.create_task(bench.launcher.reserve(ANNOUNCED))
    await asyncio.sleep(0)
    await bench.kill_supervisor()
    slot = await asking
    bench.launch("true", id="j-a.1")
    assert (await bench.ended("j-a.1")).code == 0
    assert bench.launcher.slots.slot("j-a.1") == slot


async def test_a_launch_is_taken_back_when_the_spawner_dies_in_whose_slot_its_files_are(bench: Bench) -> None:
    slot = await bench.launcher.reserve(ANNOUNCED)
    note = json.loads((bench.dir / "spawners" / slot).read_text().splitlines()[0])
    os.kill(note[6], signal.SIGKILL)
    await bench.until(lambda: not runs(note[6]))
    bench.launch("true", id="j-a.1")
    outcome = await bench.ended("j-a.1")
    assert (outcome.cause, outcome.started) == (Cause.WITHDRAWN, False)
    assert (await bench.ended(bench.launch("true"))).code == 0, "what is reserved for nobody takes another slot"


async def test_spawners_that_are_killed_before_they_are_ready_are_replaced_whoever_waits_for_them(bench: Bench) -> None:
    [server] = procs.children(bench.launcher.supervisor_pid)  # it forks spawners; there is none yet
    os.kill(server, signal.SIGSTOP)
    announced = asyncio.create_task(bench.launcher.reserve(ANNOUNCED))
    id = bench.launch("true")
    await bench.until(lambda: len(os.listdir(bench.dir / "spawners")) == 2)
    os.kill(server, signal.SIGKILL)
    assert (await bench.ended(id)).code == 0
    assert await announced, "who has files to unpack there gets a slot, too"
