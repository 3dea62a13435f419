"""A swarm that is not complete is an error, and never a figure."""

import resource
import subprocess
import sys
from typing import Any

import pytest

from bench.services import _swarm, connections
from bench.services._swarm import BEATS, JOINED, LOST, OFFERS, Plan, Swarm


class Crowd:
    """The swarm's process, as far as its parent asks for it."""

    pid = 0

    def __init__(self, alive: bool = True) -> None:
        self._alive = alive

    def is_alive(self) -> bool:
        return self._alive


def swarm(count: int, joined: int, lost: int = 0, alive: bool = True) -> Swarm:
    counts = [0] * 4
    counts[JOINED], counts[LOST], counts[BEATS], counts[OFFERS] = joined, lost, 0, 0
    crowd: Any = Crowd(alive)
    return Swarm(Plan("", count), crowd, counts)


def test_a_complete_swarm_passes() -> None:
    connections.complete(swarm(3, 3), 3, "now")


@pytest.mark.parametrize(
    ("joined", "lost", "known"), [(2, 0, 3), (3, 0, 2), (3, 1, 3)], ids=["not joined", "not offering", "lost one"]
)
def test_a_swarm_that_lacks_somebody_ends_the_benchmark(joined: int, lost: int, known: int) -> None:
    with pytest.raises(SystemExit, match="incomplete before the measurement: of 3 agents"):
        connections.complete(swarm(3, joined, lost), known, "before the measurement")


def test_agents_that_do_not_come_are_waited_for_until_the_limit() -> None:
    with pytest.raises(SystemExit, match="only 2 of 3 agents joined"):
        swarm(3, 2).wait(0.01)


def test_a_swarm_that_died_is_not_waited_for() -> None:
    with pytest.raises(SystemExit, match="has ended"):
        swarm(3, 0, alive=False).wait(3600.0)


def test_too_few_open_files_are_said_before_anything_starts() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = f"from bench.services import connections; connections.check_files({most})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and f"and {most} are allowed" in done.stderr


def test_what_an_agent_says_is_what_a_coordinator_takes() -> None:
    """With its own link, as the coordinator's has it."""
    from distributed_grid.protocol.link import PROTOCOL, Link
    from distributed_grid.protocol.messages import Heartbeat, Inventory, Welcome

    agent, coordinator = Link.dial(_swarm.hello(1), 0.0), Link.answer(0.0)
    (frame,) = agent.data_to_send()
    assert coordinator.receive(frame, 0.0) == [_swarm.hello(1)]
    coordinator.accept(Welcome(protocol=PROTOCOL, software="x", epoch=1, grid="g", session="s"))
    agent.receive(coordinator.data_to_send()[0], 0.0)
    said = [Inventory(known=()), _swarm.offer(1), Heartbeat(_swarm.sample(1.0))]
    agent.send(*said)
    (frame,) = agent.data_to_send()
    assert coordinator.receive(frame, 0.0) == said
