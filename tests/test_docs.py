"""The documentation says what the code says: what it names exists, and what exists is named."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from distributed_grid.cli.main import main as grid
from distributed_grid.config import render as config_text
from distributed_grid.config.schema import MOVED
from tests.commands import why_refused, words_of

ROOT = Path(__file__).parents[1]
FRONT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in FRONT), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
CALLERS = (
    "agent/launch/raylet.py",
    "agent/machine.py",
    "cli/services/",
    "coordinator/providers/",
    "distributed_grid/push/",
)
"""What puts together the commands of other programs."""
OF_OTHERS = {"--block", "--head", "--lr", "--node-name", "--num-gpus", "--signal"}
"""Options of Ray, Slurm and a user's program."""
OF_BENCHES = {"CHANGELOG.md", "figures.md", "policy-lab.md", "security.md"}
"""Pages that name options of benches and campaigns, or mistyped ones, too."""
SOURCE = re.compile(r"(?:[\w.-]+/)*[\w.-]+\.(?:py|md|sql|sh|cfg|toml|service)")


def test_the_generated_parts_of_the_docs_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), "run `make docs`"


# --- what exists is named ---------------------------------------------------------------------------------------------


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    yield context.command_path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, click.Context(below, info_name=name, parent=context))


def test_every_command_and_option_is_explained() -> None:
    sections = (ROOT / "docs/command-line.md").read_text().split("\n### ")
    explained = {section.partition("\n")[0].strip("`"): section for section in sections}
    everywhere = {option.name for option in grid.params}
    missing = []
    for path, command in commands(grid, click.Context(grid, info_name="grid")):
        section = explained.get(path if path != "grid" else "Before any command", "")
        if not section and not isinstance(command, click.Group):
            missing.append(path)
        for option in command.params:
            if path != "grid" and (option.name in everywhere or isinstance(command, click.Group)):
                continue  # said once, before any command
            if isinstance(option, click.Option) and not option.hidden:
                missing += [f"{path} {flag}" for flag in option.opts if not re.search(rf"[` ]{flag}[ `,/]", section)]
                if not option.help:
                    missing.append(f"{path} {option.opts[-1]} says nothing about itself")
    assert not missing


def settings(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Every setting that the schema knows, as `a.b`, and of the items of a list as `a[].b`."""
    below = schema.get("properties") or {}
    if not below and "properties" in (items := schema.get("items", {})):
        below, path = items["properties"], f"{path}[]"
    if not below:
        yield path
    for name, one in below.items():
        yield from settings(one, f"{path}.{name}".lstrip("."))


def test_every_setting_is_explained() -> None:
    names = list(settings(config_text.json_schema()))
    assert len(names) > 30
    explained = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/configuration.md").read_text(), re.MULTILINE))
    moved = tuple(".".join(path) + "." for path in MOVED if ".".join(path) in explained)
    assert not [name for name in names if name not in explained and not name.startswith(moved)]


# --- what is named exists ---------------------------------------------------------------------------------------------


@functools.cache
def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        there = page.parent / target if target else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(link)
    assert not broken


@functools.cache
def names_of_ours() -> tuple[set[str], set[str]]:
    """The names of all files, wherever they lie, and those of the folders at the top."""
    top = list(ROOT.iterdir())
    below = (path for room in top if room.is_dir() and room.name[0] != "." for path in room.rglob("*.*"))
    return {path.name for path in (*below, *top)}, {path.name for path in top if path.is_dir()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_ours_that_are_named_are_there(page: Path) -> None:
    """`agent/sampling/probe.py` is a path from the root; a bare `probe.py` is looked for anywhere."""
    names, rooms = names_of_ours()
    gone = []
    for code in CODE.findall(FENCE.sub("", page.read_text())):
        for name in SOURCE.findall(code):
            if "/" not in name:
                there = name in names or code != name or not name.endswith(".py") or name in USERS_FILES
            else:
                there = (ROOT / name).exists() or name.partition("/")[0] not in rooms
            if not there:
                gone.append(name)
    assert not gone


@functools.cache
def defined(path: Path) -> frozenset[str]:
    """What a module defines: functions, classes, constants, and methods as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for one in targets if isinstance(one, ast.Name)}
        if isinstance(node, ast.ClassDef):
            methods = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{one.name}" for one in methods}
    return frozenset(found)


def where() -> list[tuple[str, str, str]]:
    """The rows of the section "Where is …?": a question, a file, and what answers it there."""
    page = (ROOT / "docs/architecture.md").read_text()
    section = page.split("\n## Where is")[1].split("\n## ")[0]
    return re.findall(r"^\| (.+\?) \| `(.+?)` \| (.+) \|$", section, re.MULTILINE)


@pytest.mark.parametrize(("question", "file", "answer"), where(), ids=lambda cell: cell[:60])
def test_where_something_is_done_is_answered_by_a_function_that_is_there(question: str, file: str, answer: str) -> None:
    there = defined(ROOT / file)
    for name in CODE.findall(answer):
        if name.endswith(".py"):
            there |= defined(ROOT / name)
    named = [name for name in CODE.findall(answer) if not name.endswith(".py")]
    assert named and [name for name in named if name not in there] == [], f"{question} ({file})"


