"""A spawner is made by two processes, either of which may be killed meanwhile."""

import os
import selectors
import signal
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.agent.cgroups.groups import Cgroups, SlotGroups
from distributed_grid.agent.supervisor.spawners import Spawners, Spawning
from distributed_grid.agent.walls import wire
from distributed_grid.agent.walls.enclosure import NONE
from distributed_grid.agent.walls.forkserver import ForkServer


def test_a_spawner_whose_pid_nobody_tells_was_killed_and_may_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = wire.send

    def killed_instead_of_telling(channel: Any, message: wire.Message, *fds: Any) -> None:
        if message["op"] == "made":
            os.kill(os.getpid(), signal.SIGKILL)
        send(channel, message, *fds)

    with monkeypatch.context() as patch:
        patch.setattr(wire, "send", killed_instead_of_telling)
        forks = ForkServer()
    for name in ("jobs", "spawners"):
        (tmp_path / name).mkdir()
    came: list[tuple[Spawning, str]] = []
    said: list[Any] = []
    with selectors.DefaultSelector() as selector:
        groups = SlotGroups(Cgroups({}, said.append), str(tmp_path), said.append)
        tells = lambda *of: said.append(of), lambda *of: came.append(of), list[str]().append  # noqa: E731
        spawners = Spawners(str(tmp_path), NONE, forks, selector, *tells, groups)
        asked = spawners.take("j-a.1", {"submitter": "u"})
        while not came:
            [(key, _)] = selector.select(30.0)
            key.data()
        spawners.close()
    os.waitpid(forks.pid, 0)
    assert came == [(asked, "it ended before it was ready")] and asked.killed
    assert said == []
