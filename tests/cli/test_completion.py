"""What a shell is given: our script, and words for jobs and nodes where the coordinator answers at once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from distributed_grid.cli import completion
from distributed_grid.cli.context import Invocation
from distributed_grid.cli.main import main
from distributed_grid.coordinator.client import GridClient
from tests.coordinator.client.test_connection import free_port
from tests.coordinator.ends import agent, coordinator


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_our_variable(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    main.main(["completion", shell], standalone_mode=False)
    assert "_GRID_COMPLETE" in capsys.readouterr().out


async def test_jobs_and_nodes_are_offered_by_their_beginnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "TIMEOUT", 30.0)
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url)
        job = await client.submit("true", name="train")
        monkeypatch.setenv("GRID_COORDINATOR", grid.url)
        assert await asyncio.to_thread(completion.complete_jobs, None, None, "") == [job, "train", "last"]
        assert await asyncio.to_thread(completion.complete_jobs, None, None, "tr") == ["train"]
        assert await asyncio.to_thread(completion.complete_nodes, None, None, "n") == ["n1"]
        await worker.close()


async def test_a_name_that_a_shell_would_act_on_is_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bash inserts a word as it stands: `grid logs tr<TAB><Enter>` would run what another user wrote into a name."""
    monkeypatch.setattr(completion, "TIMEOUT", 30.0)
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        monkeypatch.setenv("GRID_COORDINATOR", grid.url)
        names = ["tr$(touch x)", "tr;x", "tr x", "tr*", "tr`x`", "tr'x", "tr|x", "tr&", "tr>x", "~tr", "-tr", "träin-1"]
        jobs = [await client.submit("true", name=name) for name in names]
        words = await asyncio.to_thread(completion.complete_jobs, None, None, "")
        assert sorted(words) == sorted([*jobs, "träin-1", "last"])


async def test_the_coordinator_that_the_command_line_names_is_asked(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        await client.submit("true", name="train")
        with click.Context(main, obj=Invocation(coordinator=grid.url)) as top, click.Context(main, parent=top) as ctx:
            assert "train" in await asyncio.to_thread(completion.complete_jobs, ctx, None, "tr")


def leaves(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    with click.Context(group) as ctx:
        for name in group.list_commands(ctx):
            command = group.get_command(ctx, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from leaves(command, *path, name)
            else:
                yield (*path, name), command


def test_files_and_folders_are_completed_wherever_one_is_named() -> None:
    shell = ShellComplete(main, {}, "grid", "_GRID_COMPLETE")
    for path, command in leaves(main):
        for one in command.params:
            if one.metavar in ("FILE", "DIR"):
                given = [*path, one.opts[0]] if isinstance(one, click.Option) else [*path]
                assert [item.type for item in shell.get_completions(given, "x")] in (["file"], ["dir"]), given


@pytest.mark.parametrize("words", [["run-shared"], ["run-shared", "--no-ship", "python3"], ["predict", "sh"]])
def test_the_words_of_a_command_are_completed_as_files(words: list[str]) -> None:
    found = ShellComplete(main, {}, "grid", "_GRID_COMPLETE").get_completions(words, "tr")
    assert [(item.type, item.value) for item in found] == [("file", "tr")]


def test_without_a_coordinator_nothing_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRID_COORDINATOR", f"ws://127.0.0.1:{free_port()}")
    assert completion.complete_nodes(None, None, "") == []
