"""Errors for people have a cause and a hint, and nothing in them acts on a terminal."""

import traceback

from distributed_grid.protocol.errors import BadFrame, BadValue, GridError, OutOfBounds, printable


def test_an_error_has_lines_for_what_it_knows() -> None:
    assert GridError("it broke").lines() == ["error: it broke"]
    assert BadValue("no", "why not", "yes").lines() == ["error: no", "  why: why not", "  try: yes"]
    assert isinstance(BadValue("no"), ValueError) and issubclass(OutOfBounds, BadFrame)


def test_control_characters_and_invisible_ones_are_shown_by_number() -> None:
    assert printable("plain ä") == "plain ä"
    assert printable("a\x1b[31mb\u202e") == "a\\x1b[31mb\\u202e"
    assert GridError("a\x07").lines() == ["error: a\\x07"]


def test_a_traceback_shows_why_and_what_to_try() -> None:
    shown = traceback.format_exception(GridError("it is gone", "the disk is full", "make room"))
    assert "".join(shown).splitlines()[-2:] == ["  why: the disk is full", "  try: make room"]
    assert str(GridError("it is gone", "the disk is full", "make room")) == "it is gone"
