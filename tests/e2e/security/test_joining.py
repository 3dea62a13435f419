"""A grid with an authority: who has joined gets in, as who it joined; everybody else is refused and changes nothing.
Real processes, real TLS, on loopback."""

import asyncio
import contextlib
import datetime
import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from websockets.asyncio.client import connect

from distributed_grid import __version__
from distributed_grid.coordinator.access.ca import Authority, Pki
from distributed_grid.identity.credentials import client_context, trusting_context
from distributed_grid.identity.keys import key_pem, new_key, request_for, save_identity
from distributed_grid.protocol import codec
from distributed_grid.protocol.identity import Identity, Role
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import Hello, Refused
from tests.coordinator.core.scene import facts
from tests.grid_fixture import Grid, contents, founded_grid, until


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """A founded grid without nodes; we are its operator."""
    with founded_grid(tmp_path_factory.mktemp("founded")) as grid:
        yield grid


def invitation(grid: Grid, *words: str) -> str:
    made = grid.run("token", "create", *words)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def joins(grid: Grid, token: str, name: str) -> subprocess.CompletedProcess[str]:
    return grid.run("agent", "join", token, "--name", name, "--state-dir", str(grid.home / name))


def authority(grid: Grid) -> str:
    return (grid.home / "coordinator" / "pki" / "ca.crt").read_text()


def log(grid: Grid) -> str:
    return (grid.home / "coordinator.log").read_text()


def spoken_to(grid: Grid, context: ssl.SSLContext, role: str, name: str) -> Refused | str:
    """Return the coordinator's answer to a hello; a text if the connection ends instead."""
    own = facts(name) if role == "agent" else None
    hello = Hello(protocol=PROTOCOL, software=__version__, role=role, name=name, facts=own)

    async def say() -> Refused | str:
        async with asyncio.timeout(60), connect(f"wss://localhost:{port}", ssl=context, proxy=None) as wire:
            await wire.send(codec.encode(0, [hello]))
            answer = codec.decode("ToClient", bytes(await wire.recv()))[1][0]  # type: ignore[arg-type]
            return answer if isinstance(answer, Refused) else type(answer).__name__

    port = int(grid.url.rpartition(":")[2])
    try:
        return asyncio.run(say())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_a_node_joins_by_a_token_and_runs_a_job(grid: Grid) -> None:
    token = invitation(grid, "--node", "lab1", "--label", "zone=a")
    joined = joins(grid, token, "lab1")
    assert joined.returncode == 0, joined.stderr
    key = grid.home / "lab1" / "identity" / "own.key"
    assert key.stat().st_mode & 0o777 == 0o600
    grid.start_agent("lab1")
    done = grid.run("run-shared", "--no-ship", "sh", "-c", "echo $GRID_NODE")
    assert (done.returncode, done.stdout) == (0, "lab1\n"), done.stderr
    node = json.loads(grid.run("nodes", "-o", "json").stdout)["nodes"][0]
    assert node["labels"] == {"zone": "a"}
    secret = token.rpartition(".")[2]
    for path, content in contents(grid.home):
        assert secret.encode() not in content, f"{path} has the token's secret"


def test_a_token_opens_as_often_as_was_said_and_what_it_refused_has_left_nothing(grid: Grid) -> None:
    token = invitation(grid, "--node", "lab2")
    assert joins(grid, token, "lab2").returncode == 0
    again = joins(grid, token, "other")
    assert again.returncode == 1 and "is used up" in again.stderr
    assert not (grid.home / "other").exists()
    assert "is used up" in log(grid)


def test_what_a_token_or_an_invitation_cannot_be_is_said_before_anything_is_sent(grid: Grid) -> None:
    made = grid.run("token", "create", "--role", "client", "--user", "ann", "--label", "a=b")
    assert (made.returncode, made.stdout) == (2, "") and "--label is for nodes" in made.stderr
    with socket.socket() as silent:  # has the port, and does not listen
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        lost = joins(grid, re.sub(r":\d+/", f":{port}/", invitation(grid)), "lab3")
    assert lost.returncode == 1 and "nothing listens there" in lost.stderr and "firewall" in lost.stderr


def test_a_token_is_refused_when_it_was_taken_back_or_its_secret_is_wrong(grid: Grid) -> None:
    token = invitation(grid)
    wrong = joins(grid, token[:-4] + "AAAA", "lab3")
    assert wrong.returncode == 1 and "is not known here" in wrong.stderr
    assert grid.run("token", "revoke", token).returncode == 0
    late = joins(grid, token, "lab3")
    assert late.returncode == 1 and "is used up" in late.stderr
    assert token.rpartition(".")[2] not in wrong.stderr + late.stderr + log(grid)


