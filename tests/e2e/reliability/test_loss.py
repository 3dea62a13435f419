"""A coordinator whose store has lost commits runs nothing a second time, says what is lost, and goes on when an
operator has chosen."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.grid_fixture import CONFIG, Grid, running_grid, until

JOBS = 40
FLAGS = [("--cores", "0,1,2,3,4,5,6,7", "--virtual")]
QUICK = CONFIG.replace("resource_sharing:\n", "resource_sharing:\n  check_interval: 1\n")
STORE, WAL = "grid.db", "grid.db-wal"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """A grid whose coordinator was killed when 40 jobs had ended, each of which writes a line when it runs."""
    with running_grid(tmp_path_factory.mktemp("grid"), flags=FLAGS, config=QUICK) as made:
        submit(made)
        until(lambda: len(results(made)) == JOBS, f"all have ended{made.log('coordinator')}")
        made.kill("coordinator")
        made.kill("n1")
        shutil.copytree(state(made), made.home / "kept", ignore=shutil.ignore_patterns("*.sock"))
        yield made


@pytest.fixture
def grid(killed: Grid) -> Iterator[Grid]:
    """The same, with the state directory as it was when it was killed."""
    shutil.rmtree(state(killed))
    shutil.copytree(killed.home / "kept", state(killed))
    (killed.home / "n1" / "epoch").unlink(missing_ok=True)  # it is a test's own agent, which has obeyed nobody
    killed.start_agent("n1", *FLAGS[0])
    yield killed
    for name in ("n1", "coordinator"):
        if killed.processes[name].poll() is None:
            killed.kill(name)
    assert ran(killed) == JOBS, "no job ran a second time"
    assert "Traceback" not in (killed.home / "coordinator.log").read_text()


def submit(grid: Grid) -> None:
    path = grid.here / "jobs.jsonl"
    with path.open("w") as file:
        for number in range(JOBS):
            script = f"echo {number} >> {grid.home}/ran; exit {number % 3}"
            job = {"command": ["sh", "-c", script], "cpus": 1, "name": f"job{number}", "no_ship": True}
            file.write(json.dumps(job) + "\n")
    done = grid.run("submit", "-f", str(path))
    assert done.returncode == 0, done.stderr


def state(grid: Grid) -> Path:
    return grid.home / "coordinator"


def results(grid: Grid) -> dict[str, Any]:
    jobs = grid.json("jobs", "--all", "--limit", "1000")["jobs"]
    return {job["name"]: (job["outcome"]["cause"], job["outcome"]["code"]) for job in jobs if job["state"] == "ended"}


def ran(grid: Grid) -> int:
    return len((grid.home / "ran").read_text().split())


def flip(grid: Grid, part: float) -> None:
    data = bytearray((state(grid) / WAL).read_bytes())
    data[int(len(data) * part)] ^= 4
    (state(grid) / WAL).write_bytes(bytes(data))


def coordinator(grid: Grid, *words: str) -> Any:
    return grid.run("coordinator", *words, "--state-dir", str(state(grid)))


def held(grid: Grid) -> str:
    """Return the status of a coordinator that holds; it refuses new jobs with that text."""
    trouble = str(grid.json("status")["trouble"])
    assert trouble.startswith("nothing is started, since the store has lost commits: ")
    refused = grid.shared("true")
    assert refused.returncode == 125 and "takes no new jobs now" in refused.stderr and "accept-loss" in refused.stderr
    return trouble


def goes_on(grid: Grid) -> bool:
    """Whether it starts jobs again. It listens anew when a loss was accepted, and refuses connections for a moment."""
    done = grid.run("-o", "json", "status")
    assert done.returncode == 0 or "connection refused" in done.stderr, done.stderr
    return done.returncode == 0 and not json.loads(done.stdout)["trouble"]


def agent_is_back(grid: Grid) -> None:
    until(lambda: grid.json("status")["nodes"]["up"] == 1, f"the agent is back{grid.log('n1')}")


@pytest.mark.parametrize("part", [0.15, 0.5, 0.85])
def test_after_a_flipped_bit_of_the_log_nothing_runs_again_and_the_operator_is_told(grid: Grid, part: float) -> None:
    flip(grid, part)
    checked = coordinator(grid, "check")
    assert checked.returncode == 1 and "accept-loss" in checked.stdout, checked.stderr
    if part > 0.2:  # before that there is no store yet
        assert "commits are missing" in checked.stdout and "is damaged at byte" in checked.stdout
    grid.start_coordinator()
    agent_is_back(grid)
    assert "commits are missing" in held(grid)
    assert results(grid).items() <= {f"job{n}": ("exited", n % 3) for n in range(JOBS)}.items(), "none was changed"
    assert "the store has lost commits" in (grid.home / "coordinator.log").read_text()


def test_when_the_loss_is_accepted_the_grid_goes_on_and_runs_none_of_it_again(grid: Grid) -> None:
    flip(grid, 0.5)
    grid.start_coordinator()
    agent_is_back(grid)
    nobody = coordinator(grid, "accept-loss", "--end-waiting")
    assert nobody.returncode == 1 and "--yes" in nobody.stderr
    done = coordinator(grid, "accept-loss", "--yes", "--end-waiting")
    assert done.returncode == 0 and "commits are missing" in done.stderr, done.stderr
    until(lambda: goes_on(grid), "it holds no more")
    assert grid.shared("sh", "-c", "exit 7").returncode == 7
    until(lambda: not grid.json("status")["jobs"].get("waiting"), "nothing waits")
    whole = {f"job{n}": ("exited", n % 3) for n in range(JOBS)}
    changed = {name: found for name, found in results(grid).items() if name and found != whole[name]}
    assert {cause for cause, _ in changed.values()} <= {"restored", "node-lost"}
    assert '"accept-loss"' in (state(grid) / "audit.log").read_text()
    assert coordinator(grid, "check").returncode == 0


def test_a_stopped_coordinators_loss_is_accepted_too(grid: Grid) -> None:
    flip(grid, 0.5)
    done = coordinator(grid, "accept-loss", "--yes", "--end-waiting")
    assert done.returncode == 0 and "start the coordinator" in done.stdout, done.stderr
    grid.start_coordinator()
    agent_is_back(grid)
    assert grid.json("status")["trouble"] is None or not grid.json("status")["trouble"]
    assert grid.shared("sh", "-c", "exit 7").returncode == 7
    again = coordinator(grid, "accept-loss", "--yes", "--end-waiting")
    assert again.returncode == 1 and "has lost nothing" in again.stderr


def test_a_store_that_is_gone_is_not_made_anew_without_a_word(grid: Grid) -> None:
    for name in (STORE, WAL, f"{STORE}-shm"):
        (state(grid) / name).unlink(missing_ok=True)
    assert coordinator(grid, "check").returncode == 1
    grid.start_coordinator()
    assert "grid.db is missing or empty, and there was one: its high-water mark" in held(grid)
    assert coordinator(grid, "accept-loss", "--yes", "--end-waiting").returncode == 0
    until(lambda: goes_on(grid), "it holds no more")
    agent_is_back(grid)
    assert grid.shared("sh", "-c", "exit 7").returncode == 7


def test_a_store_that_cannot_be_read_ends_the_coordinator_with_a_sentence_and_can_be_set_aside(grid: Grid) -> None:
    (state(grid) / WAL).unlink()
    (state(grid) / STORE).write_bytes(b"no database" * 1000)
    grid._start("coordinator", "coordinator", "run", "--port", "0", "--state-dir", str(state(grid)))
    assert grid.processes["coordinator"].wait(60) == 78
    assert "is damaged" in grid.log("coordinator") and "accept-loss" in grid.log("coordinator")
    done = coordinator(grid, "accept-loss", "--yes", "--end-waiting")
    assert done.returncode == 0 and "before-accept-" in done.stdout, done.stderr
    grid.start_coordinator()
    agent_is_back(grid)
    assert grid.shared("sh", "-c", "exit 7").returncode == 7


def test_a_node_that_knows_more_than_the_store_has_it_start_nothing(grid: Grid) -> None:
    """The whole state directory is from before a job was submitted that runs now."""
    grid.start_coordinator()
    agent_is_back(grid)
    assert not grid.json("status")["trouble"]
    pending = grid.run("run-shared", "-d", "--cpus", "1", "--begin", "+10h", "--no-ship", "--name", "pending", "true")
    assert pending.returncode == 0, pending.stderr
    copy = grid.home / "snapshot"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(state(grid), copy, ignore=shutil.ignore_patterns("*.sock"))
    done = grid.run("run-shared", "-d", "--cpus", "1", "--no-ship", "--name", "late", "sleep", "600")
    assert done.returncode == 0, done.stderr
    until(lambda: grid.job("late")["state"] == "running", "it runs")
    grid.kill("coordinator")
    shutil.rmtree(state(grid))
    shutil.copytree(copy, state(grid))
    grid.start_coordinator()
    until(lambda: grid.json("status")["trouble"], "it has noticed")
    assert "n1 " in held(grid)
    unsaid = coordinator(grid, "accept-loss", "--yes")
    assert unsaid.returncode == 1 and "say what becomes of 1 job that waits" in unsaid.stderr
    assert held(grid) and grid.job("pending")["state"] == "waiting", "nothing was changed"
    assert coordinator(grid, "accept-loss", "--yes", "--resume", "--end-waiting").returncode == 2
    assert coordinator(grid, "accept-loss", "--yes", "--resume").returncode == 0
    until(lambda: goes_on(grid), "it holds no more")
    assert grid.job("pending")["state"] == "waiting"
    agent_is_back(grid)
    with sqlite3.connect(f"file:{state(grid) / STORE}?mode=ro", uri=True) as db:
        told = until(
            lambda: [row[0] for row in db.execute("SELECT what FROM audit") if "it may run on" in row[0]], "it is told"
        )
    assert told and grid.processes_with("600"), "what runs is let run on"
