"""`grid node add` and `remove` against a real sshd, in a network namespace of its own, with all that may go wrong."""

import asyncio
import os
import shutil
import signal
import threading
from typing import Any

import pytest

from distributed_grid.identity.enrollment import pin_in
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.nodes import Lending
from distributed_grid.push.plan import Target
from distributed_grid.push.provisioning import Added, add
from distributed_grid.push.ssh import Host, Remote, SshOptions
from tests.grid_fixture import contents, until
from tests.push.conftest import Scene
from tests.push.hosts import ADDRESS

pytestmark = [pytest.mark.root, pytest.mark.netns, pytest.mark.timeout(400)]
TARGET = Target(ADDRESS, "root")
PLAIN = SshOptions()
LONG = 180.0
"""Seconds that installing may take on a busy machine."""


async def refusal(way: SshOptions = PLAIN, target: Target = TARGET) -> GridError:
    """What is said where we are not let in, or do not go in."""
    with pytest.raises(GridError) as refused:
        async with Host(target, way):
            pass
    return refused.value


# --- who is who -------------------------------------------------------------------------------------------------------


async def test_a_host_whose_key_is_not_known_is_refused_and_taken_only_where_that_is_said(scene: Scene) -> None:
    known = scene.far.ours / ".ssh" / "known_hosts"
    before = known.read_text()
    known.unlink()
    refused = await refusal()
    assert "is not known" in refused.what and "SHA256:" in refused.why and "--accept-new" in refused.hint
    assert not known.exists()
    async with Host(TARGET, SshOptions(accept_new=True)) as there:
        assert (await there.run("cat; exit 3", b"told")) == (3, b"told", b"")
    assert known.read_text() == before
    async with Host(TARGET, PLAIN):  # from now on it is known
        pass


async def test_a_host_whose_key_has_changed_is_refused_also_where_new_ones_are_taken(scene: Scene) -> None:
    known = scene.far.ours / ".ssh" / "known_hosts"
    before = known.read_text()
    known.write_text(f"{ADDRESS} " + " ".join((scene.far.keys / "stranger.pub").read_text().split()[:2]) + "\n")
    changed = known.read_text()
    refused = await refusal(SshOptions(accept_new=True))
    assert "is not the one that is known" in refused.what and "ssh-keygen -R" in refused.hint
    assert known.read_text() == changed
    known.write_text(before)


async def test_a_configuration_that_looks_at_no_key_is_not_followed(scene: Scene) -> None:
    config = scene.far.ours / ".ssh" / "config"
    before = config.read_text()
    config.write_text(before + "  UserKnownHostsFile none\n")
    assert "would not be looked at" in (await refusal()).what
    config.write_text(before)


async def test_a_key_that_is_not_let_in_and_a_host_that_is_not_there_are_said(scene: Scene) -> None:
    wrong = await refusal(SshOptions(identity=str(scene.far.keys / "stranger")))
    assert "does not let us in" in wrong.what and "--identity" in wrong.hint
    assert "connection refused" in (await refusal(target=Target(ADDRESS, "root", 2222))).why
    assert "cannot be read" in (await refusal(SshOptions(identity=str(scene.far.keys / "none")))).what


def test_what_runs_there_ends_with_who_is_interrupted(scene: Scene) -> None:
    async def interrupted() -> None:
        async with Host(TARGET, PLAIN) as there:
            begun = asyncio.create_task(there.run("cat >/dev/null", hold=True))
            await asyncio.to_thread(until, scene.far.processes, "it has begun")
            begun.cancel()
            with pytest.raises(asyncio.CancelledError):
                await begun
            await asyncio.to_thread(until, lambda: not scene.far.processes(), "it ends")

    asyncio.run(interrupted())


async def test_what_runs_there_already_while_the_answer_is_on_its_way_ends_with_who_is_interrupted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Host(TARGET, PLAIN) as there:
        connection, answered = await there.open(), asyncio.Event()
        create: Any = connection.create_process

        async def late(*words: Any, **options: Any) -> Any:
            process = await create(*words, **options)
            await answered.wait()
            return process

        monkeypatch.setattr(connection, "create_process", late)
        begun = asyncio.create_task(there.run("cat >/dev/null", hold=True))
        await asyncio.to_thread(until, scene.far.processes, "it has begun")
        begun.cancel()
        asyncio.get_running_loop().call_soon(answered.set)
        with pytest.raises(asyncio.CancelledError):
            await begun
        await asyncio.to_thread(until, lambda: not scene.far.processes(), "it ends")


# --- a node, from its beginning to its end ----------------------------------------------------------------------------


