"""The coordinator as a process: it starts, says where, and stops; what is in its way is one clear error."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.config.lending import GENERAL
from distributed_grid.config.schema import SETTINGS, Coordinator, GroupOfUsers, Placement, RightsSection, UserRights
from distributed_grid.config.settings import ClusterConfig, load
from distributed_grid.coordinator.access.joining import found
from distributed_grid.coordinator.main import CoordinatorSettings, _policy, _reached_at, configured, main
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Priority, State
from distributed_grid.protocol.messages import JobUpdate, Launch, ShowJobs, Welcome
from distributed_grid.protocol.messages.rights import UNLIMITED, GroupRights, Rights, Rules
from distributed_grid.protocol.nodes import Lending
from distributed_grid.protocol.resources import GIB
from distributed_grid.protocol.sharing.policies import Marks, OffloadingMode, PolicyName
from tests import forked
from tests.coordinator.ends import agent, client, job, node, runs_on

PROGRAM = """
import sys
from distributed_grid.config.schema import Coordinator
from distributed_grid.config.settings import ClusterConfig
from distributed_grid.coordinator.main import CoordinatorSettings, main

own = Coordinator(state_dir=sys.argv[1], port=0, heartbeat=0.75)
sys.exit(main(CoordinatorSettings(ClusterConfig(coordinator=own))))
"""


class Process:
    """A coordinator in a process of its own."""

    def __init__(self, state_dir: Path, environment: dict[str, str] | None = None) -> None:
        self.state_dir = state_dir
        (state_dir / "coordinator.json").unlink(missing_ok=True)
        self.errors = (state_dir.parent / "stderr").open("ab")
        (program := state_dir.parent / "program.py").write_text(PROGRAM)
        whole = os.environ | (environment or {})
        self.process = (
            forked.program(program, [str(state_dir)], whole, state_dir.parent, self.errors)
            if forked.can_run(whole)
            else subprocess.Popen([sys.executable, "-P", program, str(state_dir)], stderr=self.errors, env=whole)
        )

    def url(self) -> str:
        deadline = time.monotonic() + 60
        while not (self.state_dir / "coordinator.json").exists():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.01)
        url: str = json.loads((self.state_dir / "coordinator.json").read_text())["url"]
        return url

    def said(self) -> str:
        return (self.state_dir.parent / "stderr").read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.errors.close()
        return self.process.wait(timeout=60)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path / "state")
    yield process
    process.end(signal.SIGKILL)


def failing(
    state_dir: Path,
    capsys: pytest.CaptureFixture[str],
    insecure: bool = False,
    placement: Placement = Placement.EMBEDDED,
    **own: Any,
) -> tuple[int, str]:
    coordinator = Coordinator(state_dir=str(state_dir), **{"port": 0, **own})
    code = main(CoordinatorSettings(ClusterConfig(coordinator=coordinator, placement=placement), insecure))
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "Traceback" not in said and "try: " in said
    return code, said


def test_it_says_where_it_listens_and_stops_on_sigterm(running: Process) -> None:
    url = running.url()
    files = {}
    for path in running.state_dir.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is at work: what it wrote anew has got its name
            files[path.name] = stat.S_IMODE(path.stat().st_mode)
    assert {"grid.db", "lock", "coordinator.pid", "coordinator.json", "audit.log", "blobs"} <= set(files)
    assert stat.S_IMODE(running.state_dir.stat().st_mode) == 0o711, "others may go through it to the socket"
    assert files.pop("coordinator.sock") == 0o666
    assert not any(mode & 0o077 for mode in files.values()), "and read nothing else"
    told = json.loads((running.state_dir / "coordinator.pid").read_text())
    assert told["pid"] == running.process.pid
    ticks = Path(f"/proc/{told['pid']}/stat").read_text().rpartition(")")[2].split()[19]
    assert told["start"] == int(ticks)
    assert running.end() == 0
    assert f"listening on {url}" in running.said()
    assert not (running.state_dir / "coordinator.sock").exists()


def test_a_second_coordinator_on_the_same_state_is_refused_with_the_firsts_pid(
    running: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    running.url()
    code, said = failing(running.state_dir, capsys)
    assert code == 1 and str(running.process.pid) in said and str(running.state_dir) in said
    assert running.process.poll() is None


def test_a_port_in_use_is_said_with_the_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, said = failing(tmp_path, capsys, port=port)
    assert code == 1 and f"127.0.0.1:{port} is in use" in said and "--port" in said


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.invalid", "::"])  # noqa: S104
def test_an_address_that_is_not_loopback_needs_insecure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    code, said = failing(tmp_path / "state", capsys, host=host, port=7433)
    assert code == 78 and host in said and "--insecure" in said
    assert not (tmp_path / "state").exists()


def test_placement_by_ray_needs_to_know_where_ray_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = failing(tmp_path / "state", capsys, placement=Placement.RAY)
    assert code == 78 and "placement: ray" in said and "set ray.address to HOST:PORT" in said
    assert not (tmp_path / "state").exists()


def test_an_address_of_another_machine_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = failing(tmp_path, capsys, insecure=True, host="192.0.2.1")
    assert code == 1 and "cannot listen on 192.0.2.1:0" in said


def test_a_state_directory_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    code, said = failing(tmp_path / "file" / "state", capsys)
    assert code == 1 and str(tmp_path / "file" / "state") in said and "--state-dir" in said


@pytest.mark.parametrize("files", [9, 11])
def test_a_disk_on_which_not_all_files_can_be_made_is_said(
    tmp_path: Path, few_inodes: Callable[[Path, int], Path], files: int
) -> None:
    process = Process(state := few_inodes(tmp_path / "state", files))
    assert process.process.wait(timeout=60) == 1
    process.end()
    error, why, hint = process.said().splitlines()[-3:]
    assert error == f"error: the coordinator cannot work in {state}" and "df -i" in hint
    assert why.endswith(": No space left on device") and "Errno" not in why


def test_a_grid_whose_authority_lost_its_key_is_not_run_without_authority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, context = tmp_path / "state", tmp_path / "context"
    found(state, [], "ada", context, "wss://localhost:1")
    key = state / "pki" / "ca.key"
    key.rename(tmp_path / "ca.key")
    code, said = failing(state, capsys)
    assert code == 78 and f"{key} is missing" in said
    with pytest.raises(GridError, match="there is an authority in"):
        found(state, [], "ada", tmp_path / "another", "wss://localhost:1")
    assert not key.exists() and (state / "pki" / "ca.crt").exists(), "its members are still its members"


def test_a_damaged_store_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "grid.db").write_bytes(b"no database" * 1000)
    code, said = failing(tmp_path, capsys)
    assert code == 78 and "damaged" in said, "it is not started again and again"


@pytest.mark.parametrize(
    ("action", "words"),
    [("enospc", "no space left"), ("eio", "the disk fails"), ("erofs", "cannot be written")],
)
def test_a_disk_that_does_not_take_the_new_epoch_is_said(tmp_path: Path, action: str, words: str) -> None:
    process = Process(tmp_path / "state", {"GRID_FAULTS": f"coordinator.epoch:1:{action}"})
    assert process.process.wait(timeout=60) == 1
    process.end()
    said = process.said()
    assert words in said and str(tmp_path / "state" / "grid.db") in said and "Traceback" not in said
    assert [line.split(":")[0].strip() for line in said.splitlines()[-3:]] == ["error", "why", "try"]


async def test_agents_are_told_how_often_they_are_to_be_heard(running: Process) -> None:
    worker = await agent(await asyncio.to_thread(running.url), node("n1"))
    assert (await worker.until(Welcome)).heartbeat == 0.75
    await worker.close()


async def test_killed_at_any_moment_it_has_all_that_it_acknowledged(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    first = Process(state)
    try:
        url = await asyncio.to_thread(first.url)
        worker, ann = await agent(url, node(cores=1), runs_on), await client(url)
        (running,) = await ann.submit(job("sleep", "1"))
        await worker.until(Launch)
        await ann.until(lambda seen: isinstance(seen, JobUpdate) and seen.job.state is State.RUNNING)
        queued = await ann.submit(*(job("true") for _ in range(500)), watch=False)
        first.end(signal.SIGKILL)
        await ann.gone()
        second = Process(state)
        try:
            ann = await client(await asyncio.to_thread(second.url))
            shown = (await ann.ask(ShowJobs(1, (running, *queued)))).jobs
            assert [view.id for view in shown] == [running, *queued]
            assert shown[0].allocation == f"{running}.1"
            assert {view.state for view in shown[1:]} == {State.WAITING}
            await ann.close()
        finally:
            assert second.end() == 0
    finally:
        first.end(signal.SIGKILL)


async def submit_one(url: str) -> None:
    ann = await client(url)
    await ann.submit(job("true"))
    await ann.close()


def test_systemd_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(60)
        asked = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "GRID_FAULTS": "coordinator.commit:1:enospc"}
        process = Process(tmp_path / "state", asked)
        try:
            assert told.recv(4096).startswith(b"READY=1\nSTATUS=listening on ws://")
            asyncio.run(submit_one(process.url()))
            assert told.recv(4096).startswith(b"STATUS=no new jobs are taken")
            assert told.recv(4096).startswith(b"STATUS=listening on ws://")
            assert process.end() == 0
            assert told.recv(4096) == b"STOPPING=1"
        finally:
            process.end(signal.SIGKILL)


class Named:
    """What a coordinator's certificate is for."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def hosts(self) -> list[str]:
        return [*self._names]


