"""Moves: what rebalancing proposes or does, with its reasons; and what it does not do, and why."""

from enum import StrEnum

import msgspec

from distributed_grid.protocol.resources import Count, Finite, Resources, Span, Text, Word
from distributed_grid.protocol.sharing.pressure import Pressure


class MoveKind(StrEnum):
    """The kind of a move."""

    LEND = "lend"
    GIVE_BACK = "give-back"
    LEAVE = "leave"


class Move(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A boost that is lent from `source` to the Ray cluster of `target`, or given back; or a `job` that leaves
    `source`, whose owner is expected, for `target`, where it may go. `asks`: what one of the `tasks` asks that a boost
    makes room for. `gain` and `cost` in core-seconds, of a boost over the policy's min-hold; `boost`: its id (of a
    proposal to lend: empty). `at`: grid time."""

    kind: MoveKind
    source: Word
    target: Word
    resources: Resources
    boost: Word = ""
    asks: Text = ""
    tasks: Count = 0
    reason: Text = ""
    undone_by: Text = ""
    gain: Finite = 0.0
    cost: Finite = 0.0
    at: Finite = 0.0
    job: Word = ""


class Unserved(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Demand in Ray that is not served in this pass: `count` tasks, or bundles of a placement group (`group`), what
    each requests, for how many seconds they have waited (as far as passes have seen), and why."""

    asks: Text
    count: Count
    group: bool = False
    waited: Span = 0.0
    why: Text = ""


class Hint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An unused boost that this user requested: the grid does not take it back, and only says so."""

    boost: Word
    user: Word
    text: Text


class Barred(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A lender that may not make this move before then (grid time), and why."""

    source: Word
    target: Word
    kind: MoveKind
    until: Finite
    why: Text


class Pass(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One pass of rebalancing, at that grid time. `applied`: the moves were made; else they are proposals. `trouble`:
    why nothing could be decided, if so."""

    at: Finite
    target: Word = ""
    applied: bool = False
    moves: tuple[Move, ...] = ()
    unserved: tuple[Unserved, ...] = ()
    hints: tuple[Hint, ...] = ()
    trouble: Text = ""


class LenderView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A node as rebalancing sees it: the pressure of its owner and of all use (None: not measured), what it could lend
    now by itself, and why nothing."""

    node: Word
    owner: Pressure | None = None
    all: Pressure | None = None
    excess: Resources = Resources()
    why: Text = ""
