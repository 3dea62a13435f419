"""What a process takes on itself behind its walls, each in a child of its own. (What jobs can reach behind them:
test_spawner.py.)"""

import os
import resource
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from distributed_grid.agent.walls import enclosure, syscalls
from distributed_grid.agent.walls.enclosure import NONE, USER, Slot


def in_a_child(act: Callable[[], None]) -> None:
    """Do this in a process of its own; what it raises fails the test."""
    told, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except BaseException:
            os.write(said, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(said)
    with os.fdopen(told, "rb") as file:
        failed = file.read().decode()
    os.waitpid(pid, 0)
    assert not failed, failed


def slot(walls: str = NONE, folder: Path = Path("/nowhere"), **other: object) -> Slot:
    known: dict[str, object] = {
        "uid": os.geteuid(),
        "gid": os.getegid(),
        "groups": (1, 2),
        "cgroup_procs": ("/a", "/b"),
    }
    return Slot("s1", walls, str(folder), str(folder), **(known | other))  # type: ignore[arg-type]


def test_a_slot_is_the_same_on_the_other_side_of_the_wire() -> None:
    sent = slot(USER, own=True, login="ann", processes=7)
    message = sent.message() | {"groups": [1, 2], "cgroup_procs": ["/a", "/b"]}  # as JSON has it
    assert enclosure.slot(message) == sent


def test_who_has_settled_leaves_no_core_is_not_ended_by_signals_and_stands_in_the_root() -> None:
    def act() -> None:
        enclosure.settle(slot())
        assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
        assert os.getcwd() == "/"
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), signum)

    in_a_child(act)


def test_who_enters_is_the_leader_of_a_session_of_its_own_with_its_own_niceness() -> None:
    nice = os.getpriority(os.PRIO_PROCESS, 0)

    def act() -> None:
        enclosure.enter(slot(nice=min(19, nice + 1), oom="800"))
        assert os.getsid(0) == os.getpid()
        assert os.getpriority(os.PRIO_PROCESS, 0) == min(19, nice + 1)
        assert Path("/proc/self/oom_score_adj").read_text() == "800\n"

    in_a_child(act)


def test_who_drops_its_capabilities_has_none_left() -> None:
    def act() -> None:
        enclosure.drop_capabilities()
        assert syscalls.capabilities() == (0, 0, 0)

    in_a_child(act)


def test_the_way_to_a_directory_is_all_that_is_above_it() -> None:
    assert enclosure._directories_above("/var/lib/grid") == ["/", "/var", "/var/lib"]
    assert enclosure._directories_above("/var") == ["/"]


def test_beside_a_directory_lies_all_but_the_way_to_it_and_links(tmp_path: Path) -> None:
    (tmp_path / "state" / "inner").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "state-2").touch()
    (tmp_path / "link").symlink_to("/")
    found = {Path(path) for path in enclosure._beside(str(tmp_path / "state"))}
    assert {tmp_path / "other", tmp_path / "state-2"} <= found
    assert not {tmp_path, tmp_path / "state", tmp_path / "link", Path("/tmp").resolve()} & found


@pytest.mark.skipif(enclosure._landlock_version() < 2, reason="this kernel has no Landlock")
def test_behind_landlock_the_state_is_out_of_reach_but_for_what_is_allowed(tmp_path: Path) -> None:
    state, beside = tmp_path / "state", tmp_path / "beside"
    for path in (state / "jobs", beside):
        path.mkdir(parents=True)
    for path in (state / "key", state / "readable", state / "jobs" / "own", beside / "file"):
        path.write_text("x")

    def act() -> None:
        rules = enclosure.landlock_rules(str(state), [str(state / "jobs")], [str(state / "readable")])
        enclosure.obey_landlock(rules)
        os.close(rules)
        (state / "jobs" / "own").write_text("y")
        (beside / "file").write_text("y")
        assert (state / "readable").read_text() == "x"
        for forbidden in (lambda: (state / "key").read_text(), lambda: (state / "readable").write_text("y")):
            with pytest.raises(PermissionError):
                forbidden()

    in_a_child(act)


def test_where_our_user_can_write_above_the_state_landlock_is_no_wall(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    said = enclosure.why_no_landlock(str(tmp_path / "state"))
    assert "can write in" in said or said == "this kernel has no Landlock (Linux 5.19)"
