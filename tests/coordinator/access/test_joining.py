"""Founding a grid: once, with keys that are its owner's alone, or not at all."""

import sqlite3
import stat
from pathlib import Path

import pytest

from distributed_grid.coordinator.access import joining
from distributed_grid.coordinator.access.ca import Pki
from distributed_grid.coordinator.access.joining import found, hosts_of
from distributed_grid.coordinator.backup.state import content, open_read_only
from distributed_grid.coordinator.store.errors import DiskTrouble
from distributed_grid.identity.credentials import client_context, server_context
from distributed_grid.protocol.errors import BadValue, GridError

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


def test_where_nobody_knows_who_was_put_out_nobody_is_let_in(tmp_path: Path) -> None:
    state = tmp_path / "state"
    found(state, [], "ada", tmp_path / "context", URL)
    known = state / "pki" / "identities.db"
    known.unlink()
    with pytest.raises(GridError, match="identities.db is missing") as error:
        Pki(state / "pki", grid_of(state))
    assert "would be let in again" in error.value.why and not known.exists()
    known.write_bytes(b"no database" * 500)
    with pytest.raises(GridError, match="identities.db cannot be read") as error:
        Pki(state / "pki", grid_of(state))
    assert "grid coordinator restore" in error.value.hint
    known.write_bytes(b"")  # as the hint says, where nobody's access was revoked
    Pki(state / "pki", grid_of(state)).close()


@pytest.mark.parametrize("host", ["☃", "", "a b", "x:5", "[::1]", "-x", "x" * 64, ".".join(["long"] * 51)])
def test_what_is_no_host_is_refused_before_anything_is_written(tmp_path: Path, host: str) -> None:
    with pytest.raises(BadValue, match="is not a name or address"):
        found(tmp_path / "state", ["master", host], "ada", tmp_path / "context", URL)
    assert not [*tmp_path.iterdir()]


def test_names_and_addresses_of_both_kinds_are_hosts(tmp_path: Path) -> None:
    hosts = ("gpu_1.lab-2.example.org", "192.0.2.1", "fd00::1")
    assert found(tmp_path / "state", hosts, "ada", tmp_path / "context", URL).hosts[:3] == hosts


def test_a_machine_whose_own_name_cannot_be_in_a_certificate_is_known_by_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "café")
    monkeypatch.setattr("socket.getfqdn", lambda _: "master.example.org")
    assert hosts_of(["m"]) == ("m", "master.example.org", "localhost", "127.0.0.1", "::1")


def test_where_founding_fails_half_way_a_second_try_finds_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, context = tmp_path / "state", tmp_path / "context"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(joining, "write_member", full)
        found(state, [], "ada", context, URL)
    assert not (state / "pki").exists() and not context.exists()
    found(state, [], "ada", context, URL)


def test_a_store_that_finds_no_room_is_told_as_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorname = "SQLITE_FULL"
        raise error

    with monkeypatch.context() as patched, pytest.raises(DiskTrouble, match="no space left for"):
        patched.setattr(joining, "open_store", full)
        found(tmp_path / "state", [], "ada", tmp_path / "context", URL)
    found(tmp_path / "state", [], "ada", tmp_path / "context", URL)
