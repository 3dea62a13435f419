"""Every block of README.md and docs/ is typed by somebody, or says why not."""

import re
from pathlib import Path

import pytest

from tests.newcomer.pages import PAGES, ROOT, SHOWN, TYPED, Block, blocks, commands, differs

ALL = [block for page in PAGES for block in blocks(page)]
TYPED_BY_NOBODY = 24
COMMAND = re.compile(r"(?:\$ |sudo |grid |make |pip |pipx |python3? |cd |ray )")


def page(folder: Path, text: str) -> list[Block]:
    (folder / "page.md").write_text(text)
    return list(blocks(folder / "page.md"))


@pytest.mark.parametrize("block", ALL, ids=lambda block: block.where)
def test_a_block_is_one_to_type_or_one_to_read(block: Block) -> None:
    assert block.kind in (*TYPED, *SHOWN), "its language is not named"
    assert block.kind in TYPED or not COMMAND.match(block.text) or block.why, "commands stand in console or sh blocks"
    assert block.kind != "console" or block.text.startswith("$ ")


@pytest.mark.parametrize("block", [one for one in ALL if one.test], ids=lambda block: block.where)
def test_a_block_that_a_test_types_names_a_test_that_is_there(block: Block) -> None:
    assert (ROOT / block.test).is_file()


def test_the_blocks_that_nobody_types_are_few_and_each_says_why() -> None:
    left = [block for block in ALL if block.why]
    assert len(left) == TYPED_BY_NOBODY, "\n".join(f"{block.where}: {block.why}" for block in left)
    assert all(len(block.why) > 10 for block in left)


def test_readme_and_most_pages_have_something_to_type() -> None:
    typed = {block.page for block in ALL if block.is_typed}
    assert {"README.md", "tour.md", "services.md", "operations.md", "security.md"} <= typed


def test_the_lines_of_a_script_are_commands_without_their_comments(tmp_path: Path) -> None:
    (block,) = page(tmp_path, "## Start\n\n```sh\ngrid dev up     # a grid\n# and\ngrid jobs \\\n  --all\n```\n")
    assert [one.command for one in commands(block)] == ["grid dev up", "grid jobs    --all"]
    assert (block.section, block.line, block.is_typed) == ("Start", 3, True)


def test_what_a_console_shows_is_compared_and_what_no_reader_sees_is_typed_first(tmp_path: Path) -> None:
    text = "<!-- first:\ngrid dev up\n-->\n```console\n$ grid jobs\nno jobs\n$ true\n```\n"
    (block,) = page(tmp_path, text)
    assert list(commands(block)) == [("grid dev up", None), ("grid jobs", "no jobs\n"), ("true", "")]


def test_a_block_may_say_who_types_it_or_why_nobody_does(tmp_path: Path) -> None:
    text = "<!-- run by tests/x.py -->\n```sh\na\n```\n\n<!-- not run: needs two\nmachines -->\n```sh\nb\n```\n"
    by_test, not_run = page(tmp_path, text)
    assert (by_test.test, by_test.is_typed) == ("tests/x.py", False)
    assert (not_run.why, not_run.is_typed) == ("needs two machines", False)


def test_another_output_than_the_page_shows_would_be_found() -> None:
    shown = "a grid runs (2.3 s)\n…\nj-abcdefgh2345 runs on core 0\n"
    assert differs(shown, "a grid runs (9.0 s)\nmore\nj-zzzzzzzz7777 runs  on core 3\n") == ""
    assert differs(shown, "a grid runs (9.0 s)\nj-zzzzzzzz7777 runs on core 3\n") == ""
    assert differs(shown, "a grid runs (9.0 s)\nmore\nj-zzzzzzzz7777 ended on core 3\n")
    assert differs("", "something\n")
    assert differs("ended in …\n", "ended in some/place\n") == ""