def test_a_host_becomes_a_node_runs_a_job_and_is_a_host_again(scene: Scene) -> None:
    done = threading.Event()
    watcher = threading.Thread(target=scene.watch, args=(done,))
    watcher.start()
    try:
        words = ("node", "add", scene.target, "--wheels", str(scene.wheels), "--label", "zone=a")
        added = scene.grid.run(*words, timeout=LONG)
    finally:
        done.set()
        watcher.join()
    assert added.returncode == 0, added.stderr
    assert added.stdout.startswith("lab1 is added: it lends up to ")
    assert "jobs on lab1 will run as root" in added.stderr and "waiting for its first heartbeat" in added.stderr
    job = scene.grid.run("run-shared", "--no-ship", "sh", "-c", "echo $GRID_NODE $(id -un)")
    assert (job.returncode, job.stdout) == (0, "lab1 root\n"), job.stderr
    assert scene.known() == (["lab1"], ["lab1"], 0)

    # Nobody could have read the secret: not from a command line, not from a file, not from what was said.
    assert [line for line in scene.seen if "agent join --name lab1 -" in line], "the watcher saw nothing"
    invitation = f"grid1.{pin_in((scene.grid.home / 'coordinator/pki/ca.crt').read_text())}."  # to this grid
    assert len(invitation) > 50 and not [line for line in scene.seen if invitation in line]
    assert "grid1." not in added.stdout + added.stderr + (scene.grid.home / "coordinator.log").read_text()
    state = scene.far.home / ".local/state/grid/agent-lab1"
    assert not [path for path, content in contents(state) if b"grid1." in content]
    assert (state / "identity/own.key").stat().st_mode & 0o777 == 0o600

    again = scene.grid.json(*words)["hosts"][0]
    assert (again["node"], again["result"]) == ("lab1", "unchanged")
    builds = scene.far.home / ".local/share/grid/builds"
    shutil.copytree(builds, scene.far.keys / "builds", symlinks=True, copy_function=os.link)

    kept = scene.grid.begin("run-shared", "--no-ship", "sleep", "600")
    until(lambda: scene.grid.json("nodes")["nodes"][0]["jobs"] == 1, "a job runs there")
    removed = scene.grid.run("node", "remove", "lab1", "--now", timeout=LONG)
    assert removed.returncode == 0, removed.stderr
    kept.kill()
    kept.communicate()
    scene.grid.run("cancel", "--all")
    scene.bare()


def test_a_node_that_is_interrupted_on_its_way_leaves_nothing(scene: Scene) -> None:
    words = ("node", "add", scene.target, "--wheels", str(scene.wheels))
    going = scene.grid.begin(*words, bufsize=-1)
    assert going.stderr is not None
    for line in going.stderr:
        if b"installing" in line:
            break
    until(lambda: any("venv" in line for line in scene.far.processes().values()), "it installs")
    going.send_signal(signal.SIGINT)
    _, said = going.communicate(timeout=LONG)
    assert going.returncode == 130 and b"undone: that is removed" in said, said
    scene.bare()


def test_what_cannot_be_installed_is_said_of_its_host_and_nothing_is_left(scene: Scene) -> None:
    builds = scene.far.home / ".local/share/grid/builds"
    builds.mkdir(parents=True)
    (builds / scene.payload.build).write_text("in the way")
    words = ("node", "add", scene.target, f"{scene.target}:2222", "--wheels", str(scene.wheels))
    failed = scene.grid.run(*words, timeout=LONG)
    assert failed.returncode == 1 and failed.stdout == ""
    assert f"error: {scene.target}: {scene.target}: cannot make an environment" in failed.stderr
    assert f"error: {scene.target}:2222: cannot reach" in failed.stderr
    assert (builds / scene.payload.build).read_text() == "in the way"  # it is not ours
    shutil.rmtree(builds.parent)
    scene.bare()


# --- failures ---------------------------------------------------------------------------------------------------------


class Breaking(Remote):
    """The remote program, but one of its calls fails after it was done, or the connection breaks over it."""

    def __init__(self, host: Host, what: str, cut: Scene | None) -> None:
        super().__init__(host)
        self.breaks = what
        self._cut = cut

    async def call(self, what: str, /, **told: Any) -> Any:
        if what != self.breaks:
            return await super().call(what, **told)
        self.breaks = ""
        if self._cut is not None:
            for pid, line in self._cut.far.processes(sshd=True).items():
                if "@" in line:
                    os.kill(pid, signal.SIGKILL)
        await super().call(what, **told)
        raise GridError(f"{what} broke")


async def adding(scene: Scene, breaks: str, cut: bool = False) -> Added:
    async with Host(TARGET, PLAIN) as there:
        far = Breaking(there, breaks, scene if cut else None)
        return await add(far, scene.coordinator, scene.payload, "", {}, Lending(), scene.address, print)


@pytest.mark.parametrize(("breaks", "cut"), [("join", False), ("switch", True), ("start", False)])
async def test_a_step_that_fails_is_undone_with_all_before_it(scene: Scene, breaks: str, cut: bool) -> None:
    share = scene.installed()
    before = scene.far.files()
    with pytest.raises(GridError) as failed:
        await adding(scene, breaks, cut)
    assert "not undone" not in failed.value.why
    assert {path for path in scene.far.files() - before if "__pycache__" not in path} <= {".local/state/grid"}
    shutil.rmtree(share)
    scene.bare()


async def test_a_node_can_be_forgotten_without_its_host(scene: Scene) -> None:
    share = scene.installed()
    assert (await adding(scene, "")).verb == "added"
    forgotten = await asyncio.to_thread(scene.grid.run, "node", "remove", "lab1", "--forget")
    assert forgotten.returncode == 0, forgotten.stderr
    assert "opens nothing any more" in forgotten.stderr
    assert scene.known() == ([], [], 0)
    assert (share / "venv").exists()
