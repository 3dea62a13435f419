"""What `grid` does before it does anything: its version, its help, and how little it imports for them."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

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
    assert ours <= {f"distributed_grid.cli{name}" for name in ("", ".main", ".lazy", ".context")}


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


def test_a_command_imports_no_event_loop_and_nothing_else_that_is_slow() -> None:
    code = (
        "import sys; from distributed_grid.cli.jobs.run_shared import run_shared;"
        "from distributed_grid.cli.attach.attached import Attached;"
        "from distributed_grid.coordinator.client.blocking import GridClient;"
        "print(*sys.modules)"
    )
    assert not {"asyncio", "structlog", "rich", "yaml", "ray", "psutil", "uvloop"} & set(run(code).split())


@pytest.mark.parametrize(
    "module", ["cli.grid.boost", "coordinator.main", "coordinator.ray.boosts", "agent.main", "agent.launch.raylet"]
)
def test_nothing_but_the_bridge_ever_imports_ray(module: str) -> None:
    assert "ray" not in run(f"import sys, distributed_grid.{module}; print(*sys.modules)").split()


def test_a_mistyped_command_is_answered_with_the_right_one() -> None:
    with pytest.raises(click.UsageError, match="Did you mean 'run-shared'"):
        main.main(["run-shard"], standalone_mode=False)


@pytest.mark.parametrize("path", [["job"], ["agent"], ["coordinator"], ["dev"], ["config"], ["cluster"]])
def test_every_command_has_help_and_takes_the_common_options(path: list[str]) -> None:
    group = COMMANDS[path[0]].load()
    assert isinstance(group, click.Group)
    for command in group.commands.values():
        assert command.get_short_help_str()
        assert {"-c", "-o", "--coordinator"} <= {name for parameter in command.params for name in parameter.opts}


def test_a_command_of_the_guides_is_answered_with_its_name_here() -> None:
    with pytest.raises(click.UsageError, match="Did you mean 'shared-status'"):
        main.main(["resource-sharing", "status"], standalone_mode=False)


def test_the_help_of_a_group_has_the_whole_line_of_each_command() -> None:
    said = " ".join(CliRunner().invoke(main, ["boost", "--help"]).output.split())
    assert "Borrow AMOUNT cores, GPUs or GB for the node TARGET, through its Ray cluster." in said
    assert said.index("request Borrow") < said.index("status Show") < said.index("history Show")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_our_variable(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    main.main(["completion", shell], standalone_mode=False)
    assert "_GRID_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_standard_file_leads_nowhere_instead_of_into_a_socket(closed: int, tmp_path: Path) -> None:
    code = (
        f"import os, sys; os.close({closed}); "
        "os.execv(sys.executable, [sys.executable, '-m', 'distributed_grid.cli.main', 'config', 'show'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, bool(done.stdout), done.stderr) == (0, closed != 1, "")
