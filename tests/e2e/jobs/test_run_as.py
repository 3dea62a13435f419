"""Jobs that run as somebody else than the agent, which is root: as their submitter, or as a user who was named. A real
grid with an authority, real users of this machine."""

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributed_grid.agent.launch import isolation
from distributed_grid.protocol.errors import GridError
from tests.grid_fixture import Grid, until

pytestmark = pytest.mark.root

NAP = 1000 + os.getpid()
"""Seconds that a job sleeps, by which its processes are known: nobody else on this machine sleeps for so long."""
USER = "nobody"  # every machine has it
OTHER = "daemon"


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    """A founded grid: `lab1` runs jobs as their submitters, `lab2` everyone's as one user. It lies where others may
    pass."""
    above = Path(tempfile.mkdtemp(prefix="grid-run-as-"))
    above.chmod(0o755)
    grid = Grid(above / "grid")
    try:
        grid.found()
        grid.start_coordinator()
        for name, whom in (("lab1", isolation.SUBMITTER), ("lab2", OTHER)):
            token = grid.run("token", "create", "--node", name).stdout.strip()
            joined = grid.run("agent", "join", token, "--name", name, "--state-dir", str(grid.home / name))
            assert joined.returncode == 0, joined.stderr + grid.log("coordinator")
            environment = {"GRID_AGENT__RUN_AS": whom, "GRID_AGENT__TRUST": "owner" if name == "lab1" else "everyone"}
            grid.start_agent(name, "--cores", "0" if name == "lab1" else "1", environment=environment)
        (grid.home / "secret").write_text("SECRET")
        (grid.home / "secret").chmod(0o600)
        (grid.here / "shipped").write_text("of mine\n")
        grid.await_offers(2)
        yield grid
    finally:
        grid.close()
        shutil.rmtree(above)


