"""What `grid` does before it does anything: its version, its help, and how little it imports for them."""

import subprocess
import sys

import click
import pytest

from distributed_grid.cli.lazy import Lazy, LazyGroup
from distributed_grid.cli.main import COMMANDS, main

SLOW = {"asyncio", "structlog", "rich", "yaml", "websockets", "ray", "psutil", "msgspec"}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_version_is_one_line() -> None:
    code = "import sys; sys.argv[1:] = ['--version']; from distributed_grid.cli.main import main; main()"
    assert run(code) == "grid 0.1.0\n"


def test_help_imports_nothing_slow_and_no_command() -> None:
    code = (
        "import sys; from distributed_grid.cli.main import main; main(['--help'], standalone_mode=False);"
        "print('LOADED', *sys.modules)"
    )
    shown, _, loaded = run(code).partition("LOADED")
    assert "Usage: " in shown
    assert not SLOW & set(loaded.split())
    ours = {name for name in loaded.split() if name.startswith("distributed_grid.")}
    assert ours <= {"distributed_grid.cli", "distributed_grid.cli.main", "distributed_grid.cli.lazy"}


def test_commands_say_of_themselves_what_the_table_says() -> None:
    said = {name: lazy.load().get_short_help_str(limit=200) for name, lazy in COMMANDS.items()}
    assert said == {name: lazy.summary for name, lazy in COMMANDS.items()}


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


def test_the_entry_point_is_a_lazy_group() -> None:
    assert isinstance(main, LazyGroup)
    assert main.table is COMMANDS
