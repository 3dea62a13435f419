"""Founding a grid: once, with keys that are its owner's alone, or not at all."""

import stat
from pathlib import Path

import pytest

from distributed_grid.coordinator.access.ca import Pki
from distributed_grid.coordinator.access.joining import found
from distributed_grid.coordinator.backup.state import content, open_read_only
from distributed_grid.identity.credentials import client_context, server_context
from distributed_grid.protocol.errors import GridError

URL = "wss://localhost:7433"


def everything(home: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in home.rglob("*") if path.is_file() and "identities.db" not in path.name}


def grid_of(state: Path) -> str:
    with open_read_only(state) as db:
        return content(db).grid


def test_its_secrets_are_its_owners_alone_and_its_founder_is_an_operator(tmp_path: Path) -> None:
    state, context = tmp_path / "state", tmp_path / "contexts" / "default"
    found(state, ["master.example.org"], "ada", context, URL)
    for folder in (state / "pki", context):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in [*(state / "pki").glob("*.key"), *(state / "pki").glob("identities.db*"), context / "own.key"]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    server_context(state / "pki")
    client_context(context)


def test_a_second_time_it_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    found(state, [], "ada", tmp_path / "first", URL)
    before = everything(tmp_path)
    with pytest.raises(GridError, match="there is an authority in") as error:
        found(state, [], "ada", tmp_path / "second", URL)
    assert "would have to join again" in error.value.why
    with pytest.raises(GridError, match="there is a context in"):
        found(tmp_path / "other", [], "ada", tmp_path / "first", URL)
    assert not (tmp_path / "second").exists() and not (tmp_path / "other" / "pki").exists()
    assert {path: data for path, data in everything(tmp_path).items() if path in before} == before


@pytest.mark.parametrize(
    ("path", "mode", "said"),
    [
        ("pki/ca.key", 0o644, "can be read by others"),
        ("pki/ca.key", 0o640, "can be read by others"),
        ("pki", 0o777, "others can put another file in the place of"),
    ],
)
def test_an_authority_that_others_can_get_at_is_not_used(tmp_path: Path, path: str, mode: int, said: str) -> None:
    state = tmp_path / "state"
    found(state, [], "ada", tmp_path / "context", URL)
    (state / path).chmod(mode)
    with pytest.raises(GridError, match=said) as error:
        Pki(state / "pki", grid_of(state))
    assert error.value.hint.startswith("chmod ")
