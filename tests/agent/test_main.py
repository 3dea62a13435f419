"""The agent's process: started, killed, started again, and told what is wrong with its settings."""

import os
import signal
from pathlib import Path

import msgspec
import pytest

from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import (
    Exited,
    Inventory,
    Refused,
    Stale,
    Started,
)
from distributed_grid.protocol.nodes import Offer
from distributed_grid.protocol.placement import Walls
from distributed_grid.protocol.resources import Grant
from tests.agent.scene import LONG, PROGRAM, Coordinator, _alive, ended, launch, open_gate, start
from tests.agent.scene import coordinator as coordinator
from tests.agent.scene import home as home
from tests.agent.scene import node as node


async def test_jobs_run_on_when_the_agent_is_killed_and_the_next_one_adopts_them(
    coordinator: Coordinator, home: Path, tmp_path: Path
) -> None:
    url = f"ws://127.0.0.1:{coordinator.port}"
    gate = tmp_path / "gate"
    # Jobs of others than its owner have a /tmp of their own behind namespace walls.
    program = PROGRAM.replace('trust="everyone"', 'trust="everyone", owners=("u",)')
    first = start(home, url, program)
    await coordinator.connected()
    os.mkfifo(gate)
    script = f"echo begun; read x < {gate}; echo done; exit 6"
    await coordinator.say(launch("j0.1", "sh", "-c", script), launch("j1.1", *LONG))
    await coordinator.hears(Started, "j0.1")
    await coordinator.hears(Started, "j1.1")
    first.send_signal(signal.SIGKILL)
    await ended(first)
    second = start(home, url, program)
    await coordinator.connected(2)
    known = coordinator.all(Inventory)[-1].known
    assert {(one.allocation, one.state) for one in known} == {("j0.1", State.RUNNING), ("j1.1", State.RUNNING)}
    assert set(coordinator.all(Offer)[-1].counting) == {"j0.1", "j1.1"}
    facts = [hello.facts for hello in coordinator.hellos]
    assert [one.incarnation for one in facts if one] == [1, 2]
    assert len({one.instance for one in facts if one}) == 1
    await coordinator.say(launch("j2.1", grant=Grant(cores=(1,), virtual=True)), launch("j0.1", "sh", "-c", script))
    assert "held by j1.1" in (await coordinator.hears(Stale, "j2.1")).reason
    await open_gate(gate)
    outcome = (await coordinator.hears(Exited, "j0.1")).outcome
    assert (outcome.code, outcome.stdout_tail) == (6, b"begun\ndone\n")
    second.send_signal(signal.SIGTERM)
    assert (await ended(second))[0] == 0


async def test_an_agent_without_walls_refuses_what_is_not_its_owners(coordinator: Coordinator, home: Path) -> None:
    url = f"ws://127.0.0.1:{coordinator.port}"
    program = PROGRAM.replace('trust="everyone"', 'walls="none", owners=("ann",)')
    agent = start(home, url, program)
    await coordinator.connected()
    await coordinator.say(msgspec.structs.replace(launch("j0.1", "true"), user="eve"))
    stale = await coordinator.hears(Stale, "j0.1")
    assert stale.reason == "its walls are none, and it runs jobs of its owners only"
    await coordinator.say(msgspec.structs.replace(launch("j1.1", "true"), user="ann", walls=Walls.USER))
    assert "the job asks for user" in (await coordinator.hears(Stale, "j1.1")).reason
    await coordinator.say(msgspec.structs.replace(launch("j2.1", "true"), user="ann"))
    assert (await coordinator.hears(Started, "j2.1")).walls == "none"
    assert (await coordinator.hears(Exited, "j2.1")).outcome.code == 0
    agent.send_signal(signal.SIGTERM)
    assert (await ended(agent))[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(("how", "said"), [('trust="everyone", walls="none"', True), ('walls="none"', False)])
async def test_an_agent_of_root_says_at_its_start_that_everyones_jobs_run_as_root(
    coordinator: Coordinator, home: Path, how: str, said: bool
) -> None:
    url = f"ws://127.0.0.1:{coordinator.port}"
    program = PROGRAM.replace('trust="everyone"', how)
    agent = start(home, url, program)
    await coordinator.connected()
    agent.send_signal(signal.SIGTERM)
    _, errors = await ended(agent)
    assert ("jobs of everyone run as root on this machine" in errors) is said


async def test_an_agent_that_is_told_to_go_leaves_its_jobs_running(coordinator: Coordinator, home: Path) -> None:
    agent = start(home, f"ws://127.0.0.1:{coordinator.port}")
    await coordinator.connected()
    await coordinator.say(launch("j0.1", *LONG))
    pid = (await coordinator.hears(Started, "j0.1")).pid
    agent.send_signal(signal.SIGTERM)
    code, errors = await ended(agent)
    assert code == 0 and "agent node1 is up" in errors and "Traceback" not in errors
    assert _alive(pid)


async def test_a_second_agent_on_one_state_directory_says_so_and_fails(coordinator: Coordinator, home: Path) -> None:
    url = f"ws://127.0.0.1:{coordinator.port}"
    first = start(home, url)
    await coordinator.connected()
    code, errors = await ended(start(home, url))
    assert code == 1 and f"error: another agent runs on {home}" in errors and "Traceback" not in errors
    assert len(coordinator.hellos) == 1
    first.send_signal(signal.SIGTERM)
    await ended(first)


async def test_a_name_that_is_taken_is_one_clear_error(coordinator: Coordinator, home: Path) -> None:
    coordinator.answer = Refused("a node named 'node1' is connected already", "it lives", "take another", final=True)
    code, errors = await ended(start(home, f"ws://127.0.0.1:{coordinator.port}"))
    assert code == 1 and errors.endswith(
        "error: a node named 'node1' is connected already\n  why: it lives\n  try: take another\n"
    )


@pytest.mark.parametrize("url", ["http://x", "nonsense", "ws://"])
async def test_an_address_that_is_none_is_one_clear_error(home: Path, url: str) -> None:
    code, errors = await ended(start(home, url))
    assert code == 1 and "is no address of a coordinator" in errors and "Traceback" not in errors


async def test_a_state_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, errors = await ended(start(tmp_path / "file" / "state", "ws://127.0.0.1:1"))
    assert code == 1 and "cannot be written" in errors and "Traceback" not in errors
