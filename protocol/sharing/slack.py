"""Slack in physical cores. Where the kernel shows one physical core as several cores (hardware threads), they slow each
other down (SMT).

So what is left to a holder, beside the jobs on its slack, is counted in physical cores: a physical core counts as lent
whole if any of its hardware threads is lent.
"""

from collections.abc import Container, Iterable, Mapping

from distributed_grid.protocol.resources import MILLI, Grant

Threads = tuple[tuple[int, ...], ...]
"""The cores of each physical core that has several; empty: none has, or it is not known."""


def physical_cores(cores: Iterable[int], smt: Threads) -> list[tuple[int, ...]]:
    """Group cores by their physical core, in ascending order of the first ones."""
    first: Mapping[int, int] = {core: group[0] for group in smt for core in group}
    found: dict[int, list[int]] = {}
    for core in sorted(cores):
        found.setdefault(first.get(core, core), []).append(core)
    return [tuple(group) for group in found.values()]


def left_to(holder: Grant, users: Iterable[Grant], smt: Threads) -> int:
    """Return how much of its physical cores (milli-cores) is left to a holder beside the grants on its slack."""
    lent = dict[int, int]()
    for user in users:
        each, more = divmod(user.slack_milli, max(1, len(user.slack)))
        lent |= {core: each + (place < more) for place, core in enumerate(user.slack)}
    groups = physical_cores(holder.cores, smt)
    left = holder.resources.cpu - len(holder.cores) * MILLI
    for group in groups:
        taken = sum(lent.get(core, 0) for core in group)
        left += MILLI - (MILLI if taken and len(group) > 1 else taken)
    return left


def lendable(
    holder: Grant, users: Iterable[Grant], smt: Threads, unused: int, refused: Container[int] = ()
) -> tuple[int, tuple[int, ...]]:
    """Return how much of a holder's cores (milli-cores) may be lent beside these grants if `unused` (milli-cores) of
    its physical cores is unused; and the cores, in the order in which they are lent: first those on physical cores that
    are lent in part, then whole physical cores, so that as few as possible are shared; none on a physical core with a
    `refused` one."""
    lent = {core for user in users for core in user.slack}
    cores, milli, alone = list[int](), 0, True
    for group in sorted(physical_cores(holder.cores, smt), key=lambda one: (lent.isdisjoint(one), -len(one), -one[0])):
        if any(core in refused for core in group):
            continue
        free = [core for core in reversed(group) if core not in lent]
        alone = alone and len(group) == 1
        # What is lent is spread evenly: a part of a core can be lent where all others are physical cores, too.
        each = min(unused, MILLI) if alone else MILLI
        takes = each if len(free) == len(group) else 0
        if free and each > 0 and takes <= unused:
            unused -= takes
            cores += free
            milli += each * len(free)
    return milli, tuple(cores)
