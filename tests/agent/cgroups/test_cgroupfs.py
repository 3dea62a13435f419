"""The groups of jobs as the supervisor uses them: real groups in each hierarchy that this machine lets us use, with
real processes that try to get away."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distributed_grid.agent.cgroups import cgroupfs, hierarchies
from distributed_grid.agent.cgroups.cgroupfs import Place
from distributed_grid.agent.cgroups.groups import Amounts, Cgroups
from distributed_grid.agent.supervisor import procs
from tests.agent.conftest import removed, runs

HOMES = {"v2": (2, ""), "freezer": (1, "freezer"), "pids": (1, "pids"), "named": (1, "name=systemd")}
MOST = 200  # processes that a fork bomb of these tests may have
SETSID_FORKER = """
import os, sys, time
print('up', flush=True)
for _ in range(int(sys.argv[1])):  # so many that make a new one and leave, for ever: never the same pid for long
    try:
        made = os.fork()
    except OSError:
        continue  # those that wait to be reaped count as well
    if made == 0:
        while True:
            try:
                if os.fork():
                    os._exit(0)
                os.setsid()
            except OSError:
                pass
            time.sleep(0.0002)
"""


class Scene:
    """Groups below one place, a group `job` in it, and the processes that were started in that."""

    def __init__(self, groups: Cgroups, at: Place, log: list[str]) -> None:
        self.groups = groups
        self.at = at
        self.log = log
        self.started: list[subprocess.Popen[str]] = []

    def group(self, key: str = "job") -> Path:
        return Path(self.at.path, key)

    def populated(self) -> bool:
        return cgroupfs.populated(self.at, str(self.group()))

    def run(self, *argv: str, key: str = "job") -> subprocess.Popen[str]:
        """A process that is made in the group, by one that enters it for that: as a spawner does."""
        enter = ["sh", "-c", 'read _; exec "$@"', "sh", *argv]
        made = subprocess.Popen(enter, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.started.append(made)
        assert self.groups.enter(key, made.pid)
        assert made.stdin is not None
        made.stdin.write("go\n")
        made.stdin.close()
        return made

    def close(self) -> None:
        deadline = time.monotonic() + 30
        while not all([self.groups.kill(key) for key in self.groups.all_known()]):
            assert time.monotonic() < deadline
        for one in self.started:
            one.kill()
            one.wait()


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.005)


def places(setting: str) -> dict[str, Place]:
    """A limit of processes, in whichever version there is one: no test here can hurt the machine."""
    mounts = hierarchies.mounted()
    if "pids" in mounts:
        with contextlib.suppress(FileExistsError):
            os.mkdir(mounts["pids"] + setting)
        return {"pids": Place(1, mounts["pids"] + setting)}
    base = Path(mounts.get("", "/nowhere") + setting)
    if "pids" not in (base.parent / "cgroup.subtree_control").read_text().split():
        pytest.skip("needs the pids controller, to be safe")
    base.mkdir(exist_ok=True)
    (base / "cgroup.subtree_control").write_text("+pids")
    return {"pids": Place(2, str(base))}


@pytest.fixture(params=list(HOMES))
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    setting = f"/grid-test-{secrets.token_hex(4)}"
    version, name = HOMES[request.param]
    mount = hierarchies.mounted().get(name)
    if mount is None or os.geteuid() != 0:
        pytest.skip(f"needs root, and the hierarchy {name or 'of version 2'}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(mount + setting)
    log: list[str] = []
    limits = places(setting)
    at = Place(version, mount + setting)
    made = Scene(Cgroups(limits, log.append, at), at, log)
    try:
        made.groups.make("job", Amounts(pids=MOST))
        yield made
        assert log == []
    finally:
        made.close()
        until(lambda: all([removed(Path(base)) for base in {at.path, limits["pids"].path}]))


# --- who is in -------------------------------------------------------------------------------------------------------


def test_a_process_and_what_it_makes_are_members_from_the_first_instruction(scene: Scene) -> None:
    script = "cat /proc/self/cgroup; setsid sleep 1000 & echo; exec sleep 1000"
    main = scene.run("sh", "-c", script)
    assert main.stdout is not None
    seen = list(iter(main.stdout.readline, "\n"))
    until(lambda: len(scene.groups.members("job")) == 2)
    assert sum(line.rstrip().endswith(f"{scene.group().parent.name}/job") for line in seen) == len(
        {scene.at.path, places(f"/{scene.group().parent.name}")["pids"].path}
    )
    assert main.pid in scene.groups.members("job")


def test_what_a_job_moves_into_groups_of_its_own_making_stays_a_member_and_is_removed_with_it(scene: Scene) -> None:
    nested = scene.group() / "own" / "deeper"
    nested.mkdir(parents=True)
    sleeper = scene.run("sleep", "1000")
    (nested / "cgroup.procs").write_text(str(sleeper.pid))
    assert scene.groups.members("job") == {sleeper.pid}
    until(lambda: scene.groups.kill("job"))
    scene.groups.release("job")
    until(scene.groups.sweep)
    assert not scene.group().exists()


def test_a_group_of_which_only_zombies_are_left_is_empty(scene: Scene) -> None:
    main = scene.run("true")
    until(lambda: (seen := procs.stat(main.pid)) is not None and seen.state == "Z")
    assert scene.groups.members("job") == set()


def test_a_process_whose_first_thread_has_ended_is_a_member_and_no_zombie(scene: Scene) -> None:
    code = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).syscall(60, 0)
"""
    headless = scene.run(sys.executable, "-c", code)
    until(lambda: (seen := procs.stat(headless.pid)) is not None and seen.state == "Z")
    assert scene.groups.members("job") == {headless.pid}
    until(lambda: scene.groups.kill("job"))
    assert not scene.populated()


