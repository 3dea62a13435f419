"""docs/python.md: its programs run as they stand there, and print what the page shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from distributed_grid import sync
from distributed_grid.core import GridClient
from tests.grid_fixture import running_grid

PAGE = Path(__file__).parents[3] / "docs/python.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_programs_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    assert len(EXAMPLES) == 2
    with running_grid(tmp_path) as grid:
        for program, shown in EXAMPLES:
            command = [sys.executable, "-c", program]
            done = subprocess.run(
                command, env=grid.environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
            )
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout == shown
        assert (tmp_path / "results" / "log").read_text().splitlines() == ["step 1", "step 2", "step 3"]


@pytest.mark.parametrize("client", [GridClient, sync.GridClient])
def test_every_method_of_both_clients_is_explained(client: type) -> None:
    methods = {name for name in vars(client) if not name.startswith("_")}
    for_shells = {"connect", "close", "do", "call", "ask", "watch", "receive", "fileno", "timeout", "number"}
    text = PAGE.read_text()
    assert not {name for name in methods - for_shells if f"`{name}(" not in text}
