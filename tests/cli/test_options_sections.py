"""The help of a command with many options has them in sections."""

import click
from click.testing import CliRunner

from distributed_grid.cli.jobs.run_shared import run_shared
from distributed_grid.cli.main import main
from distributed_grid.cli.options import EVERYWHERE


def test_every_option_of_run_shared_stands_in_one_section() -> None:
    named = [name for _, names in run_shared.sections for name in names]
    own = [one.name for one in run_shared.params if isinstance(one, click.Option) and one.name not in EVERYWHERE]
    assert sorted(named) == sorted(name for name in own if name)


def test_the_help_shows_the_sections_and_each_option_once() -> None:
    text = CliRunner().invoke(main, ["run-shared", "--help"]).output
    at = [text.index(f"\n{title}:") for title, _ in run_shared.sections]
    assert at == sorted(at) and "Others:" not in text
    assert text.count("  --retry-on ") == 1 and text.rindex("--config") > at[-1]
