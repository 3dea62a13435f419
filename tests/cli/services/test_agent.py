"""What the configuration says of this node reaches its agent."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from distributed_grid.cli.context import Invocation
from distributed_grid.cli.main import main
from distributed_grid.cli.services import systemd
from distributed_grid.cli.services.agent import _owned, _settings
from distributed_grid.protocol.errors import BadValue, GridError


def options(**given: Any) -> dict[str, object]:
    return defaultdict(lambda: None, {"owners": (), "labels": ()} | given)


def test_walls_and_owners_come_from_flags_over_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text("agent: {name: n1, walls: landlock, owners: [ann, bob], trust: everyone}\n")
    told = _settings(Invocation(config_path=str(file)), options(), "info")
    assert (told.own.walls, tuple(told.own.owners), told.own.trust) == ("landlock", ("ann", "bob"), "everyone")
    given = options(walls="none", owners=("eve",), trust="owner")
    told = _settings(Invocation(config_path=str(file)), given, "info")
    assert (told.own.walls, tuple(told.own.owners), told.own.trust) == ("none", ("eve",), "owner")


def test_a_mistyped_level_of_walls_is_refused_with_what_was_meant(tmp_path: Path) -> None:
    with pytest.raises(GridError) as refused:
        _settings(Invocation(), options(walls="namespaces"), "info")
    assert "namespace" in " ".join(refused.value.lines())


def test_no_memory_is_not_taken_for_all_of_it() -> None:
    with pytest.raises(BadValue, match="manages no memory"):
        _settings(Invocation(), options(memory="0"), "info")


def test_a_service_of_the_machine_belongs_to_root_and_to_who_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "ann")
    assert _owned(Invocation(), False, options()) == ["--owner", "ann", "--owner", "root"]
    monkeypatch.delenv("SUDO_USER")
    assert _owned(Invocation(), False, options()) == ["--owner", "root"]
    assert _owned(Invocation(), True, options()) == []
    assert _owned(Invocation(), False, options(owners=("bob",))) == []
    file = tmp_path / "grid.yaml"
    file.write_text("agent: {owners: [bob]}\n")
    assert _owned(Invocation(config_path=str(file)), False, options()) == []


def test_how_far_jobs_stand_back_comes_from_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: dict[str, None] = defaultdict(lambda: None)
    file = tmp_path / "grid.yaml"
    file.write_text("agent: {name: n1}\n")
    said = Invocation(config_path=str(file))
    monkeypatch.delenv("GRID_AGENT__NICE")
    assert _settings(said, nothing, "info").own.nice == 15
    file.write_text("agent: {name: n1, nice: 3}\n")
    assert _settings(said, nothing, "info").own.nice == 3


@pytest.mark.parametrize(("given", "name"), [([], "lab1"), (["--name", "lab2"], "lab2")])
def test_what_is_installed_again_keeps_its_name_though_the_host_has_another(
    given: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be another node, without membership, and its jobs nobody's."""
    made: list[systemd.Unit] = []

    def install(unit: systemd.Unit) -> systemd.Change:
        made.append(unit)
        return systemd.Change(False, False)

    for check in ("require_systemd", "require_root", "make_user", "check_runs", "give"):
        monkeypatch.setattr(systemd, check, lambda *_: None)
    monkeypatch.setattr(systemd, "install", install)
    monkeypatch.setattr(systemd, "MACHINE", str(tmp_path))
    (tmp_path / "grid-agent.service").write_text("ExecStart=/g/grid agent run --name lab1 --state-dir /s\n")
    done = CliRunner().invoke(main, ["agent", "install", *given])
    assert done.exit_code == 0, done.output
    assert made[0].argv[made[0].argv.index("--name") + 1] == name
