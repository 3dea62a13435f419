"""Where a configuration is found, and which file is refused."""

import grp
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.config.places import UntrustedConfig
from distributed_grid.config.settings import (
    ClusterConfig,
    find,
    places,
    state_dir,
)
from distributed_grid.protocol.errors import BadValue, GridError


def test_a_place_that_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    own = "/" + "x" * 300  # no directory can have that name
    with pytest.raises(GridError, match="cannot be looked for") as told:
        find(None, {"XDG_CONFIG_HOME": own}, tmp_path)
    assert told.value.why == "file name too long" and own in told.value.hint


@pytest.mark.parametrize("given", [1, None, b"grid.yaml", ["grid.yaml"], "grid\0yaml"], ids=repr)
def test_what_is_no_path_is_said_to_the_program_that_gave_it(given: Any) -> None:
    with pytest.raises(BadValue, match="path cannot be"):
        ClusterConfig.from_yaml(given)


def a_config(here: Path, name: str = "grid.yaml") -> Path:
    path = here / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    path.chmod(0o644)
    return path


def test_the_file_is_found_in_the_documented_order(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    order = places(environment, tmp_path)
    assert [str(place.relative_to(tmp_path)) for place in order[:-1]] == [
        "grid.yaml",
        "config/my-cluster-enhanced.yaml",
        "config/my-cluster.yaml",
        "config/cluster_config.yaml",
        "xdg/grid/config.yaml",
    ]
    assert str(order[-1]) == "/etc/grid/grid.yaml"
    for place in reversed(order[:-1]):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("")
        assert find(None, environment, tmp_path) == place
    assert find(None, environment | {"GRID_CONFIG": "named"}, tmp_path) == Path("named")
    assert find("flag", environment | {"GRID_CONFIG": "named"}, tmp_path) == Path("flag")


@pytest.mark.parametrize("mode", [0o666, 0o646], ids=oct)
def test_a_file_here_that_all_can_write_to_is_refused_unless_it_is_named(tmp_path: Path, mode: int) -> None:
    path = a_config(tmp_path)
    path.chmod(mode)
    with pytest.raises(UntrustedConfig) as refused:
        find(None, {}, tmp_path)
    assert refused.value.why.startswith("all users can write to it") and f"--config {path}" in refused.value.hint
    assert find(path, {}, tmp_path) == path
    assert find(None, {"GRID_CONFIG": str(path)}, tmp_path) == path


def test_a_group_that_is_not_the_users_own_counts_as_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = a_config(tmp_path)
    path.chmod(0o664)
    own = pwd.getpwuid(os.geteuid())
    os.chown(path, -1, own.pw_gid)
    real = grp.getgrgid(own.pw_gid)
    if real.gr_name == own.pw_name:  # elsewhere all are in one group, `users`
        assert find(None, {}, tmp_path) == path
    name = own.pw_name
    for group, members, private in ((name, [], True), (name, [name, "bob"], False), (f"{name}s", [], False)):
        found = grp.struct_group((group, "x", own.pw_gid, members))
        monkeypatch.setattr(grp, "getgrgid", lambda gid, found=found: found)
        if private:
            assert find(None, {}, tmp_path) == path
            continue
        with pytest.raises(UntrustedConfig, match="is not read"):
            find(None, {}, tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
@pytest.mark.parametrize("name", ["grid.yaml", "config/my-cluster.yaml"])
def test_a_file_here_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    path = a_config(tmp_path, name)
    os.chown(path, 12345, -1)
    with pytest.raises(UntrustedConfig) as refused:
        find(None, {}, tmp_path)
    assert refused.value.why.startswith("it belongs to the user id 12345")
    assert find(None, {"SUDO_UID": "12345"}, tmp_path) == path
    os.chown(path, 0, -1)
    assert find(None, {}, tmp_path) == path
    path.rename(tmp_path / "mine")
    path.symlink_to(tmp_path / "mine")
    os.chown(path, 12345, -1, follow_symlinks=False)
    with pytest.raises(UntrustedConfig):
        find(None, {}, tmp_path)


def test_state_lies_where_xdg_says(tmp_path: Path) -> None:
    assert state_dir("agent-a", {"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "grid/agent-a"
