"""`grid config` writes a file, checks it, and shows every value with its origin."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.grid.config import _show_node
from distributed_grid.cli.main import main
from distributed_grid.protocol.messages import NodeSettings
from distributed_grid.protocol.nodes import LENDING, Layer, Lending


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("GRID_CONFIG", raising=False)


def config(*words: str) -> Result:
    return CliRunner().invoke(main, ["config", *words])


def test_the_file_that_init_writes_is_good_and_never_overwritten_unasked(tmp_path: Path) -> None:
    assert config("init", "mine.yaml").exit_code == 0
    assert "is good" in config("check", "mine.yaml").stderr
    again = config("init", "mine.yaml")
    assert again.exit_code == 1 and "--force" in again.stderr
    assert config("init", "--force", "mine.yaml").exit_code == 0
    assert config("init", "-").stdout == (tmp_path / "mine.yaml").read_text()


def test_a_bad_file_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: x\nagent: {nice: 99}\n")
    checked = config("check", "bad.yaml")
    assert checked.exit_code == 2 and "bad.yaml:2" in checked.stderr


def test_show_names_the_origin_of_each_value(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("agent: {keep_jobs: 3}\n")
    shown = json.loads(config("show", "-c", "a.yaml", "-o", "json").stdout)
    by_name = {row["name"]: row for row in shown["settings"]}
    assert by_name["agent.keep_jobs"] == {"name": "agent.keep_jobs", "value": 3, "origin": "a.yaml:1"}
    assert by_name["name"]["origin"] == "default"
    assert "agent.keep_jobs=3\n" in config("show", "-c", "a.yaml", "-o", "quiet").stdout
    assert "properties" in json.loads(config("schema").stdout)


def test_what_is_in_effect_on_a_node_is_shown_with_all_settings_and_their_origins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = Layer(Lending(can_share=False, max_share_cpu=2.0), {"can_share": "grid: a.yaml:1"})
    answer = NodeSettings(id=1, node="lab1", settings=settings, connected=False, closed="drained")
    _show_node(Invocation(), answer)
    shown = capsys.readouterr()
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in shown.out.splitlines()[1:]}
    assert list(rows) == list(LENDING)
    assert rows["can_share"] == ["false", "grid: a.yaml:1"] and rows["max_share_gpu"] == ["null", "default"]
    assert "lab1 is not connected" in shown.err and "lab1 offers nothing now: drained" in shown.err
    _show_node(Invocation(output="json"), answer)
    told = json.loads(capsys.readouterr().out)
    assert (told["node"], told["connected"], told["closed"]) == ("lab1", False, "drained")
    assert {"name": "max_share_cpu", "value": 2.0, "origin": "default"} in told["settings"]
