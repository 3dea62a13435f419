"""Errors for people have a cause and a hint, and nothing in them acts on a terminal."""

import copy
import traceback
from multiprocessing import Pipe

import pytest

from distributed_grid.config.kinds import ConfigError, Problem
from distributed_grid.config.settings import SharingDisabled
from distributed_grid.coordinator.client.downloads import BadAnswer, NotWritten
from distributed_grid.coordinator.client.session import ConnectionLost, GridUnavailable, RequestRefused
from distributed_grid.coordinator.client.walk import ShippingError
from distributed_grid.protocol.errors import BadFrame, BadValue, GridError, OutOfBounds, printable
from distributed_grid.protocol.messages import Failed


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


@pytest.mark.parametrize(
    "error",
    [
        BadValue("it is wrong", "it is a word", "give a number"),
        GridUnavailable("nobody answers", "it is down", "start it", lasting=True),
        ConnectionLost("it broke"),
        RequestRefused(Failed(7, "never-fits", "it fits no node", "it is large", "ask for less")),
        ShippingError("it is too large"),
        BadAnswer("it is something else"),
        NotWritten("a.txt", "it changed"),
        SharingDisabled("grid.yaml"),
        ConfigError([Problem("grid.yaml", "it is empty")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_in_another_process(error: GridError) -> None:
    here, there = Pipe()
    with here, there:
        here.send(error)
        received = there.recv()
    for again in (received, copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error) and vars(again) == vars(error)
        assert str(again) == str(error) and again.lines() == error.lines()
