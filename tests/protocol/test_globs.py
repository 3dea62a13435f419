"""Which files patterns name: the node finds files by them, and the client compares the node's answer with them."""

import time

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.globs import GLOB_CHARS, Globs, Match


@pytest.mark.parametrize(
    ("glob", "path", "match"),
    [
        ("result.txt", "result.txt", Match.YES),
        ("result.txt", "Makefile", Match.NO),
        ("result.txt", "sub/result.txt", Match.NO),
        ("result.txt", ".bashrc", Match.NO),
        ("*", ".bashrc", Match.NO),
        ("**", ".git/hooks/pre-commit", Match.NO),
        ("**", "a/.git/x", Match.HIDDEN),
        ("**", "a/b/c", Match.YES),
        ("**/*.log", "a/b.log", Match.YES),
        ("[.]bashrc", ".bashrc", Match.NO),
        (".bashrc", ".bashrc", Match.YES),
        (".*", ".bashrc", Match.YES),
        ("out", "out/a/b", Match.YES),
        ("out", "out/.git/hooks/pre-commit", Match.HIDDEN),
        ("out/.git", "out/.git/hooks/pre-commit", Match.YES),
        ("out/.git", "out/.git/.hidden", Match.HIDDEN),
        ("out/**/.*", "out/a/.zarray", Match.YES),
        ("out/", "out", Match.NO),
        ("out/", "out/a", Match.YES),
        ("*", "a\nb", Match.YES),
        ("*", "\udcff\udcfe", Match.YES),
        ("\udcff*", "\udcff\udcfe", Match.YES),
    ],
)
def test_a_pattern_names_what_a_shell_would_name(glob: str, path: str, match: Match) -> None:
    assert Globs([glob]).match(path) is match


def test_one_pattern_of_several_is_enough() -> None:
    assert Globs(["out", "out/.zarray"]).match("out/.zarray") is Match.YES


@pytest.mark.parametrize("glob", ["/etc/*", "../*", "a/../../*", "", "."])
def test_a_pattern_that_leads_out_is_refused(glob: str) -> None:
    with pytest.raises(BadValue):
        Globs([glob])


@pytest.mark.parametrize("wrong", [5, None, ["*.csv"], b"*.csv"])
def test_a_pattern_is_text(wrong: object) -> None:
    with pytest.raises(BadValue, match="is no pattern"):
        Globs(["a", wrong])  # type: ignore[list-item]


def test_patterns_are_bounded_and_many_stars_cost_little() -> None:
    with pytest.raises(BadValue, match="too long"):
        Globs(["x" * GLOB_CHARS, "y"])
    begun = time.process_time()
    assert Globs(["**/" * 500 + "x"]).match("a/" * 500 + "y") is Match.NO
    assert Globs(["**/a/" * 250 + "x"]).match("a/" * 500 + "y") is Match.NO
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("globs", "path", "may"),
    [
        (["a/b/*"], "a", True),
        (["a/b/*"], "a/b", True),
        (["a/b/*"], "b", False),
        (["a/b/*"], "a/b/c", True),  # c is a directory that matches
        (["a/b"], "a/c", False),
        (["*.txt"], "a", False),
        (["**/*.txt"], "a/b/c", True),
        (["**"], ".git", False),
        (["**"], "a/.git", True),  # hidden, in a directory that was asked for
        ([".git"], ".git/objects", True),
        (["x", "a"], "a/b", True),
        ([], "a", False),
    ],
)
def test_only_directories_that_may_have_a_match_are_worth_a_look(globs: list[str], path: str, may: bool) -> None:
    assert Globs(globs).may_match_below(path) is may
