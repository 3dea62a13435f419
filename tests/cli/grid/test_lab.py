"""`grid simulate --trace` reads a trace, runs policies, and says what came of each."""

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from distributed_grid.cli.main import main
from distributed_grid.coordinator.core.commands import JobsSubmitted, MessageReceived, NodeUp
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.eventlog.write import EventLog
from distributed_grid.simulator.lab.grid import node_facts
from distributed_grid.simulator.lab.trace import Machine
from tests.simulator.lab.formats.test_own import exited, job
from tests.simulator.lab.formats.test_swf import row
from tests.simulator.lab.formats.test_tables import PODS

SWF = "; MaxProcs: 8\n" + "".join(f"{row(submit=at, run=50, procs=1 + at % 8, user=at % 3)}\n" for at in range(30))
TWO = ("--policy", "grid,random", "--seeds", "2")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "a.swf"
    path.write_text(f"{SWF}1 2 3\n")
    return path


def simulate(*words: object) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, words)])


def test_a_trace_is_run_and_compared_in_a_table(trace: Path) -> None:
    done = simulate("--trace", trace, "--policy", "grid,easy")
    lines = done.stdout.splitlines()
    assert done.exit_code == 0 and lines[0] == "30 jobs, 1 machine, 8 cores; waits in seconds"
    assert lines[1].split()[:2] == ["policy", "use"] and [line.split()[0] for line in lines[2:]] == ["grid", "easy"]
    assert "SWF: 30 of 31 rows taken" in done.stderr and "line 32: it has 3 fields of 18" in done.stderr
    assert "decisions a second" in done.stderr


def test_the_same_trace_and_seed_give_the_same_bytes(trace: Path) -> None:
    first, second = (simulate("--trace", trace, *TWO, "-o", "json") for _ in range(2))
    assert first.exit_code == 0 and first.stdout_bytes == second.stdout_bytes
    told = json.loads(first.stdout)
    grid, chance = told["policies"]
    assert told["trace"]["left_out"] == [{"rows": 1, "lines": [32], "why": "it has 3 fields of 18"}]
    assert (grid["seeds"], grid["interval"], chance["seeds"]) == (1, None, 2) and chance["interval"]["wait"][
        "mean"
    ] >= 0
    assert grid["jobs"] == 30 and told["cluster"]["cores"] == 8 and "decisions_a_second" not in grid


def test_two_processes_find_the_same(trace: Path) -> None:
    one, two = (simulate("--trace", trace, *TWO, "--jobs", jobs, "-o", "json").stdout for jobs in (1, 2))
    assert one == two


def test_seeds_have_intervals_and_timing_is_there_if_wanted(trace: Path) -> None:
    done = simulate("--trace", trace, *TWO, "--timing")
    assert "±" in done.stdout.splitlines()[-1] and "±" not in done.stdout.splitlines()[-2]
    assert done.stdout.splitlines()[1].endswith("decisions/s")
    assert simulate("--trace", trace, *TWO, "--timing", "-o", "jsonl").stdout.count("decisions_a_second") == 2


def test_a_cluster_described_by_options_takes_the_place_of_the_header(trace: Path) -> None:
    told = json.loads(simulate("--trace", trace, "--policy", "easy", "--nodes", 3, "--cores", 4, "-o", "json").stdout)
    assert told["cluster"]["machines"] == 3 and told["trace"]["left_out"][-1]["why"].startswith("it asks for more than")


def test_pods_fill_the_nodes_of_a_file(tmp_path: Path) -> None:
    pods, nodes = tmp_path / "pods.csv", tmp_path / "nodes.csv"
    pods.write_text(
        "\n".join([PODS, *(f"p{at},1000,1024,1,{300 + 100 * (at % 8)},,LS,Running,{at},,{at}" for at in range(20))])
    )
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{at},8000,16384,2,T4\n" for at in range(4)))
    done = simulate(
        "--trace", pods, "--cluster", nodes, "--fill", 1.3, "--policy", "grid,first-fit", "--seeds", 2, "-o", "json"
    )
    assert done.exit_code == 0, done.output
    assert all(0.5 < one["gpus_allocated"] <= 1 and one["seeds"] == 2 for one in json.loads(done.stdout)["policies"])


async def logged(folder: Path) -> None:
    """What a coordinator would log of two jobs on one node."""
    log = EventLog(Ledger(), folder, 1 << 20, "g")
    for now, events in (
        (
            100.0,
            [NodeUp(node_facts(Machine("n1", 4, 1 << 30)), "s"), JobsSubmitted(0, (job("a", 100.0), job("b", 101.0)))],
        ),
        (150.0, [exited("a.1", 50.0), exited("b.1", 40.0)]),
    ):
        for event in events:
            assert isinstance(event, NodeUp | JobsSubmitted | MessageReceived)
            log.handle(event, now)
        log.settle(now)
    log.close()


def test_the_grid_s_own_event_log_runs_on_its_own_nodes(tmp_path: Path) -> None:
    asyncio.run(logged(tmp_path / "events"))
    for path in (tmp_path, tmp_path / "events", tmp_path / "events" / "000001.log"):
        told = json.loads(simulate("--trace", path, "--policy", "grid,fcfs", "-o", "json").stdout)
        assert (told["trace"]["format"], told["trace"]["jobs"], told["cluster"]["cores"]) == ("event log", 2, 4)


