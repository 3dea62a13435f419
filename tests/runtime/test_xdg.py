"""Where a user's configuration and state are, by the variables of the XDG specification."""

from pathlib import Path

import pytest

from distributed_grid.config.places import places, state_dir
from distributed_grid.identity.member import contexts
from distributed_grid.runtime import xdg


@pytest.mark.parametrize("named", ["", "relative", "./relative", "~/relative"])
def test_a_directory_that_is_not_absolute_is_ignored(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", named)
    monkeypatch.setenv("XDG_STATE_HOME", named)
    assert xdg.config_home() == tmp_path / ".config"
    assert xdg.state_home() == tmp_path / ".local/state"
    assert contexts() == tmp_path / ".config/grid/contexts"
    assert tmp_path / ".config/grid/config.yaml" in places()
    assert state_dir("dev") in (tmp_path / ".local/state/grid/dev", Path("/var/lib/grid/dev"))


def test_one_that_is_absolute_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/here")
    assert xdg.state_home() == Path("/here")
    assert xdg.state_home({"XDG_STATE_HOME": "/there"}) == Path("/there")
    assert xdg.config_home({"XDG_CONFIG_HOME": "/there"}) == Path("/there")
    assert state_dir("dev") == Path("/here/grid/dev")
