"""The codes of reasons are stable and documented: docs/why.md names all of them, and no others."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAID = re.compile(r"""\bReason\(\s*"([A-Za-z]+)"|\(\s*"[a-z-]+", "([A-Z][A-Za-z]+)"\)""")


def test_the_page_names_every_code_that_is_said_and_no_other() -> None:
    said = set()
    for path in (ROOT / "coordinator" / "core").rglob("*.py"):
        said |= {one or other for one, other in SAID.findall(path.read_text())}
    page = (ROOT / "docs" / "why.md").read_text()
    waiting = re.findall(r"^\| `(\w+)` \|", page, re.M)
    (others,) = re.findall(r"^For jobs that do not wait.*?\n\n", page, re.M | re.S)
    named = waiting + re.findall(r"`(\w+)`", others)
    assert sorted(named) == sorted(said)
