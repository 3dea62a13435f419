"""The Unix socket of the coordinator: the kernel says who comes, and what they say themselves does not matter."""

import asyncio
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from distributed_grid.coordinator.access.admission import user_name
from distributed_grid.coordinator.net.listener import bind_unix, closed_to_others
from distributed_grid.protocol.codec import decode, encode
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import Failed, Hello, ListAccess, Refused, ShowJobs, Welcome
from distributed_grid.protocol.placement import UID_RANGE
from distributed_grid.runtime import accounts
from distributed_grid.runtime.local import LOCAL_URI, SOCKET, NoSocket, dial, socket_path
from tests.coordinator.ends import ClientEnd, Coordinator, client, coordinator, job, node

NOBODY = 65534
NAMELESS = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can come as somebody else")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that others may go through, as those of pytest are not."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest_asyncio.fixture
async def master(folder: Path) -> AsyncIterator[Coordinator]:
    async with coordinator(folder) as made:
        await made.server.listen_locally(folder)
        yield made


def dialled(folder: Path, uid: int) -> socket.socket:
    """A connection that this user opened."""
    own = os.geteuid()
    os.seteuid(uid)
    try:
        return dial(folder / SOCKET, 5.0)
    finally:
        os.seteuid(own)


async def come(folder: Path, uid: int, says: str) -> ClientEnd:
    return await client(LOCAL_URI, says, sock=dialled(folder, uid))


async def is_operator(end: ClientEnd) -> bool:
    answer = await end.ask(ListAccess(id=1))
    assert isinstance(answer, Failed) and answer.code in ("not-allowed", "no-authority"), answer
    return answer.code == "no-authority"  # the grid has no authority, which an operator is told


async def submitter(end: ClientEnd) -> str:
    (made,) = await end.submit(job(), watch=False)
    return str((await end.ask(ShowJobs(2, (made,)))).jobs[0].user)


async def test_the_coordinators_own_user_is_an_operator_under_its_own_name(master: Coordinator) -> None:
    end = await come(master.state_dir, os.geteuid(), "somebody else")
    assert await is_operator(end)
    assert await submitter(end) == pwd.getpwuid(os.geteuid()).pw_name
    await end.close()


@as_root
@pytest.mark.parametrize(("uid", "name"), [(NOBODY, "nobody"), (NAMELESS, f"uid-{NAMELESS}")])
async def test_another_user_is_a_client_under_their_own_name_whatever_they_say(
    master: Coordinator, uid: int, name: str
) -> None:
    end = await come(master.state_dir, uid, "root")
    assert not await is_operator(end)
    assert await submitter(end) == name
    await end.close()


async def said_to_an_agent(folder: Path, uid: int) -> Welcome | Refused:
    hello = Hello(protocol=(1, 0), software="test", role="agent", name="n1", facts=node())
    async with connect(LOCAL_URI, sock=dialled(folder, uid)) as wire:
        await wire.send(encode(0, [hello]))
        answer: Welcome | Refused = decode("ToAgent", bytes(await wire.recv()))[1][0]  # type: ignore[arg-type]
        return answer


async def test_an_agent_of_the_coordinators_own_user_comes_in(master: Coordinator) -> None:
    assert isinstance(await said_to_an_agent(master.state_dir, os.geteuid()), Welcome)
    async with asyncio.timeout(60):
        while "n1" not in master.ledger.state.nodes:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert master.ledger.state.nodes["n1"].facts.address == "127.0.0.1"


@as_root
async def test_another_users_agent_does_not(master: Coordinator) -> None:
    answer = await said_to_an_agent(master.state_dir, NOBODY)
    assert isinstance(answer, Refused) and answer.final and "may not speak for node 'n1'" in answer.what
    assert "client nobody, by its uid 65534" in answer.why and not master.ledger.state.nodes


async def test_where_there_is_an_authority_a_node_needs_its_certificate(folder: Path) -> None:
    async with coordinator(folder, founded=True) as founded:
        await founded.server.listen_locally(folder)
        answer = await said_to_an_agent(folder, os.geteuid())
        assert isinstance(answer, Refused) and answer.final and "may not speak for node 'n1'" in answer.what


ASK = """
import os, socket, sys
from websockets.sync.client import connect
from distributed_grid.runtime import accounts
from distributed_grid.runtime.local import LOCAL_URI
from distributed_grid.protocol.codec import decode, encode
from distributed_grid.protocol.messages import Hello
folder, name = os.path.split(sys.argv[1])
os.chdir(folder)
os.seteuid(int(sys.argv[2]))
ours = socket.socket(socket.AF_UNIX)
ours.connect(name)
def ask():
    with connect(LOCAL_URI, sock=ours) as wire:
        wire.send(encode(0, [Hello(protocol=(1, 0), software="test", role="client", name="root")]))
        told = decode("ToClient", wire.recv())[1][0]
        print(type(told).__name__, getattr(told, "why", "") or getattr(told, "role", ""), flush=True)
        os._exit(0)
"""
JOB = (
    "import ctypes, os, subprocess, sys; ctypes.CDLL(None).prctl(15, b'grid-supervisor', 0, 0, 0)\n"
    "sys.exit(subprocess.run([sys.executable, '-c', sys.argv[1], *sys.argv[2:]]).returncode)"
)