def test_newcomers_find_at_least_fifteen_answers() -> None:
    assert len(where()) >= 15


USERS_FILES = {"train.py", "answer.py"}
WORDS = 800
"""That the first page may have: who reads it wants to know what this is, and where the rest stands."""


def test_the_changelog_names_pages_that_there_are() -> None:
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} | {"CONTRIBUTING", "SECURITY"}
    named = set()
    for found in re.findall(r"\(([\w-]+(?:, [\w-]+)*)\)\.$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        named |= {word for word in found.split(", ") if word.replace("-", "").isalpha()}
    assert {"figures", "seed-names"} < named and named <= pages


def test_the_first_page_is_short_and_the_index_names_every_page() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= WORDS
    named = set(LINK.findall((ROOT / "docs/index.md").read_text()))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= named


class Command(NamedTuple):
    """A command that a page tells its reader to type."""

    page: str
    words: list[str]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def typed(page: Path) -> Iterator[Command]:
    """Lines of code blocks that begin with `make` or `grid`, with or without a prompt; and such words inside a text."""
    text = page.read_text()
    text = re.sub(r"<!-- generated: (commands|map) -->.*?<!-- end -->", "", text, flags=re.DOTALL)
    lines = [
        line for kind, block in FENCE.findall(text) if kind in ("", "sh", "console") for line in block.splitlines()
    ]
    for line in [*lines, *CODE.findall(FENCE.sub("", text))]:
        line = line.removeprefix("$ ")
        if line.split(" ")[0] in ("make", "grid") and "…" not in line and "<" not in line:
            yield Command(page.name, words_of(line))


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_pages_name_only_commands_that_there_are() -> None:
    found = [command for page in PAGES for command in typed(page)]
    wrong = []
    for command in found:
        if command.words[0] == "make" and not set(w for w in command.words[1:] if "=" not in w) <= targets():
            wrong.append(f"{command}: no such target")
        elif command.words[0] == "grid" and (why := why_refused(command.words)):
            wrong.append(f"{command}: {why}")
    assert not wrong, "\n".join(wrong)
    readme = {" ".join(command.words[:2]) for command in found if command.page == "README.md"}
    assert {"make demo", "make pipx", "grid dev", "grid run-shared"} <= readme


def options_named(text: str) -> Iterator[str]:
    return (match.group() for match in re.finditer(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9](?![\w-])", text))


def sources(*but: str) -> Iterator[Path]:
    """The product's, but those whose paths begin so."""
    for room in ("agent", "cli", "coordinator", "distributed_grid", "protocol", "simulator"):
        for path in sorted((ROOT / room).rglob("*.py")):
            if not str(path.relative_to(ROOT)).startswith(but):
                yield path


def options_there_are() -> set[str]:
    every = commands(grid, click.Context(grid, info_name="grid"))
    named = {
        flag for _, command in every for option in command.params for flag in (*option.opts, *option.secondary_opts)
    }
    return named | {"--help"}


def test_hints_and_errors_name_only_options_that_there_are() -> None:
    known, wrong = options_there_are() | OF_OTHERS, []
    for path in sources(*CALLERS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                wrong += [
                    f"{path.relative_to(ROOT)}:{node.lineno}: {o}" for o in options_named(node.value) if o not in known
                ]
    assert not wrong, "\n".join(wrong)


def test_the_pages_explain_only_options_that_there_are() -> None:
    known, wrong = options_there_are() | OF_OTHERS, []
    for page in PAGES:
        if page.name not in OF_BENCHES and "decisions" not in page.parts:
            for span in CODE.findall(FENCE.sub("", page.read_text())):
                if span.startswith("--"):
                    wrong += [f"{page.name}: {option}" for option in options_named(span) if option not in known]
    assert not wrong, "\n".join(wrong)


def test_the_pages_name_only_variables_that_there_are() -> None:
    read = {name for path in sources() for name in re.findall(r"GRID_[A-Z_]+", path.read_text())}
    pages = [
        page for page in PAGES if page.name not in {*OF_BENCHES, "CONTRIBUTING.md"} and "decisions" not in page.parts
    ]
    named = {name for page in pages for name in re.findall(r"GRID_[A-Z_]+", page.read_text()) if "__" not in name}
    assert "GRID_CONTEXT" in named and named <= read


def test_an_option_that_there_is_not_would_be_found() -> None:
    assert list(options_named("give it a shorter --time-limit, or none; a word--like this")) == ["--time-limit"]
    assert "--time" in options_there_are() and "--time-limit" not in options_there_are() | OF_OTHERS


def test_a_command_that_there_is_not_would_be_found() -> None:
    assert why_refused(["grid", "shared-status"]) == ""
    assert why_refused(["grid", "run-shared", "-t", "cpu", "-a", "1", "true", "--nonsense"]) == ""
    assert why_refused(["grid", "jobs", "--nonsense"])
    assert why_refused(["grid", "nonsense"])
    assert why_refused(["grid", "dev", "nonsense"])
    assert "nonsense" not in targets()