def ask(grid: Grid, user: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`grid …` as this user of the grid."""
    home = grid.home / f"of-{user}"
    before = grid.environment["XDG_CONFIG_HOME"]
    grid.environment["XDG_CONFIG_HOME"] = str(home)
    try:
        if not home.exists():
            grid.environment["XDG_CONFIG_HOME"] = before
            token = grid.run("token", "create", "--role", "client", "--user", user).stdout.strip()
            grid.environment["XDG_CONFIG_HOME"] = str(home)
            logged_in = grid.run("login", token)
            assert logged_in.returncode == 0, logged_in.stderr
        return grid.run(*words)
    finally:
        grid.environment["XDG_CONFIG_HOME"] = before


def shared(grid: Grid, user: str, *words: str, node: str = "lab1") -> subprocess.CompletedProcess[str]:
    return ask(grid, user, "run-shared", "-t", "cpu", "-a", "1", "--only", node, *words)


def test_a_job_runs_as_its_submitter_with_all_that_belongs_to_that(grid: Grid) -> None:
    entry = pwd.getpwnam(USER)
    done = shared(
        grid, USER, "--get", "made", "--",
        "sh", "-c", "id -u; id -g; id -G; echo $HOME $USER $LOGNAME; umask; stat -c '%U %a' .; stat -c %U shipped;"
        " cat shipped; echo changed > shipped; echo result > made; echo heard > /dev/stderr; cat $GRID_WORKDIR/shipped",
    )  # fmt: skip
    groups = " ".join(map(str, os.getgrouplist(USER, entry.pw_gid)))
    said = [
        str(entry.pw_uid), str(entry.pw_gid), groups, f"{entry.pw_dir} {USER} {USER}", "0022", f"{USER} 700", USER,
        "of mine", "changed",
    ]  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()) == (0, said), done.stderr
    assert "heard" in done.stderr
    assert (grid.here / "made").read_text() == "result\n"


def test_one_user_may_be_named_for_all(grid: Grid) -> None:
    done = shared(grid, USER, "id", "-un", node="lab2")
    assert (done.returncode, done.stdout) == (0, f"{OTHER}\n"), done.stderr


def test_what_is_one_user_for_all_is_told_as_no_walls(grid: Grid) -> None:
    nodes = {one["name"]: one for one in json.loads(grid.run("-o", "json", "nodes").stdout)["nodes"]}
    assert (nodes["lab1"]["walls"], nodes["lab2"]["walls"]) == ("user", "none")
    assert f"run as {OTHER} (agent.run_as), not kept from each other" in nodes["lab2"]["walls_why"]
    refused = shared(grid, USER, "--walls", "namespace", "id", node="lab2")
    assert refused.returncode != 0 and "none among the 1 node named" in refused.stderr, refused.stderr
    for node, level in (("lab1", "user"), ("lab2", "none")):
        id = shared(grid, USER, "-d", "--no-ship", "true", node=node).stdout.split()[-1]
        assert ask(grid, USER, "job", "wait", id).returncode == 0
        [job] = json.loads(ask(grid, USER, "-o", "json", "job", "show", id).stdout)["jobs"]
        assert job["walls"] == level


def test_a_job_of_another_user_gets_nowhere_in_the_state_directory(grid: Grid) -> None:
    state = grid.home / "lab1"
    inside = sorted(
        path
        for folder, folders, names in os.walk(state)
        for name in folders + names
        if _is_roots(path := Path(folder, name))
    )
    assert state / "identity" / "own.key" in inside and state / "supervisor.sock" in inside
    tried = "; ".join(f"cat {path} && echo READ {path}; echo x >> {path} && echo WROTE {path}" for path in inside)
    done = shared(grid, USER, "--no-ship", "sh", "-c", f"ls {state} && echo LISTED; {tried}; true")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_what_is_collected_is_read_with_the_rights_of_the_user(grid: Grid) -> None:
    secret = grid.home / "secret"
    linked = shared(grid, USER, "--get", "way", "sh", "-c", f"ln -s {secret} way; ln {secret} way2; true")
    assert "matches no file" in linked.stderr and not (grid.here / "way").exists() and not (grid.here / "way2").exists()
    there = shared(grid, USER, "--workdir", str(grid.home), "--get", "secret", "true")
    assert "denied" in there.stderr.lower(), there.stderr
    assert not (grid.here / "secret").exists()
    closed = shared(grid, USER, "--workdir", "/root", "pwd")
    assert closed.returncode == 125 and "Permission denied" in closed.stderr and not closed.stdout


def test_a_job_of_another_user_is_ended_with_all_it_made(grid: Grid) -> None:
    begun = shared(grid, USER, "-d", "--no-ship", "sh", "-c", f"sleep {NAP} & setsid sleep {NAP} & sleep {NAP}")
    id = begun.stdout.split()[-1]
    pids = until(lambda: _sleepers() if len(_sleepers()) == 3 else None, "it sleeps")
    assert {Path(f"/proc/{pid}").stat().st_uid for pid in pids} == {pwd.getpwnam(USER).pw_uid}
    assert ask(grid, USER, "cancel", id).returncode == 0
    until(lambda: not _sleepers(), "nothing of it is left")


def _is_roots(path: Path) -> bool:
    try:
        return path.lstat().st_uid == 0
    except OSError:  # it is gone: there is an agent at work
        return False


def _sleepers() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{NAP}\0".encode():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("user", "why"), [("no-such-user-1", "has no user 'no-such-user-1'"), ("root", "but never as root")]
)
def test_who_is_no_user_there_and_who_is_root_gets_a_clear_end(grid: Grid, user: str, why: str) -> None:
    done = shared(grid, user, "--no-ship", "id")
    assert (done.returncode, done.stdout) == (125, "") and why in done.stderr


def test_an_agent_that_cannot_do_it_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GridError, match="as their submitters"):
        isolation.check_run_as(isolation.SUBMITTER, tmp_path, founded=False)
    with pytest.raises(GridError, match="there is no user 'no-such-user-1'"):
        isolation.check_run_as("no-such-user-1", tmp_path, founded=True)
    tmp_path.chmod(0o700)
    (tmp_path / "state").mkdir()
    with pytest.raises(GridError, match="other users cannot get to"):
        isolation.check_run_as(USER, tmp_path / "state", founded=True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(GridError, match="cannot be run as 'nobody'"):
        isolation.check_run_as(USER, tmp_path, founded=True)