def test_a_name_that_has_a_valid_certificate_is_not_given_out_again_by_an_open_token(grid: Grid) -> None:
    assert joins(grid, invitation(grid, "--node", "lab4"), "lab4").returncode == 0
    shutil.rmtree(grid.home / "lab4")
    taken = joins(grid, invitation(grid), "lab4")
    assert taken.returncode == 1 and "there is a node called 'lab4' already" in taken.stderr
    other = joins(grid, invitation(grid, "--node", "desk*"), "lab5")
    assert other.returncode == 1 and "is for nodes called desk*" in other.stderr


def test_the_secret_of_a_token_is_not_sent_to_who_is_not_the_grid_it_pins(grid: Grid, tmp_path: Path) -> None:
    token = invitation(grid)
    other = Pki.create(tmp_path / "pki", "feed", ["localhost"])
    other.close()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pki" / "own.crt", tmp_path / "pki" / "own.key")
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def pretend() -> None:
            with context.wrap_socket(listener.accept()[0], server_side=True) as wire:
                heard.append(wire.recv(65536))
                pem = other.authority.pem
                wire.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(pem) + pem)
                listener.settimeout(0.5)
                try:
                    listener.accept()
                    heard.append(b"it came again")
                except TimeoutError:
                    pass

        pretender = threading.Thread(target=pretend)
        pretender.start()
        refused = joins(grid, f"grid://localhost:{port}/{token.rpartition('/')[2]}", "lab6")
        pretender.join()
    assert refused.returncode == 1 and "is not the grid that this token is for" in refused.stderr
    assert len(heard) == 1 and token.rpartition(".")[2].encode() not in heard[0]


def identity(grid: Grid, folder: Path, role: Role, name: str, authority: Authority | None = None) -> ssl.SSLContext:
    """Somebody's identity, signed by the grid's authority (whose key the test may read) or another."""
    store = json.loads(grid.run("status", "-o", "json").stdout)["grid"]
    own = authority or Authority.load(grid.home / "coordinator" / "pki", store)
    key = new_key()
    signed = own.sign(request_for(key), Identity(store, role, name), datetime.datetime.now(datetime.UTC), 3600)
    pem = signed.public_bytes(serialization.Encoding.PEM).decode()
    save_identity(folder, key_pem(key), pem, (grid.home / "coordinator" / "pki" / "ca.crt").read_text())
    return client_context(folder)


def test_a_node_speaks_for_itself_only_and_a_person_for_no_node(grid: Grid, tmp_path: Path) -> None:
    node = identity(grid, tmp_path / "node", Role.AGENT, "lab7")
    person = identity(grid, tmp_path / "person", Role.CLIENT, "ann")
    for context, role, name in ((node, "agent", "lab1"), (node, "client", "root"), (person, "agent", "lab1")):
        answer = spoken_to(grid, context, role, name)
        assert isinstance(answer, Refused) and answer.final, answer
    assert spoken_to(grid, person, "client", "root") == "Welcome"  # whatever name it says, it is ann
    assert "may not speak for node 'lab1'" in log(grid)


def test_a_viewer_changes_nothing_and_is_told_so(grid: Grid) -> None:
    home = grid.home / "viewer"
    token = invitation(grid, "--role", "viewer", "--user", "eve")
    environment = grid.environment | {"XDG_CONFIG_HOME": str(home)}
    own, grid.environment = grid.environment, environment
    try:
        assert grid.run("login", token).returncode == 0
        assert grid.run("nodes").returncode == 0
        refused = grid.run("run-shared", "-d", "--no-ship", "true")
        assert refused.returncode == 125 and "a viewer may not do this" in refused.stderr
        assert grid.run("node", "drain", "lab1").returncode == 1
        assert grid.run("token", "create").returncode == 1
    finally:
        grid.environment = own


def test_who_has_no_certificate_or_one_of_another_authority_or_an_old_tls_is_turned_away(
    grid: Grid, tmp_path: Path
) -> None:
    nobody = spoken_to(grid, trusting_context(authority(grid)), "client", "root")
    assert isinstance(nobody, Refused) and "asks who you are" in nobody.what
    store = json.loads(grid.run("status", "-o", "json").stdout)["grid"]
    forged = Authority.create(store, datetime.datetime.now(datetime.UTC))
    stranger = identity(grid, tmp_path / "forged", Role.OPERATOR, "root", forged)
    assert str(spoken_to(grid, stranger, "client", "root")).startswith(("SSL", "InvalidMessage", "Connection"))
    old = trusting_context(authority(grid))
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert str(spoken_to(grid, old, "client", "root")).startswith(("SSL", "Connection"))
    until(lambda: "does not speak TLS 1.3" in log(grid), "the log has a line about it")
    plain = grid.run("status", "--coordinator", grid.url.replace("wss:", "ws:"))
    assert plain.returncode == 1 and "Traceback" not in plain.stderr
    assert grid.run("status").returncode == 0


