"""Whether a job loses less by moving to another node before its owner comes than by staying. Pure.

A job that stays loses, with the probability that it is recalled, the work that it has done and half of the time until
then. A job that moves loses the work that it has done and its start, and half of that time with the probability that it
is recalled on the other node. An owner who returns for some minutes only has jobs frozen, and nothing is lost: the grid
counts how many of the returns end in a recall. So a move pays most just after a better node has become free, while
little was done, and hardly at all just before the owner comes.

After a move a job is protected for the policy's min-hold, doubled with each move, and does not go back as long as there
is another node. A job leaves a node that is unlikely to stay idle until the job ends (or for the policy's horizon if
its end is unknown), for a node that is likely to; the limit is the policy's confidence. So no move is undone by the
next one.
"""

import math
from collections.abc import Mapping

from distributed_grid.coordinator.core.rebalancing.view import MARGIN, Moved, Stay, View, lends_from
from distributed_grid.protocol.sharing.moves import Move, MoveKind
from distributed_grid.protocol.sharing.policies import SharingPolicy
from distributed_grid.protocol.text import format_duration

RESTART = 10.0
"""Seconds until a job that leaves runs again, if it ends at once."""
DIGITS = 24
"""Binary digits of a rate of recalls that count: more than the returns that are ever counted tell apart."""


def leave(view: View, values: SharingPolicy, now: float, moves: list[Move]) -> None:
    """Add the moves of jobs off nodes whose owners are expected, those that gain most first."""
    used = {one.source for one in moves} | {one.target for one in moves}
    left = view.badput_left
    for one in sorted(view.stays, key=lambda one: (loss_by_leaving(one) - loss_by_staying(one), one.job)):
        if len(moves) >= values.moves:
            break
        lost = one.work * one.ran
        if lost <= left and not {one.source, one.target} & used and not obstacle(one, view.moved, values, now):
            moves.append(_move(one, values, now))
            used |= {one.source, one.target}
            left -= lost


def loss_by_staying(one: Stay) -> float:
    """Expected loss of a job that stays (core-seconds)."""
    return one.work * recalled(one.returns, one.recalls) * (one.ran + one.within / 2)


def loss_by_leaving(one: Stay) -> float:
    """Expected loss of a job that moves (core-seconds)."""
    return one.work * (one.ran + RESTART + recalled(one.target_returns, one.target_recalls) * one.within / 2)


def recalled(returns: float, recalls: float) -> float:
    """Return the probability that a job is recalled: `returns` is the probability that the owner returns at least once,
    `recalls` the part of the returns that last long enough, independently of each other."""
    return 1.0 - _power(max(0.0, 1.0 - returns), recalls)


def _power(base: float, exponent: float) -> float:
    """`base` to the power of an `exponent` of 0 to 1, by its binary digits and roots: these give the same result on
    every machine, as a replay needs; that of pow() depends on the library."""
    if exponent >= 1.0:
        return base
    value = 1.0
    for _ in range(DIGITS):
        base, exponent = math.sqrt(base), exponent * 2.0
        if exponent >= 1.0:
            value, exponent = value * base, exponent - 1.0
    return value


def obstacle(one: Stay, moved: Mapping[str, Moved], values: SharingPolicy, now: float) -> str:
    """Why a job must stay; empty: it may move."""
    if not one.target:
        return "no other node has room and is known to stay idle"
    if 1.0 - one.soon >= values.confidence:
        return f"{one.source} stays idle with {1.0 - one.soon:.0%} for as long as is looked ahead"
    if 1.0 - one.target_soon < values.confidence:
        sure = 1.0 - one.target_soon
        return f"{one.target}, where it would go, stays idle with {sure:.0%} only ({values.confidence:.0%} wanted)"
    if now < one.protected:
        return f"it is protected for {format_duration(round(one.protected - now))} more (min_hold)"
    last = moved.get(one.source)
    if last is not None and now < last.at + values.cooldown:
        return f"{one.source} made a move {now - last.at:.0f} s ago (cooldown)"
    last = moved.get(one.target)
    if last is not None and last.kind is MoveKind.LEAVE and now < lends_from(last, values):
        return f"a job left {one.target} {now - last.at:.0f} s ago (min_hold)"
    if loss_by_staying(one) <= MARGIN * loss_by_leaving(one):
        return (
            f"it would lose {loss_by_leaving(one):.0f} core-seconds by that, and {loss_by_staying(one):.0f} by staying"
        )
    return ""


def _move(one: Stay, values: SharingPolicy, now: float) -> Move:
    soon = format_duration(round(one.looked))
    recalls = f", of whose returns {one.recalls:.0%} end jobs there," if one.recalls < 1.0 else ""
    return Move(
        kind=MoveKind.LEAVE,
        source=one.source,
        target=one.target,
        resources=one.resources,
        job=one.job,
        reason=f"the owner of {one.source}{recalls} may be back within {soon} ({one.soon:.0%}; {one.returns:.0%} "
        f"within {format_duration(round(one.within))}), that of {one.target} less likely ({one.target_soon:.0%}; "
        f"{one.target_returns:.0%}); {one.job} has run for {format_duration(round(one.ran))} and may be run again",
        undone_by=f"nothing before {values.min_hold:g} s from now; it goes back to {one.source} only if there is no "
        "other node",
        gain=round(loss_by_staying(one), 3),
        cost=round(loss_by_leaving(one), 3),
        at=now,
    )
