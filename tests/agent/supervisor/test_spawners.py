"""A spawner is made by two processes, either of which may be killed meanwhile; and what spawners of other releases have
noted is read."""

import json
import os
import selectors
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.agent.cgroups.groups import Cgroups, SlotGroups
from distributed_grid.agent.supervisor.job import Place
from distributed_grid.agent.supervisor.spawners import Noted, Spawners, Spawning
from distributed_grid.agent.walls import wire
from distributed_grid.agent.walls.enclosure import NONE
from distributed_grid.agent.walls.forkserver import ForkServer


def test_a_note_of_an_earlier_release_or_a_later_one_tells_what_is_known_here(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    earlier, later = ["j-a.1", 7 << 8, 41, 3, 4], ["j-b.1", None, 42, 5, 6, 0.25, 4096, "more"]
    for name in ("jobs", "spawners"):
        (tmp_path / name).mkdir()
    for name, said in (("a", earlier), ("b", later)):
        (tmp_path / "spawners" / name).write_text(f"{json.dumps(['boot'])}\n{json.dumps(said)}\n")
    with selectors.DefaultSelector() as selector:
        groups = SlotGroups(Cgroups({}, print), str(tmp_path), print)
        spawners = Spawners(str(tmp_path), NONE, fork_server, selector, print, print, print, groups)
    places = {name: Place(name, NONE, 0, 0, False, 0, 0, 0) for name in "ab"}
    assert spawners.noted(places["a"], "j-a.1") == Noted(7 << 8, 41, 3, 4, cpu=0.0, peak=0)
    assert spawners.noted(places["b"], "j-b.1") == Noted(None, 42, 5, 6, cpu=0.25, peak=4096)


def test_a_slot_for_which_the_disk_has_no_inode_is_the_disks_failure(
    tmp_path: Path, fork_server: ForkServer, few_inodes: Callable[[Path, int], Path]
) -> None:
    few_inodes(tmp_path, 3)
    for name in ("jobs", "spawners"):
        (tmp_path / name).mkdir()
    came: list[tuple[Spawning, str]] = []
    said: list[Any] = []
    with selectors.DefaultSelector() as selector:
        groups = SlotGroups(Cgroups({}, said.append), str(tmp_path), said.append)
        tells = print, lambda *of: came.append(of), said.append
        spawners = Spawners(str(tmp_path), NONE, fork_server, selector, *tells, groups)
        asked = spawners.take("j-a.1", {"submitter": "u"})
        while not came:
            [(key, _)] = selector.select(30.0)
            key.data()
    assert came == [(asked, "No space left on device")] and asked.cause == "disk-failed"


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