def test_a_certificate_that_is_taken_back_ends_its_connection_at_once_and_opens_nothing_more(grid: Grid) -> None:
    assert joins(grid, invitation(grid, "--node", "lab8"), "lab8").returncode == 0
    grid.start_agent("lab8")

    def nodes() -> dict[str, str]:
        return {one["name"]: one["state"] for one in grid.json("nodes")["nodes"]}

    until(lambda: nodes().get("lab8") == "up", "lab8 is up")
    said = grid.run("access", "revoke", "agent", "lab8")
    assert "1 certificate of lab8 taken back, and " in said.stderr
    process = grid.processes["lab8"]
    assert process.wait(timeout=60) == 1
    assert "was taken back" in (grid.home / "lab8.log").read_text()
    assert nodes()["lab8"] != "up"
    until(lambda: nodes()["lab1"] == "up", "the other one is up")


def test_on_the_master_itself_its_socket_is_found_and_no_certificate_is_needed(grid: Grid) -> None:
    own, places = grid.environment, grid.home / "local" / "grid"
    places.mkdir(parents=True)
    (places / "coordinator").symlink_to(grid.home / "coordinator")
    nowhere = {"XDG_STATE_HOME": str(grid.home / "local"), "XDG_CONFIG_HOME": str(grid.home / "none")}
    grid.environment = {name: value for name, value in own.items() if name != "GRID_COORDINATOR"} | nowhere
    try:
        invited = invitation(grid)  # who runs the coordinator is an operator
        assert invited.startswith(f"grid://127.0.0.1:{grid.url.rpartition(':')[2]}/grid1."), "where it really listens"
        missing = grid.run("status", "--coordinator", f"unix://{grid.home}/none.sock")
        assert missing.returncode == 1 and "there is no such socket" in missing.stderr
    finally:
        grid.environment = own


def test_a_key_that_others_can_read_is_not_used(grid: Grid) -> None:
    assert joins(grid, invitation(grid, "--node", "lab9"), "lab9").returncode == 0
    (grid.home / "lab9" / "identity" / "own.key").chmod(0o644)
    grid.start_agent("lab9")
    until(lambda: "can be read by others" in (grid.home / "lab9.log").read_text(), "it says so")


def test_a_second_founding_is_refused_and_changes_nothing(grid: Grid) -> None:
    before = authority(grid)
    again = grid.run("init", "--state-dir", str(grid.home / "coordinator"), "--context", "second")
    assert again.returncode == 1 and "stop it first" in again.stderr
    assert authority(grid) == before


def seen_by_all(secret: bytes) -> list[bytes]:
    """The command lines of this machine's processes that have it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if secret in (line := path.read_bytes()):
                found.append(line)
    return found


def test_of_a_whole_join_nobody_else_sees_the_secret(grid: Grid) -> None:
    token = invitation(grid, "--node", "lab10")
    secret = token.rpartition(".")[2]
    words = ("agent", "join", "-", "--name", "lab10", "--state-dir", str(grid.home / "lab10"))
    joining = grid.begin(*words, stdin=subprocess.PIPE)
    assert joining.stdin is not None
    joining.stdin.write(token.encode() + b"\n")
    joining.stdin.close()
    while joining.poll() is None:
        assert not seen_by_all(secret.encode())
    assert joining.returncode == 0
    said = b"".join(stream.read() for stream in (joining.stdout, joining.stderr) if stream is not None).decode()
    wrong = grid.run(*words, input=token)  # used up
    broken = grid.run(*words, input=token[:-1])
    assert wrong.returncode == broken.returncode == 1
    grid.start_agent("lab10")
    grid.await_offers(1)
    everything = said + wrong.stdout + wrong.stderr + broken.stderr + log(grid) + (grid.home / "lab10.log").read_text()
    assert secret[:-1] not in everything and "Traceback" not in everything
    for path, content in contents(grid.home):
        assert secret.encode() not in content, f"{path} has the token's secret"


def test_a_secret_that_was_given_as_an_argument_is_soon_not_to_be_seen_any_more(grid: Grid) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"grid://localhost:{silent.getsockname()[1]}/grid1.{'a' * 52}.0a1b2c3d.wellhidden"
        joining = grid.begin("agent", "join", address, "--name", "lab11")
        try:
            silent.settimeout(60)
            silent.accept()[0].close()  # by then it has gone to work
            assert not seen_by_all(b"wellhidden")
        finally:
            joining.kill()
            joining.communicate()
