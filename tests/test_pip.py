"""Hints that install something: by the interpreter that runs, and never this project from an index."""

import configparser
import re
import shlex
import sys
from pathlib import Path

from distributed_grid import pip

ROOT = Path(__file__).parents[1]
FROM_AN_INDEX = re.compile(r"(?:pip|pipx|uv)3? install (?:-\S+ )*['\"]?distributed[-_]grid(?!-\*|[-_]\d)")


def test_the_command_is_of_the_interpreter_that_runs_and_can_be_copied() -> None:
    assert shlex.split(pip.install("ray>=2.57")) == [sys.executable, "-m", "pip", "install", "ray>=2.57"]


def test_the_extras_are_those_of_the_package() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    for extra, packages in pip.EXTRAS.items():
        lines = config["options.extras_require"][extra].splitlines()
        assert tuple(line for line in lines if line and not line.startswith("#")) == packages


def test_nothing_tells_people_to_install_this_project_from_an_index() -> None:
    """Nobody has that name there, so anybody may take it."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "build"]
    files = [*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.*"))]
    texts = [path for path in files if path.suffix in (".py", ".md", ".sh") and path != Path(__file__)]
    found = [str(path.relative_to(ROOT)) for path in texts if FROM_AN_INDEX.search(path.read_text())]
    assert found == []


def test_such_a_hint_would_be_found() -> None:
    assert FROM_AN_INDEX.search("pip install 'distributed-grid[ssh]'")
    assert FROM_AN_INDEX.search("pip install --upgrade distributed-grid==0.2")
    assert not FROM_AN_INDEX.search("pip install dist/distributed_grid-*.whl")
    assert not FROM_AN_INDEX.search("pip install distributed_grid-0.1.0-py3-none-any.whl")
