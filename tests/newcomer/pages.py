"""The blocks of README.md and docs/: what a reader types, and what it prints.

A `console` block has commands behind `$ ` and what they print; a line `…` stands for any lines. Each line of an `sh`
block is a command that has to end with 0. Both are typed by `make newcomer`, a page in one shell, unless a line above
the block says otherwise:

    <!-- run by tests/e2e/service/test_tour.py -->      that test types it
    <!-- not run: needs a second machine -->    nobody does, and why

`<!-- first: … -->`, on several lines, is typed too, and no reader sees it. Blocks in other languages are not typed.
"""

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
TYPED = ("console", "sh")
SHOWN = ("text", "yaml", "json", "python", "mermaid", "ini")
FENCE = re.compile(
    r"(?:^<!-- (?:(?P<mark>run by|not run:) (?P<why>.*?)|first:\n(?P<first>.*?)) ?-->\n+)?"
    r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
GENERATED = re.compile(r"<!-- generated: \w+ -->.*?<!-- end -->", re.DOTALL)


class Block(NamedTuple):
    """One block of a page, below this title. `first` is typed before it; `test` is who types it otherwise; `why` nobody
    does."""

    page: str
    section: str
    line: int
    kind: str
    text: str
    first: str = ""
    test: str = ""
    why: str = ""

    @property
    def is_typed(self) -> bool:
        return self.kind in TYPED and not self.test and not self.why

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


class Typed(NamedTuple):
    """A command of a page and what it prints there; None: anything, if it ends with 0."""

    command: str
    shown: str | None = None


def blocks(page: Path) -> Iterator[Block]:
    """All blocks of a page."""
    text = GENERATED.sub(lambda match: "\n" * match.group().count("\n"), page.read_text())
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("kind")) + 1
        mark, why = match["mark"] or "", " ".join((match["why"] or "").split())
        test, reason = (why, "") if mark == "run by" else ("", why)
        titles = re.findall(r"^## (.*)$", text[: match.start()], re.MULTILINE)
        section = titles[-1] if titles else ""
        yield Block(page.name, section, line, match["kind"], match["text"], match["first"] or "", test, reason)


def commands(block: Block) -> Iterator[Typed]:
    """What is typed for a block, in its order."""
    yield from (Typed(line) for line in _lines(block.first))
    if block.kind == "sh":
        yield from (Typed(line) for line in _lines(block.text))
    else:
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            yield Typed(command, shown)


def _lines(text: str) -> Iterator[str]:
    """The commands of a script: its lines, those joined that end with a backslash, without comments."""
    for line in text.replace("\\\n", " ").splitlines():
        command = re.sub(r"(?:^|\s+)# .*$", "", line).strip()
        if command:
            yield command


VARIES = (
    (re.compile(r"\bj-[a-z2-7]{12}\b"), "j-ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\b(\d+[hms])+\b|\b\d+\.\d+ ?s\b"), "DURATION"),
    (re.compile(r"\b\d+(\.\d+)?[KMGT]\b"), "SIZE"),
    (re.compile(r"\bcores? \d+([,-]\d+)*"), "core N"),
    (re.compile(r"\bas [0-9a-f]{12}\b"), "as RAY-NODE"),
    (re.compile(r"\bgrid [0-9a-f]{16}\b"), "grid ID"),
    (re.compile(r"\bconfidence \d\.\d\d\b"), "confidence N"),
    (re.compile(r"\s+"), " "),  # columns are as wide as what is in them
)


def lines(output: str, user: str = "ann") -> list[str]:
    """What has to be the same each time, for a page that calls this user ann."""
    found = []
    for line in output.replace(user, "ann").splitlines():
        for pattern, name in VARIES:
            line = pattern.sub(name, line)
        found.append(line.strip())
    return [line for line in found if line]


def differs(shown: str, printed: str, user: str = "ann") -> str:
    """How the output differs from the page; empty where it does not. A line `…` stands for any lines, and one that ends
    with it for any end of that line."""
    expected, there = lines(shown), lines(printed, user)
    pattern = "".join("(.*\n)*" if line == "…" else _as_pattern(line) for line in expected)
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in there)):
        return ""
    return "\n".join(difflib.unified_diff(expected, there, "the page", "printed", lineterm=""))


def _as_pattern(line: str) -> str:
    return re.escape(line.removesuffix("…")) + (".*\n" if line.endswith("…") else "\n")
