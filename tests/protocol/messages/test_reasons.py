"""The reasons why jobs wait are a known set, in one order, and documented as such."""

import re
from pathlib import Path

from distributed_grid.protocol.messages.reasons import OTHER, WAITING

ROOT = Path(__file__).parents[3]
SAID = re.compile(r"""\bReason\(\s*"([A-Za-z]+)"|\(\s*"[a-z-]+", "([A-Z][A-Za-z]+)"\)""")


def test_every_reason_that_is_said_is_in_the_table_and_every_one_of_the_table_is_said() -> None:
    said = set()
    for path in (ROOT / "coordinator" / "core").rglob("*.py"):
        said |= {one or other for one, other in SAID.findall(path.read_text())}
    assert said == set(WAITING) | set(OTHER)


def test_the_page_shows_the_table_in_its_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", (ROOT / "docs" / "why.md").read_text(), re.M)
    assert rows == list(WAITING.items())
