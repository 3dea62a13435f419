"""docs/tour.md, typed as it stands there: each command with a prompt runs, and prints what the page shows."""

import difflib
import getpass
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).parents[2] / "docs/tour.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RAY = "## A Ray cluster"
END = "-- end of the output --"
OWN_NAMESPACES = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]

VARIES = (
    (re.compile(r"\bj-[a-z2-7]{12}\b"), "j-ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\b(\d+[hms])+\b|\b\d+\.\d+ ?s\b"), "DURATION"),
    (re.compile(r"\b\d+(\.\d+)?[KMGT]\b"), "SIZE"),
    (re.compile(r"\bcores? \d+([,-]\d+)*"), "core N"),
    (re.compile(r"\bas [0-9a-f]{12}\b"), "as RAY-NODE"),
    (re.compile(r"\bconfidence \d\.\d\d\b"), "confidence N"),
    (re.compile(r"\s+"), " "),  # columns are as wide as what is in them
)


class Typed(NamedTuple):
    """A command of the page and what it prints there."""

    command: str
    shown: str


def typed(text: str) -> Iterator[Typed]:
    for block in BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            yield Typed(command, shown)


def lines(output: str) -> list[str]:
    """What has to be the same each time."""
    found = []
    for line in output.replace(getpass.getuser(), "ann").splitlines():
        for pattern, name in VARIES:
            line = pattern.sub(name, line)
        found.append(line.strip())
    return [line for line in found if line]


def differs(shown: str, printed: str) -> str:
    """How the output differs from the page; empty where it does not. A line `…` stands for any lines."""
    expected, there = lines(shown), lines(printed)
    pattern = "".join("(.*\n)*" if line == "…" else re.escape(line) + "\n" for line in expected)
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in there)):
        return ""
    return "\n".join(difflib.unified_diff(expected, there, "the page", "printed", lineterm=""))


class Shell:
    """One shell, in which a whole page is typed; it has a network and process ids of its own, which end with it."""

    def __init__(self, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GRID_", "XDG_", "RAY_"))}
        own = {"HOME": str(home), "XDG_STATE_HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"}
        self.process = subprocess.Popen(
            [*OWN_NAMESPACES, "bash", "--norc"],
            cwd=home,
            env=kept | own | {"GRID_AGENT__NICE": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.run("ip link set lo up") == ""

    def run(self, command: str) -> str:
        """Type one line; everything that it prints."""
        into, out = self.process.stdin, self.process.stdout
        assert into is not None and out is not None
        print(command, f"echo; echo '{END}'", sep="\n", file=into, flush=True)
        printed: list[str] = []
        for line in out:
            if line.rstrip("\n") == END:
                return "".join(printed).removesuffix("\n")
            printed.append(line)
        raise AssertionError(f"the shell ended at `{command}`:\n{''.join(printed)}")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()


def follow(shell: Shell, text: str) -> None:
    for command, shown in typed(text):
        assert not (difference := differs(shown, shell.run(command))), f"$ {command}\n{difference}"


@pytest.mark.netns
@pytest.mark.slow
def test_every_command_of_the_tour_prints_what_the_page_shows(shell: Shell) -> None:
    before_ray, _, _ = PAGE.read_text().partition(RAY)
    assert len(list(typed(before_ray))) > 10
    follow(shell, before_ray)


@pytest.mark.netns
@pytest.mark.ray
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_part_with_ray_prints_what_the_page_shows(shell: Shell) -> None:
    _, _, with_ray = PAGE.read_text().partition(RAY)
    assert len(list(typed(with_ray))) > 5
    follow(shell, with_ray)


def test_another_output_than_the_page_shows_would_be_found() -> None:
    page = "a grid runs (2.3 s)\n…\nj-abcdefgh2345 runs on core 0\n"
    assert differs(page, "a grid runs (9.0 s)\nmore\nj-zzzzzzzz7777 runs  on core 3\n") == ""
    assert differs(page, "a grid runs (9.0 s)\nj-zzzzzzzz7777 runs on core 3\n") == ""
    assert differs(page, "a grid runs (9.0 s)\nmore\nj-zzzzzzzz7777 ended on core 3\n")
    assert differs("", "something\n")
