"""`grid support-dump`: it has what helps, and not one of the secrets that are planted wherever there is a place."""

import json
import os
import shlex
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grid_fixture import CONFIG, Grid, contents, founded_grid, until

PLANTED = [
    f"hunter{word}42"
    for word in ("argv", "env", "output", "program", "label", "url", "log", "journal", "name", "shipped", "agentenv")
]
ARGV, ENV, OUTPUT, PROGRAM, LABEL, URL, LOG, JOURNAL, NAME, SHIPPED, AGENT_ENV = PLANTED


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """A grid that has seen secrets in every place where they can be."""
    config = CONFIG + f"  labels:\n    password: {LABEL}\ncoordinator:\n  url: wss://me:{URL}@localhost:1\n"
    with founded_grid(tmp_path_factory.mktemp("support")) as made:
        token = made.run("token", "create", "--node", "lab1").stdout.strip()
        PLANTED.append(token.rpartition(".")[2])
        state = str(made.home / "lab1")
        assert made.run("agent", "join", token, "--name", "lab1", "--state-dir", state).returncode == 0
        PLANTED.append(made.run("token", "create", "--node", "lab2").stdout.strip().rpartition(".")[2])
        made.start_agent("lab1", "--label", f"place={LABEL}", environment={"DB_PASSWORD": AGENT_ENV})
        made.await_offers(1)
        (made.here / "data").write_text(SHIPPED)
        done = made.run("run-shared", "-e", f"API_KEY={ENV}", "--name", NAME, "sh", "-c", f"echo {OUTPUT}; : {ARGV}")
        assert (done.returncode, done.stdout) == (0, f"{OUTPUT}\n"), done.stderr
        assert made.shared(PROGRAM, ARGV).returncode == 127
        begun = made.shared("-d", "-e", f"API_KEY={ENV}", "sh", "-c", f"sleep 1000; : {ARGV}")
        assert begun.returncode == 0, begun.stderr
        until(lambda: made.job()["state"] == "running", "one runs")
        with (made.home / "lab1" / "supervisor.log").open("a") as log:
            log.write(f"an odd line with password={LOG} and grid1.aa.bb.{LOG}\n")
        unit = Path(made.environment["XDG_CONFIG_HOME"]) / "systemd" / "user" / "grid-agent.service"
        unit.parent.mkdir(parents=True)
        unit.write_text("[Service]\n")
        told = json.dumps({"event": "odd", "level": "info", "why": f"token: {JOURNAL}", "job": "j-abc"})
        program = made.home / "bin" / "journalctl"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\nprintf '%s\\n' {shlex.quote(told)} 'Authorization: Bearer {JOURNAL}'\n")
        program.chmod(0o755)
        made.environment["PATH"] = f"{program.parent}:{made.environment['PATH']}"
        (made.home / "secret.yaml").write_text(config)
        yield made


def parts(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = {one.name.partition("/")[2]: archive.extractfile(one) for one in archive.getmembers()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def dumped(grid: Grid, name: str) -> dict[str, str]:
    places = ("--state-dir", str(grid.home / "coordinator"), "--agent-state-dir", str(grid.home / "lab1"))
    done = grid.run("-c", str(grid.home / "secret.yaml"), "support-dump", *places, name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{name}\n"
    assert stat.S_IMODE((grid.here / name).stat().st_mode) == 0o600
    return parts(grid.here / name)


def test_no_secret_is_in_it(grid: Grid) -> None:
    keys = [content.decode() for path, content in contents(grid.home) if path.name in ("own.key", "ca.key")]
    assert len(keys) >= 4  # the coordinator's, the authority's, the node's and ours
    secrets = [*PLANTED, *(line for key in keys for line in key.split("\n") if len(line) > 20)]
    for name, text in dumped(grid, "one.tar.gz").items():
        found = [secret for secret in secrets if secret in text]
        assert not found, f"{name} has {found}"


def test_what_helps_is_in_it(grid: Grid) -> None:
    found = dumped(grid, "two.tar.gz")
    assert json.loads(found["versions.json"])["packages"]["msgpack"]
    assert {"python", "agent", "coordinator", "authority"} <= {one["check"] for one in json.loads(found["doctor.json"])}
    settings = {one["name"]: one["value"] for one in json.loads(found["configuration.json"])}
    assert settings["agent.offer_after"] == 0 and settings["coordinator.url"] == "[hidden]"
    store = json.loads(found["coordinator/store.json"])
    assert store["findings"] == [] and store["content"]["live"] == 1 and store["rows"]["jobs"] == 3
    events = [event for line in found["coordinator/events.jsonl"].splitlines() for event in json.loads(line)["events"]]
    assert {"kind": "Exited"} not in events and any(one.get("message", {}).get("kind") == "Started" for one in events)
    assert "own.key" in found["agent/files.txt"] and "journal" in found["agent/files.txt"]
    assert "an odd line with password=[hidden]" in found["agent/supervisor.log"]
    assert '"job": "j-abc"' in found["agent/service.log"] and "Bearer [hidden]" in found["agent/service.log"]


def test_nothing_that_is_there_is_written_over(grid: Grid) -> None:
    (grid.here / "mine.tar.gz").write_text("mine")
    os.symlink("elsewhere", grid.here / "link.tar.gz")
    for name in ("mine.tar.gz", "link.tar.gz"):
        refused = grid.run("support-dump", name)
        assert refused.returncode != 0 and not refused.stdout and "Traceback" not in refused.stderr
    assert (grid.here / "mine.tar.gz").read_text() == "mine" and not (grid.here / "elsewhere").exists()
