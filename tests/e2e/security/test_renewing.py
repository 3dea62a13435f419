"""Certificates come and go while jobs run: nobody starts anything again for it, and no job notices."""

import datetime
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from distributed_grid.coordinator.access.ca import DAY, Pki
from distributed_grid.coordinator.access.identities import Certified
from distributed_grid.identity.keys import (
    certificate_in,
    key_pem,
    new_key,
    read_secret,
    replace_identity,
    request_for,
    validity_of,
)
from distributed_grid.protocol.identity import Identity, Role
from tests.grid_fixture import CONFIG, Grid, founded_grid, until

PROGRAM = """
import asyncio, pathlib, sys
from distributed_grid.coordinator.client.aio import GridClient

async def main(url, own):
    before = own.read_bytes()
    async with GridClient(url) as grid:
        while own.read_bytes() == before:
            await grid.nodes()
            await asyncio.sleep(0.05)
    print("renewed")

asyncio.run(main(sys.argv[1], pathlib.Path(sys.argv[2], "own.key")))
"""


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with founded_grid(tmp_path_factory.mktemp("founded")) as grid:
        yield grid


def aged(grid: Grid, folder: Path, role: Role, name: str, ago: float, life: float) -> None:
    """Replace the identity in a folder by one that was issued `ago` seconds ago and is valid for `life` seconds. The
    coordinator does not run meanwhile."""
    pki = Pki(grid.home / "coordinator" / "pki", founded_id(grid))
    key, then = new_key(), datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=ago)
    signed = pki.authority.sign(request_for(key), Identity(pki.authority.grid, role, name), then, life)
    before: Certified | None = pki.identities.certified(f"{certificate_in(folder).serial_number:x}")
    assert before is not None
    end = validity_of(signed).end
    pki.identities.signed(signed.serial_number, role, name, end, then.timestamp(), before.token)
    pki.close()
    replace_identity(folder, key_pem(key), signed.public_bytes(serialization.Encoding.PEM).decode())


def founded_id(grid: Grid) -> str:
    from distributed_grid.coordinator.backup.state import content, open_read_only

    with open_read_only(grid.home / "coordinator") as db:
        return content(db).grid


def test_a_node_and_a_person_have_their_certificates_renewed_by_being_there(grid: Grid) -> None:
    grid.join("lab1", "--node", "lab1")
    node, own = grid.home / "lab1" / "identity", grid.home / "config" / "grid" / "contexts" / "default"
    person = grid.json("context", "list")["contexts"][0]["user"]
    grid.kill("coordinator")
    aged(grid, node, Role.AGENT, "lab1", ago=6 * DAY, life=7 * DAY)
    aged(grid, own, Role.OPERATOR, person, ago=80 * DAY, life=90 * DAY)
    grid.start_coordinator()
    before = [read_secret(folder / "own.key") for folder in (node, own)]
    grid.start_agent("lab1")
    until(lambda: "certificate renewed" in grid.log("lab1"), "the node's certificate is renewed" + grid.log("lab1"))
    assert grid.run("nodes").returncode == 0
    for folder, old, days in ((node, before[0], 7), (own, before[1], 90)):
        assert read_secret(folder / "own.key") != old
        assert (folder / "own.key").stat().st_mode & 0o777 == 0o600
        assert (
            validity_of(certificate_in(folder)).end > datetime.datetime.now(datetime.UTC).timestamp() + (days - 1) * DAY
        )
    # The next connections are made with it: for bulk data, and of the next command.
    done = grid.run("run-shared", "--no-ship", "sh", "-c", "echo $GRID_NODE")
    assert (done.returncode, done.stdout) == (0, "lab1\n"), done.stderr
    again = read_secret(own / "own.key")
    assert grid.run("nodes").returncode == 0 and read_secret(own / "own.key") == again  # it is not renewed each time


def test_a_program_has_its_certificate_renewed_by_being_connected(grid: Grid) -> None:
    own = grid.home / "config" / "grid" / "contexts" / "default"
    context = grid.json("context", "list")["contexts"][0]
    grid.kill("coordinator")
    aged(grid, own, Role.OPERATOR, context["user"], ago=80 * DAY, life=90 * DAY)
    grid.start_coordinator()
    old = read_secret(own / "own.key")
    command = [sys.executable, "-c", PROGRAM, grid.url, str(own)]
    done = subprocess.run(command, env=grid.environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "renewed\n"), done.stderr
    assert read_secret(own / "own.key") != old
    assert validity_of(certificate_in(own)).end > datetime.datetime.now(datetime.UTC).timestamp() + 89 * DAY
    assert grid.run("nodes").returncode == 0, "the next connection is made with it"


def test_a_node_whose_certificate_expired_while_it_was_cut_off_comes_back_with_its_job(grid: Grid) -> None:
    gate = grid.here / "gate"
    job = grid.run("run-shared", "-d", "--no-ship", "sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.1; done; exit 7")
    assert job.returncode == 0, job.stderr
    until(lambda: grid.job(job.stdout.strip())["state"] == "running", "the job runs")
    grid.kill("coordinator")
    aged(grid, grid.home / "lab1" / "identity", Role.AGENT, "lab1", ago=20 * DAY, life=7 * DAY)
    grid.start_coordinator()
    until(lambda: "renewed after it had expired" in grid.log("lab1"), "it is renewed" + grid.log("lab1"))
    gate.touch()
    ended = grid.run("job", "wait", job.stdout.strip())
    assert ended.returncode == 7, ended.stderr + grid.log("coordinator")
    assert grid.processes["lab1"].poll() is None  # it is the agent that was there all the time


def test_a_node_without_jobs_whose_certificate_expired_is_told_to_join_again_and_can(grid: Grid) -> None:
    grid.kill("lab1")
    grid.kill("coordinator")
    aged(grid, grid.home / "lab1" / "identity", Role.AGENT, "lab1", ago=8 * DAY, life=7 * DAY)
    grid.start_coordinator()
    grid.start_agent("lab1")
    assert grid.processes["lab1"].wait(timeout=60) == 1
    assert "no job of the grid runs there" in grid.log("lab1")
    grid.join("lab1", "--node", "lab1")
    grid.start_agent("lab1")
    grid.await_offers(1)


def test_a_job_and_who_waits_for_it_outlive_many_certificates(tmp_path: Path) -> None:
    """Connections end with certificates: a living agent and a command that waits renew theirs before that."""
    config = CONFIG + "certificates:\n  agent_life: 8s\n  person_life: 8s\n"
    with founded_grid(tmp_path, config) as grid:
        grid.join("lab1", "--node", "lab1")
        grid.start_agent("lab1")
        gate = grid.here / "gate"
        script = f"while [ ! -e {gate} ]; do sleep 0.05; done; echo $GRID_ALLOCATION_ID"
        waits = grid.begin("run-shared", "--no-ship", "sh", "-c", script)
        until(lambda: grid.log("lab1").count("certificate renewed") >= 2, "it is renewed twice" + grid.log("lab1"))
        gate.touch()
        out, err = waits.communicate(timeout=60)
        assert waits.returncode == 0 and out.endswith(b".1\n"), err
        assert b"connection lost" not in err
        assert "is gone" not in grid.log("lab1")
        assert "has expired" not in grid.log("coordinator")