def test_a_spawner_that_enters_by_itself_is_in_all_groups_and_leaves_them_for_the_next_job(scene: Scene) -> None:
    doors = scene.groups.make("job", Amounts(pids=MOST))
    code = "import sys\nfor door in sys.argv[1:]: open(door, 'w').write('0')\nprint(flush=True); sys.stdin.read()"
    spawner = subprocess.Popen(
        [sys.executable, "-c", code, *doors], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    scene.started.append(spawner)
    assert spawner.stdout is not None and spawner.stdout.readline() == "\n"
    assert scene.groups.members("job") == {spawner.pid}
    assert scene.groups.park(spawner.pid, "slot-1")
    assert not scene.populated()
    assert scene.groups.members("slot-1") == {spawner.pid}


def test_groups_on_disk_are_known_by_their_keys_and_ours_are_none_of_them(scene: Scene) -> None:
    scene.groups.make("j-1.1", Amounts())
    for ours in ("agent", ".control", "try-17"):
        scene.group(ours).mkdir()
    again = Cgroups({}, scene.log.append, scene.at)
    assert again.all_known() == {"job", "j-1.1"}


@pytest.mark.parametrize("key", ["..", ".", "", "agent", "main", ".control", "a/b", "/", "cgroup.procs", "tasks"])
def test_what_is_no_name_of_a_jobs_group_is_refused(key: str, scene: Scene) -> None:
    for do in (scene.groups.kill, scene.groups.members, scene.groups.release):
        with pytest.raises(ValueError, match="not the name of a job's control group"):
            do(key)
    with pytest.raises(ValueError, match="not the name of a job's control group"):
        scene.groups.make(key, Amounts())


def test_a_group_with_more_groups_below_it_than_are_read_is_not_said_to_be_empty(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (scene.group() / f"own{number}").mkdir()
    assert not scene.populated()
    hidden = scene.run("sleep", "1000")
    (scene.group() / "own4" / "cgroup.procs").write_text(str(hidden.pid))
    monkeypatch.setattr(cgroupfs, "_MOST", 3)
    assert scene.populated()
    monkeypatch.undo()
    until(lambda: scene.groups.kill("job"))
    scene.groups.release("job")
    until(scene.groups.sweep)


# --- who is ended ----------------------------------------------------------------------------------------------------


def test_nothing_outlives_the_end_of_a_group_however_fast_it_forks(scene: Scene) -> None:
    main = scene.run(sys.executable, "-c", SETSID_FORKER, "20")
    until(lambda: len({seen.session for pid in scene.groups.members("job") if (seen := procs.stat(pid))}) > 5)
    until(lambda: scene.groups.kill("job"))
    assert scene.groups.members("job") == set() and not scene.populated()
    main.wait()


def test_a_group_that_is_frozen_or_stopped_is_ended_all_the_same(scene: Scene) -> None:
    main = scene.run("sh", "-c", "sleep 1000 & sleep 1000")
    until(lambda: len(scene.groups.members("job")) == 3)
    os.kill(main.pid, signal.SIGSTOP)
    if cgroupfs.can_freeze(str(scene.group())):
        cgroupfs.freeze(scene.at, str(scene.group()))
    until(lambda: scene.groups.kill("job"))
    assert main.wait() == -signal.SIGKILL


def test_a_spawner_is_spared_and_its_group_can_be_used_again(scene: Scene) -> None:
    spawner = scene.run("sleep", "1000")
    forker = scene.run(sys.executable, "-c", SETSID_FORKER, "5")
    assert forker.stdout is not None and forker.stdout.readline() == "up\n"
    until(lambda: scene.groups.kill("job", spare={spawner.pid}))
    assert scene.groups.members("job") == {spawner.pid} and runs(spawner.pid)
    assert scene.run("true").wait() == 0


def test_another_job_is_not_hit(scene: Scene) -> None:
    scene.groups.make("neighbour", Amounts())
    neighbour = scene.run("sleep", "1000", key="neighbour")
    scene.run("sleep", "1000")
    until(lambda: scene.groups.kill("job"))
    assert runs(neighbour.pid) and scene.groups.members("neighbour") == {neighbour.pid}


# --- how many --------------------------------------------------------------------------------------------------------


def test_a_fork_bomb_never_has_more_processes_than_its_limit_from_its_first_instruction(scene: Scene) -> None:
    scene.groups.make("job", Amounts(pids=30), guests=1)
    scene.groups.settle("job", Amounts(pids=30))
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    scene.run(sys.executable, "-c", bomb)
    limit = Path(places(f"/{scene.group().parent.name}")["pids"].path, "job")
    until(lambda: int((limit / "pids.events").read_text().split()[1]) > 0)
    assert len(scene.groups.members("job")) <= 30 and int((limit / "pids.current").read_text()) <= 30
    until(lambda: scene.groups.kill("job"))


def test_a_guest_does_not_count_against_a_limit_of_one(scene: Scene) -> None:
    scene.groups.make("one", Amounts(pids=1), guests=1)
    forks = "import os, sys; pid = os.fork(); pid or os._exit(3); sys.exit(os.waitpid(pid, 0)[1] >> 8)"
    assert scene.run(sys.executable, "-c", forks, key="one").wait() == 3
    scene.groups.settle("one", Amounts(pids=1))
    assert scene.run(sys.executable, "-c", forks, key="one").wait() == 1  # BlockingIOError


# --- when controllers go and come back -------------------------------------------------------------------------------


def test_limits_are_set_again_when_a_controller_is_handed_on_again(scene: Scene) -> None:
    place = places(f"/{scene.group().parent.name}")["pids"]
    if place.version == 1:
        pytest.skip("controllers of version 1 are not handed on")
    control = Path(place.path, "cgroup.subtree_control")
    sleeper = scene.run("sleep", "1000")
    control.write_text("-pids")  # as the unit does when its agent has ended (ExecStopPost)
    assert scene.groups.sweep()
    scene.groups.make("meanwhile", Amounts(pids=7))
    control.write_text("+pids")
    assert scene.groups.sweep()
    assert [scene.group(key).joinpath("pids.max").read_text() for key in ("job", "meanwhile")] == [f"{MOST}\n", "7\n"]
    assert scene.groups.members("job") == {sleeper.pid}