async def asked(master: Coordinator, *words: str) -> str:
    """What a process is told that comes to the socket."""
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        return await asyncio.to_thread(process.stdout.readline)


@pytest.mark.parametrize("uid", [os.geteuid(), pytest.param(NOBODY, marks=as_root)])
async def test_a_job_is_nobody_whichever_user_it_runs_as(master: Coordinator, uid: int) -> None:
    path = str(master.state_dir / SOCKET)
    assert await asked(master, "-c", JOB, ASK + "ask()", path, str(uid)) == (
        "Refused it is a job's process, or was started by one\n"
    )
    assert (await asked(master, "-c", ASK + "ask()", path, str(uid))).startswith("Welcome")


async def test_a_connection_that_a_process_passed_on_before_it_ended_is_refused(master: Coordinator) -> None:
    waits = "import time\n    while os.getppid() == parent: time.sleep(0.01)\n    ask()"
    passed = ASK + f"parent = os.getpid()\nif os.fork() == 0:\n    {waits}\nos._exit(0)"
    said = await asked(master, "-c", passed, str(master.state_dir / SOCKET), str(os.geteuid()))
    assert said.startswith("Refused the process that connected is gone")


@as_root
@pytest.mark.parametrize("uid", UID_RANGE)
async def test_a_user_of_the_walls_is_refused(master: Coordinator, uid: int) -> None:
    end = await come(master.state_dir, uid, "root")
    assert isinstance(end.seen[0], Refused) and "the range that walls give to jobs" in end.seen[0].why
    await end.close()


@as_root
async def test_the_user_that_the_agents_unit_names_is_no_client(
    master: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "UNITS", (tmp_path,))
    (tmp_path / "grid-agent.service").write_text("[Service]\nUser=nobody\n")
    (tmp_path / "grid-agent.service.d").mkdir()
    (tmp_path / "grid-agent.service.d" / "x.conf").write_text(f"[Service]\nUser={NAMELESS}\n")
    for uid in (NOBODY, NAMELESS):
        end = await come(master.state_dir, uid, "root")
        assert isinstance(end.seen[0], Refused) and end.seen[0].what == "a service account is no client of the grid"
        await end.close()
    (tmp_path / "grid-agent.service").write_text("[Service]\nUser=root\n")
    end = await come(master.state_dir, os.geteuid(), "root")
    assert isinstance(end.seen[0], Welcome)
    await end.close()


async def test_what_a_killed_coordinator_left_is_replaced_and_a_path_may_be_long(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 150)
    deep.mkdir()
    bind_unix(deep).close()
    with pytest.raises(NoSocket, match="cannot reach") as refused:
        dial(deep / SOCKET, 5.0)
    assert "its coordinator does not run" in refused.value.why
    async with coordinator(deep) as made:
        await made.server.listen_locally(deep)
        end = await client(LOCAL_URI, sock=dial(deep / SOCKET, 5.0))
        assert isinstance(end.seen[0], Welcome)
        await end.close()
    assert not (deep / SOCKET).exists(), "what has stopped leaves none"


def test_a_file_in_its_place_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / SOCKET).write_text("mine")
    with pytest.raises(GridError, match="is in the way"):
        bind_unix(tmp_path)
    assert (tmp_path / SOCKET).read_text() == "mine"


def test_who_finds_no_socket_is_told_what_is_there_instead(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, why in (("none", "no such socket"), ("file", "not a socket"), ("file/x", "no such socket")):
        with pytest.raises(NoSocket) as refused:
            dial(tmp_path / name, 5.0)
        assert why in refused.value.why and refused.value.hint


@as_root
def test_who_may_not_go_through_the_state_directory_is_told_which(folder: Path) -> None:
    closed = folder / "state"
    closed.mkdir(mode=0o700)
    listener = bind_unix(closed)
    with pytest.raises(NoSocket) as refused:
        dialled(closed, NOBODY)
    listener.close()
    assert f"{closed} lets in its owner only" in refused.value.why


def test_nothing_that_is_or_comes_in_the_state_directory_is_for_others(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("")
    (tmp_path / "old").chmod(0o644)
    (tmp_path / "link").symlink_to("/etc/passwd")
    with closed_to_others(tmp_path):
        (tmp_path / "new").write_text("")
    (tmp_path / "later").write_text("")
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in tmp_path.iterdir()}
    assert (modes["old"], modes["new"]) == (0o600, 0o600) and modes["later"] & 0o400
    assert stat.S_IMODE(os.stat("/etc/passwd").st_mode) & 0o044


def test_a_user_whose_name_looks_like_a_number_of_another_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pwd.getpwuid(0)
    for name in ("uid-7", "", "a\nb", "x" * 65):
        told = pwd.struct_passwd((name, *entry[1:]))
        monkeypatch.setattr(pwd, "getpwuid", lambda _, told=told: told)
        assert user_name(1000) == "uid-1000"


def test_addresses_that_are_paths() -> None:
    assert socket_path("unix:///run/x.sock") == Path("/run/x.sock") == socket_path("/run/x.sock")
    assert socket_path("./x.sock") == Path("x.sock")
    assert socket_path("ws://127.0.0.1:7433") is None and socket_path("master:7433") is None