@pytest.mark.parametrize(
    ("names", "own", "url"),
    [
        (("lab", "localhost"), {"host": "0.0.0.0"}, "wss://lab:7500"),
        (("fd00::1", "localhost"), {"host": "::"}, "wss://[fd00::1]:7500"),
        (("lab", "127.0.0.1"), {"host": "127.0.0.1"}, "wss://127.0.0.1:7500"),
        (("lab",), {"host": "0.0.0.0", "url": "wss://new:1"}, "wss://new:1"),
    ],
)
def test_others_reach_it_where_it_listens_by_a_name_of_its_certificate(
    tmp_path: Path, names: tuple[str, ...], own: dict[str, str], url: str
) -> None:
    config = ClusterConfig(coordinator=Coordinator(state_dir=str(tmp_path), port=7433, **own))  # type: ignore[arg-type]
    assert _reached_at(CoordinatorSettings(config), 7500, Named(*names)) == url  # type: ignore[arg-type]


def test_the_rights_of_the_configuration_are_those_of_the_ledger() -> None:
    section = RightsSection(
        users=(UserRights(name="ann", cores=1.5, memory_gb=2.0, core_hours_per_day=-1.0),),
        groups=(GroupOfUsers(name="lab", members=("ann",), gpus=0.5, jobs_waiting=9, reservations=False),),
    )
    assert _policy(ClusterConfig()).rights == Rules(default=Rights(highest_priority=Priority.HIGH))
    assert _policy(ClusterConfig(rights=section)).rights == Rules(
        default=Rights(highest_priority=Priority.HIGH),
        users={"ann": Rights(cores=1500, memory=2 * GIB, core_hours=UNLIMITED)},
        groups={"lab": GroupRights(("ann",), Rights(gpus=500, jobs_waiting=9, reservations=False))},
    )


