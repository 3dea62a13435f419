"""Messages about what jobs need: predictions by the shape of a command, and what runs used (docs/needs.md)."""

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec

from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.resources import Count, Finite, Number, Span, Text, Word

MOST_FEATURES = 16
Features = Annotated[dict[Word, Finite], msgspec.Meta(max_length=MOST_FEATURES)]
MOST_WORDS, MOST_CHARACTERS = 48, 20_000
"""Words of a command, and characters of each, by which its needs are known."""
CORES_MARGIN = 0.05
"""Part of a need of cores, and of a core, that asks for no further core: so much is added where few runs are known."""
TRUSTED = ("shape", "program")
"""Levels of needs by which resources are asked for: a user's other jobs say too little about a command."""


def excerpt(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the part of a command by which its needs are known: the rest is neither sent nor evaluated."""
    return tuple(word[:MOST_CHARACTERS] for word in argv[:MOST_WORDS])


def whole_cores(need: float) -> int:
    """Return the cores to request for a need of cores: at least one. A little less than its maximum slows a job a
    little, while one core more would stand idle."""
    return max(1, math.ceil(need * math.exp(-CORES_MARGIN) - CORES_MARGIN))


class Predict(Message, frozen=True, tag="predict"):
    """Request the predicted needs of a command (an excerpt) of the user: answered by Needs. `bundle`: what is shipped
    with it; empty: as much as with the last run like it, or, with `unshipped`, nothing. `array`: it is a member of an
    array; `features`: numbers by name. `within`: request the probability that it runs for at most this many seconds (0:
    do not). `tried`: memory (bytes) that was too little; the next step of memory is requested."""

    id: Number
    argv: tuple[Text, ...]
    bundle: Word = ""
    array: bool = False
    features: Features = {}
    within: Span = 0.0
    tried: Count = 0
    unshipped: bool = False


class Need(msgspec.Struct, frozen=True):
    """One need: `of` memory (bytes), cores, seconds (the median), planned (seconds that nine in ten stay within) or
    gpu_memory (bytes). `confidence` is the share of the last 200 such answers that were enough; below 0: there were too
    few."""

    of: Word
    value: Finite
    tier: Word
    level: Word
    samples: Count
    confidence: Finite
    why: Text


class Needs(Message, frozen=True, tag="needs"):
    """The known needs of a command; an unknown one is missing. `slopes`: by which power of a feature its memory grows.
    `chance`: the probability for Predict's `within`; below 0: not known. `next_memory`: 0: not known. `samples`: the
    number of runs that the grid has learned from, and `waiting` of those still to be learned; `trouble`: why nothing is
    recorded now, if so."""

    id: Number
    shape: Text
    needs: tuple[Need, ...]
    slopes: Features = {}
    chance: Finite = -1.0
    next_memory: Count = 0
    samples: Count = 0
    trouble: Text = ""
    waiting: Count = 0


class RecordUse(Message, frozen=True, tag="record-use"):
    """A run of this command (an excerpt), outside of the grid too, used this: seconds, the most memory (bytes), the
    most cores at once, the most GPU memory. `ended`: done, "out of memory", "time limit" or cut; `held`: memory it
    could use (bytes). It counts for the user's own jobs alone. Answered by Done."""

    id: Number
    argv: tuple[Text, ...]
    features: Features = {}
    seconds: Span = 0.0
    memory: Count = 0
    cores: Finite = 0.0
    gpu_memory: Count = 0
    held: Count = 0
    ended: Word = "done"
