"""Groups of commands that are imported only when they are called."""

import click
import pytest
from click.testing import CliRunner

from distributed_grid.cli.lazy import Command, Lazy, LazyGroup
from distributed_grid.cli.main import main


def test_a_command_is_imported_only_when_called() -> None:
    group = LazyGroup(name="g", table={"odd": Lazy("no.such.module:odd", "An odd one.")})
    context = click.Context(group)
    assert group.list_commands(context) == ["odd"]
    assert "An odd one." in group.get_help(context)
    with pytest.raises(ModuleNotFoundError):
        group.get_command(context, "odd")


def test_a_table_entry_that_is_no_command_is_an_error() -> None:
    with pytest.raises(TypeError, match="is not a command"):
        Lazy("distributed_grid.cli.main:COMMANDS", "").load()


def test_a_mistyped_command_is_answered_with_the_right_one() -> None:
    with pytest.raises(click.UsageError, match="Did you mean 'run-shared'"):
        main.main(["run-shard"], standalone_mode=False)


def test_the_help_of_a_group_has_the_whole_line_of_each_command() -> None:
    said = " ".join(CliRunner().invoke(main, ["boost", "--help"]).output.split())
    assert "Borrow AMOUNT cores, GPUs or GB for the node TARGET, through its Ray cluster." in said
    assert said.index("request Borrow") < said.index("status Show") < said.index("history Show")


def test_the_parser_of_a_click_that_works_in_another_way_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    other, command = object(), Command("run")
    monkeypatch.setattr(click.Command, "make_parser", lambda *_: other)
    assert command.make_parser(click.Context(command)) is other
