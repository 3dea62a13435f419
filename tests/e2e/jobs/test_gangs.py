"""Gangs of real processes: they find each other, and end as one. (torch is too large to install here: that two programs
on different nodes meet at MASTER_ADDR and MASTER_PORT is what torchrun needs, and plain sockets show it.)"""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.grid_fixture import Grid, running_grid

MEET = """
import os, socket, sys, time
rank, count = int(os.environ["GRID_NODE_RANK"]), int(os.environ["GRID_NNODES"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
names = os.environ["GRID_NODES"].split(",")
assert names[rank] == os.environ["GRID_NODE"] and len(names) == count, names
if rank == 0:
    with socket.create_server(place) as server:
        server.settimeout(60)
        for _ in range(count - 1):
            wire, _ = server.accept()
            print("met", wire.recv(100).decode(), flush=True)
            wire.sendall(b"welcome")
            wire.close()
else:
    until = time.monotonic() + 60
    while True:
        try:
            wire = socket.create_connection(place, 30)
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
    wire.sendall(f"{rank} of {os.environ['WORLD_SIZE']}".encode())
    print(wire.recv(100).decode())
"""


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    flags = [("--cores", "0", "--virtual")] * 3
    with running_grid(tmp_path_factory.mktemp("grid"), agents=3, flags=flags) as made:
        (made.here / "meet.py").write_text(MEET)
        yield made


def begin(grid: Grid, nodes: int, *command: str) -> str:
    done = grid.run("run-shared", "-d", "--no-ship", "--cpus", "1", "--nodes", str(nodes), *command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_two_processes_on_two_nodes_meet_where_they_are_told(grid: Grid) -> None:
    gang = begin(grid, 3, "python3", str(grid.here / "meet.py"))
    assert grid.run("job", "wait", gang).returncode == 0, grid.run("logs", f"{gang}_0").stderr
    assert sorted(grid.run("logs", f"{gang}_0").stdout.splitlines()) == ["met 1 of 3", "met 2 of 3"]
    assert [grid.run("logs", f"{gang}_{rank}").stdout for rank in (1, 2)] == ["welcome\n", "welcome\n"]
    shown = grid.json("job", "show", gang)["arrays"][0]
    assert (shown["kind"], shown["count"], shown["exit_code"]) == ("gang", 3, 0)
    nodes = {grid.job(f"{gang}_{rank}")["node"] for rank in range(3)}
    assert len(nodes) == 3


def test_one_that_fails_ends_the_others_and_its_code_is_the_gangs(grid: Grid) -> None:
    word = f"member-{os.getpid()}"
    gang = begin(grid, 2, "sh", "-c", f"[ $GRID_NODE_RANK = 1 ] && exit 7; while :; do sleep 0.1; done # {word}")
    done = grid.run("job", "wait", gang)
    assert done.returncode == 7
    assert grid.job(f"{gang}_0")["outcome"]["cause"] == "gang"
    assert not grid.processes_with(word)


def test_a_gang_is_cancelled_as_one_by_any_of_its_members(grid: Grid) -> None:
    gang = begin(grid, 2, "sleep", "601")
    assert grid.run("cancel", f"{gang}_1").returncode == 0
    grid.run("job", "wait", gang)
    assert [grid.job(f"{gang}_{rank}")["outcome"]["cause"] for rank in (0, 1)] == ["cancelled", "cancelled"]


def test_more_nodes_than_there_are_is_refused_and_a_dry_run_names_where_it_would_go(grid: Grid) -> None:
    done = grid.run("run-shared", "-d", "--no-ship", "--nodes", "4", "true")
    assert done.returncode == 125
    assert "on each of 4 nodes; 3 of 3 could ever run it" in done.stderr
    done = grid.run("run-shared", "--dry-run", "--nodes", "3", "true")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("n1", "n2", "n3"))


def test_standing_by_a_gang_shows_all_of_it_and_who_says_what(grid: Grid) -> None:
    say = "echo out $GRID_NODE_RANK; [ $RANK = 0 ] && exit; printf 'no end'; echo err >&2; exit 4"
    done = grid.run("run-shared", "--no-ship", "--nodes", "2", "sh", "-c", say)
    assert done.returncode == 4
    assert {"[1] out 1", "[1] no end"} <= set(done.stdout.splitlines())
    assert "[1] err" in done.stderr.splitlines()
    done = grid.run("run-shared", "--no-ship", "--nodes", "2", "sh", "-c", "echo $GRID_NODE_RANK")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["0", "[1] 1"])


STAY = """
trap 'echo bye $GRID_NODE_RANK; exit 3' TERM
trap '' INT
echo here $GRID_NODE_RANK
while :; do sleep 0.05; done
"""


def test_who_attaches_to_a_gang_sees_all_of_it_from_its_beginning_also_when_it_is_over(grid: Grid) -> None:
    said = grid.here / "said"
    # Who fails ends the other, which is to have said its word by then.
    first = f"if [ $GRID_NODE_RANK = 0 ]; then touch {said}; else until [ -e {said} ]; do sleep 0.02; done; fi"
    gang = begin(grid, 2, "sh", "-c", f"echo out $GRID_NODE_RANK; {first}; exit $GRID_NODE_RANK")
    done = grid.run("attach", gang)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (1, ["[1] out 1", "out 0"])
    again = grid.run("attach", "last")
    assert (again.returncode, sorted(again.stdout.splitlines())) == (1, ["[1] out 1", "out 0"])
    alone = grid.run("attach", f"{gang}_1")
    assert (alone.returncode, alone.stdout) == (1, "out 1\n")


@pytest.mark.parametrize("attached", [False, True])
def test_one_interrupt_ends_all_of_a_gang_also_of_members_that_heed_none(grid: Grid, attached: bool) -> None:
    words: tuple[str, ...] = ("run-shared", "--no-ship", "--cpus", "1", "--nodes", "2", "sh", "-c", STAY)
    if attached:
        words = ("attach", begin(grid, 2, "sh", "-c", STAY))
    process = grid.begin(*words)
    assert process.stdout is not None
    assert {process.stdout.readline() for _ in range(2)} == {b"here 0\n", b"[1] here 1\n"}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert sorted(out.splitlines()) == [b"[1] bye 1", b"bye 0"]
    assert (process.returncode, b"ending all of " in err) == (3, True)


def test_the_output_of_a_gang_is_that_of_its_first_member(grid: Grid) -> None:
    gang = begin(grid, 2, "sh", "-c", "echo rank $GRID_NODE_RANK")
    assert grid.run("job", "wait", gang).returncode == 0
    assert grid.run("logs", gang).stdout == "rank 0\n"
