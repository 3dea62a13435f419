"""How a dev grid deals out a machine."""

import json
import os
from pathlib import Path

import pytest
import yaml

from distributed_grid.cli.dev.plan import Plan, make_plan


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.usefixtures("eight")
def test_cores_are_shared_out_without_remainder(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, {"nodes": 3}, [])
    assert [agent.cores for agent in plan.agents] == [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert not any(agent.virtual for agent in plan.agents)


@pytest.mark.usefixtures("eight")
def test_more_agents_than_cores_get_virtual_ones(tmp_path: Path) -> None:
    assert all(agent.virtual and agent.cores == [0, 1] for agent in make_plan(tmp_path, {"nodes": 9}, []).agents)
    wide = make_plan(tmp_path, {"nodes": 3, "cores_per_node": 4}, [])
    assert all(agent.virtual and agent.cores == [0, 1, 2, 3] for agent in wide.agents)
    real = make_plan(tmp_path, {"nodes": 2, "cores_per_node": 3}, [])
    assert [agent.cores for agent in real.agents] == [[0, 1, 2], [3, 4, 5]]


def test_no_gpu_is_dealt_twice(tmp_path: Path) -> None:
    stand_ins = make_plan(tmp_path, {"nodes": 2, "fake_gpus": 3}, ["GPU-real"])
    assert [len(agent.stand_ins) for agent in stand_ins.agents] == [2, 1]
    assert len({uuid for agent in stand_ins.agents for uuid in agent.stand_ins}) == 3
    assert not any(agent.gpus for agent in stand_ins.agents)
    real = make_plan(tmp_path, {"nodes": 2}, ["GPU-a", "GPU-b", "GPU-c"])
    assert [agent.gpus for agent in real.agents] == [["GPU-a", "GPU-c"], ["GPU-b"]]
    assert make_plan(tmp_path, {}, []).agents[0].flags()[-2:] == ["--gpus", "none"]


def test_stand_ins_of_an_earlier_grid_give_way_and_those_that_somebody_changed_stay(tmp_path: Path) -> None:
    one, two = (make_plan(tmp_path, {"nodes": 1, "fake_gpus": count}, []).agents[0] for count in (1, 2))
    one.write_gpus(tmp_path)
    two.write_gpus(tmp_path)
    file = tmp_path / "gpus.json"
    assert [gpu["uuid"] for gpu in json.loads(file.read_text())] == two.stand_ins
    changed = json.dumps([{"uuid": uuid, "memory": 1} for uuid in two.stand_ins])
    file.write_text(changed)
    two.write_gpus(tmp_path)
    assert file.read_text() == changed
    file.write_text("[")
    two.write_gpus(tmp_path)
    assert len(json.loads(file.read_text())) == 2


def test_a_plan_is_the_same_when_read_again(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, {"nodes": 2, "fake_gpus": 1}, [])
    plan.port = 4711
    plan.write()
    assert Plan.read(tmp_path) == plan
    (tmp_path / "dev.json").write_text("{")
    assert Plan.read(tmp_path) is None


@pytest.mark.parametrize(("asked", "percent"), [({}, 90), ({"cpu_percent_max": 100}, 100)])
def test_the_agents_are_told_the_threshold_that_is_printed(tmp_path: Path, asked: dict[str, int], percent: int) -> None:
    plan = make_plan(tmp_path, asked, [])
    plan.write()
    told = yaml.safe_load(Path(plan.config).read_text())["resource_sharing"]["thresholds"]
    assert told["cpu_percent_max"] == percent
    assert f"cpu_percent_max {percent}," in plan.thresholds