def test_what_the_configuration_says_of_rebalancing_is_the_ledgers(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(
        "resource_sharing: {mode: offload_only, policy: aggressive, rebalance_interval: 5, excess_threshold: 0.5,"
        " pressure_thresholds: {gpu: {low: 0.1}}}\n"
    )
    config = load(file, environment={})
    found = _policy(config).balancing
    assert (found.mode, found.policy, found.interval) == (OffloadingMode.OFFLOAD_ONLY, PolicyName.AGGRESSIVE, 5.0)
    assert (found.excess, found.marks) == (0.5, Marks(gpu_low=0.1))
    assert configured(config).balancing == found
    assert _policy(ClusterConfig()).balancing.mode is OffloadingMode.DYNAMIC_BALANCING


def test_each_setting_is_handed_to_the_nodes_or_named_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("resource_sharing: {offer_expiry: 90}\nrights: {users: {bob: {cores: 4}}}\nnodes: [{name: n1}]\n")
    found = configured(load(file, environment={}))
    assert found.of("n1").values == Lending(offer_expiry=90.0)
    handed_out = {".".join(path) for path in GENERAL.values()}
    of_rebalancing = {name for name in map(".".join, SETTINGS) if "_pressure_" in name} | {
        f"resource_sharing.{name}"
        for name in ("mode", "policy", "rebalance_interval_seconds", "thresholds.excess_threshold")
    }
    of_scaling = {
        name for name in map(".".join, SETTINGS) if name.partition(".")[0] in ("scaling", "providers", "pools")
    }
    rest = {".".join(path) for path in SETTINGS} - handed_out - of_rebalancing - of_scaling
    assert rest == found.rest.keys() - {"rights.users.bob.cores"}
    assert found.rest["rights.users.bob.cores"] == "4" and found.rest["coordinator.port"] == "7433"
