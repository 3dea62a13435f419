"""A membership is kept beside the identity, and a person chooses one of several by name."""

from pathlib import Path

import pytest

from distributed_grid.config.places import usual_address
from distributed_grid.identity import member
from distributed_grid.identity.member import Member
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Role

ANN = Member("wss://m:1", "g", Role.CLIENT, "ann")


def test_a_membership_is_read_as_it_was_written_and_damage_is_an_error(tmp_path: Path) -> None:
    assert member.read_member(tmp_path) is None
    member.write_member(tmp_path, ANN)
    assert member.read_member(tmp_path) == ANN
    (tmp_path / member.MEMBER).write_text("{}")
    with pytest.raises(GridError, match="cannot be read"):
        member.read_member(tmp_path)


def test_a_context_is_chosen_by_name_and_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GRID_CONTEXT", raising=False)
    assert member.current_context() == "" and member.all_contexts() == []
    with pytest.raises(GridError):
        member.use_context("home")
    for name in ("home", "work"):
        (member.contexts() / name).mkdir(parents=True)
        member.write_member(member.contexts() / name, ANN)
    member.use_context("home")
    assert member.current_context() == "home"
    assert [name for name, _ in member.all_contexts()] == ["home", "work"]
    monkeypatch.setenv("GRID_CONTEXT", "work")
    assert member.current_context() == "work"
    monkeypatch.setenv("GRID_CONTEXT", "wrok")
    monkeypatch.delenv("GRID_COORDINATOR", raising=False)
    with pytest.raises(GridError, match="there is no context 'wrok'") as told:
        member.current_context()
    assert told.value.why == "GRID_CONTEXT names it; there are: home, work"
    with pytest.raises(GridError, match="there is no context 'wrok'"):
        usual_address()


def test_contexts_that_cannot_be_read_are_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/" + "x" * 300)  # no directory can have that name
    monkeypatch.delenv("GRID_CONTEXT", raising=False)
    for asked in (member.current_context, member.all_contexts):
        with pytest.raises(GridError, match="cannot be read") as told:
            asked()
        assert told.value.why == "file name too long"


def test_the_current_context_is_tried_at_an_address_that_none_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GRID_CONTEXT", raising=False)
    work = Member("wss://w:1", "h", Role.CLIENT, "ann")
    for name, one in (("home", ANN), ("work", work)):
        (member.contexts() / name).mkdir(parents=True)
        member.write_member(member.contexts() / name, one)
    assert member.identity_for("wss://moved:1") is None
    member.use_context("home")
    home = member.identity_for("wss://moved:1")
    assert home == member.contexts() / "home"
    assert member.identity_for("wss://w:1") == member.contexts() / "work"
    assert "the context 'home' is for the grid at wss://m:1; " in member.other_address("wss://moved:1", home)
    assert not member.other_address("wss://m:1", home) and not member.other_address("wss://moved:1", None)
