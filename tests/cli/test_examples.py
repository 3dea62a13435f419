"""Every command's help ends with two examples, which that command's own parser takes."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from distributed_grid.cli.examples import EXAMPLES
from distributed_grid.cli.lazy import path_of
from distributed_grid.cli.main import main
from tests.commands import reached, words_of


def contexts(context: click.Context) -> Iterator[click.Context]:
    """This command and all below it."""
    yield context
    if isinstance(command := context.command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from contexts(click.Context(below, info_name=name, parent=context))


def grid_words(example: str) -> list[str]:
    """The words from `grid` on: behind `sudo`, a pipe or `eval "$(`."""
    return words_of(example[example.index("grid ") :].removesuffix(')"'))


def why_wrong(path: str, example: str) -> str:
    """Why this is no example of the command at this path; empty where it is one."""
    try:
        context, rest = reached(grid_words(example))
        found = path_of(context)
        if found != path and not (found.startswith(path) and isinstance(at(path).command, click.Group)):
            return f"an example of `grid {found}`"
        context.command.make_context(context.info_name, list(rest), parent=context.parent)
    except click.exceptions.Exit:
        return ""
    except click.UsageError as error:
        return error.format_message()
    return ""


def at(path: str) -> click.Context:
    return next(one for one in contexts(click.Context(main, info_name="grid")) if path_of(one) == path)


def test_every_command_has_two_examples_and_no_example_is_without_a_command() -> None:
    paths = {path_of(one) for one in contexts(click.Context(main, info_name="grid"))}
    assert set(EXAMPLES) == paths
    assert all(len(set(two)) == 2 for two in EXAMPLES.values())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path or "grid")
def test_the_parser_of_a_command_takes_its_examples(path: str) -> None:
    assert [f"{one}: {why}" for one in EXAMPLES[path] if (why := why_wrong(path, one))] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path or "grid")
def test_the_help_of_a_command_ends_with_its_examples_each_on_one_line(path: str) -> None:
    done = CliRunner().invoke(main, [*path.split(), "--help"], terminal_width=80)
    assert done.exit_code == 0
    assert done.output.endswith("\nExamples:\n" + "".join(f"  {one}\n" for one in EXAMPLES[path]))


@pytest.mark.parametrize(
    ("path", "example"),
    [
        ("jobs", "grid jobs --nonsense"),
        ("jobs", "grid nodes"),
        ("job wait", "grid job wait"),
        ("dev up", "grid dev up --nodes none"),
        ("nodes", "grid nodes lab1"),
    ],
)
def test_an_example_that_is_wrong_is_found(path: str, example: str) -> None:
    assert why_wrong(path, example)
