"""Which systems are run beside ours, in which order, and the table of what came of it."""

from pathlib import Path

import pytest

from bench.jobs import peers
from bench.jobs.peers import Peer

RAY = Peer("ray", "Ray tasks", "ray_tasks.py", modules=("ray",))
SLURM = Peer("slurm", "Slurm", "slurm.py", programs=("slurmctld",), asked=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("ray_tasks.py", "slurm.py"):
        (tmp_path / name).touch()
    return tmp_path


def why(peer: Peer, folder: Path, *wanted: str, there: bool = True) -> str:
    return peers.why_not(peer, folder, wanted, lambda name: there, lambda name: there)


def test_a_system_that_is_there_is_run(folder: Path) -> None:
    assert why(RAY, folder) == ""


def test_it_is_said_why_a_system_is_not_run(folder: Path) -> None:
    assert why(RAY, folder, there=False) == "not installed: Python module ray"
    assert why(SLURM, folder, "slurm", there=False) == "not installed: program slurmctld"
    assert why(RAY, folder / "elsewhere") == "there is no ray_tasks.py"
    assert why(RAY, folder, "slurm") == "not asked for"


def test_what_takes_long_is_run_where_it_is_named(folder: Path) -> None:
    assert "--only slurm" in why(SLURM, folder)
    assert why(SLURM, folder, "slurm") == ""


def test_each_round_begins_with_another_system() -> None:
    assert [peers.turns(["a", "b", "c"], number) for number in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def ran(rate: float, fraction: float | None) -> dict[str, float]:
    floor = {} if fraction is None else {"frac_of_floor": fraction}
    latencies = {f"p{q}_submit_to_{what}_ms": q / 10 for q in (50, 99) for what in ("start", "done")}
    return {"jobs_per_s": rate, "cpu_ms_per_job": 2.04, **latencies, **floor}


def test_the_table_has_medians_and_begins_with_the_fastest() -> None:
    ray = peers.summed(RAY, [ran(700.0, 0.3), ran(600.0, 0.2), ran(650.0, 0.25)])
    floor = peers.summed(Peer("floor", "floor", "floor.py"), [ran(2600.0, None)])
    slurm = peers.summed(SLURM, [ran(66.0, 0.03)])
    lines = peers.table([slurm, ray, floor]).splitlines()
    assert lines[0].startswith("|  | jobs/s | of the floor |")
    assert lines[2:] == [
        "| floor | 2,600 | 1 | 2.0 | 5.0 / 9.9 | 5.0 / 9.9 |",
        "| Ray tasks | 650 | 0.250 (0.200–0.300) | 2.0 | 5.0 / 9.9 | 5.0 / 9.9 |",
        "| Slurm | 66 | 0.030 (0.030–0.030) | 2.0 | 5.0 / 9.9 | 5.0 / 9.9 |",
    ]


def test_a_script_that_fails_is_named_with_what_it_said_last(tmp_path: Path) -> None:
    (tmp_path / "ray_tasks.py").write_text("import sys; sys.exit('no Ray here')")
    found = peers.run(RAY, tmp_path, "python3", [])
    assert found == "exit code 1: no Ray here"


def test_the_last_line_of_a_script_is_what_it_measured(tmp_path: Path) -> None:
    (tmp_path / "ray_tasks.py").write_text("import sys; print('starting'); print('{\"args\": %d}' % len(sys.argv))")
    assert peers.run(RAY, tmp_path, "python3", ["--jobs", "5"]) == {"args": 3}


def test_every_system_has_a_name_of_its_own() -> None:
    names = [peer.name for peer in peers.SYSTEMS]
    assert len(names) == len(set(names))