def test_a_log_that_ends_in_the_middle_of_a_record_is_taken_up_to_there(tmp_path: Path) -> None:
    asyncio.run(logged(tmp_path))
    whole = (tmp_path / "000001.log").read_bytes()
    (tmp_path / "000001.log").write_bytes(whole[:-3])
    done = simulate("--trace", tmp_path, "--policy", "fcfs")
    assert "000001.log ends in the middle of a record" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "000001.log").write_bytes(whole[:200] + b"\xc1" * 50 + whole[250:])
    damaged = simulate("--trace", tmp_path, "--policy", "fcfs")
    assert damaged.exit_code != 0 and "cannot be read" in damaged.stderr and "Traceback" not in damaged.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "eazy"), "did you mean"),
        (("--nodes", "3"), "--cores"),
        (("--skip", "many"), "--skip"),
        (("--skip", "100%"), "leaves none"),
        (("--skip", "-3"), "no number of jobs"),
        (("--skip", "-0.1%"), "no number of jobs"),
        (("--without", "reboot"), "--without is for grids made from a seed"),
        (("--skip", "inf%"), "no number of jobs"),
        (("--unit", "9"), "more than the 8 processors"),
        (("--plot", "/no/such/folder/x.svg"), "cannot be written"),
        (("--plot", "/"), "it is a directory"),
        (("--nodes", "1", "--cores", "1", "--memory", "lots"), "not a size"),
    ],
)
def test_what_cannot_be_done_is_said_with_a_hint(trace: Path, words: tuple[str, ...], said: str) -> None:
    done = simulate("--trace", trace, *words)
    assert done.exit_code == 2 and said in done.stderr and "Traceback" not in done.output


def test_files_that_are_no_jobs_are_refused(tmp_path: Path) -> None:
    for name, text, said in (
        ("use", "10\n20\n", "has no jobs"),
        ("bad", f"{row(run=0)}\n", "nothing in"),
        ("plain", "submit,duration,cores\n0,1,1\n", "on which machines"),
        ("odd", "hello\nworld\n", "no trace that is known"),
    ):
        path = tmp_path / name
        path.write_text(text)
        done = simulate("--trace", path)
        assert done.exit_code == 2 and said in done.stderr, (name, done.output)


def test_a_trace_comes_through_a_pipe_that_somebody_writes_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    empty = simulate("--trace", pipe)
    assert empty.exit_code == 2 and "pipe is empty" in empty.stderr, "nobody writes: it is not waited for"
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(pipe, os.O_WRONLY)
    os.write(writer, SWF.encode())
    threading.Timer(0.05, os.close, [writer]).start()
    done = simulate("--trace", pipe, "--policy", "easy")
    os.close(reader)
    assert done.exit_code == 0 and "SWF: 30 of 30 rows taken" in done.stderr


def test_what_is_no_file_is_no_trace(tmp_path: Path) -> None:
    for path, said in (("/dev/zero", "is no file"), (tmp_path, "no event log"), (tmp_path / "no", "cannot be read")):
        done = simulate("--trace", path)
        assert done.exit_code == 2 and said in done.stderr


def test_options_of_traces_are_refused_without_one() -> None:
    done = simulate("--policy", "easy")
    assert done.exit_code == 2 and "--policy is for traces" in done.stderr
    assert simulate("--nodes", 5000).exit_code == 2


def test_a_part_of_the_jobs_is_left_out_of_the_waits(trace: Path) -> None:
    told = json.loads(
        simulate("--trace", trace, "--policy", "fcfs", "--first", 12, "--skip", "33%", "-o", "json").stdout
    )
    assert (told["trace"]["jobs"], told["skipped"], told["policies"][0]["jobs"]) == (12, 3, 9)


def test_owners_come_from_a_second_trace_and_a_picture_shows_them(trace: Path, tmp_path: Path) -> None:
    use, picture = tmp_path / "use", tmp_path / "x.svg"
    use.mkdir()
    for name in "ab":
        (use / name).write_text("50\n0\n0\n0\n")
    words = ("--trace", trace, "--policy", "grid,easy", "--owners", use, "--plot", picture, "-o", "json")
    first, second = simulate(*words), simulate(*words)
    told = json.loads(first.stdout)
    assert first.stdout == second.stdout and told["owners"] == 2 and told["policies"][0]["owners_use"] > 0
    assert picture.read_text().startswith("<svg") and "owners: use of machines: 8 of 8 rows taken" in first.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--owner-policy", "recall"), "is for --owners"),
        (("--owners", "jobs.swf"), "no use of machines"),
        (("--owners", "jobs.swf", "--fill", "1"), "do not go together"),
        (("--policy", "fcfs", "--plot", "nowhere/x.svg"), "cannot be written"),
    ],
)
def test_owners_and_pictures_that_cannot_be_are_said(
    trace: Path, words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trace.parent)
    Path("jobs.swf").write_text(SWF)
    done = simulate("--trace", trace, *words)
    assert done.exit_code == 2 and said in done.stderr, done.output
