"""docs/tour.md, typed as it stands there: each command with a prompt runs, and prints what the page shows."""

import getpass
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.newcomer.pages import ROOT, Typed, blocks, commands
from tests.newcomer.shell import Shell, follow

PAGE = ROOT / "docs/tour.md"
RAY = "A Ray cluster"
OWN_NAMESPACES = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]


def typed(with_ray: bool) -> list[Typed]:
    """The commands of the page, without what installs the grid."""
    found = [one for one in blocks(PAGE) if one.kind == "console" and one.section.startswith(RAY) is with_ray]
    return [command for block in found for command in commands(block)]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell with a network and process ids of its own, which end with it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GRID_", "XDG_", "RAY_"))}
    own = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    own |= {"GRID_AGENT__NICE": "0"}  # a nice raylet gets a thirtieth of a core that other tests keep busy
    own |= {"PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"}
    made = Shell([*OWN_NAMESPACES, "bash", "--norc"], kept | own, tmp_path)
    assert made.run("ip link set lo up") == (0, "")
    yield made
    made.close()


@pytest.mark.netns
@pytest.mark.slow
def test_every_command_of_the_tour_prints_what_the_page_shows(shell: Shell) -> None:
    assert len(typed(with_ray=False)) > 10
    follow(shell, typed(with_ray=False), getpass.getuser())


@pytest.mark.netns
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_part_with_ray_prints_what_the_page_shows(shell: Shell) -> None:
    assert len(typed(with_ray=True)) > 5
    follow(shell, typed(with_ray=True), getpass.getuser())
