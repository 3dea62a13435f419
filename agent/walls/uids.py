"""User ids for slots: each slot has one of its own, from a range that no machine gives to people. Stdlib only."""

import os
import random
from collections.abc import Callable, Iterable

FIRST, LAST = 1_879_048_192, 1_879_113_727
"""65,536 ids above those of containers, which systemd leaves unused (systemd.io, "Users, Groups, UIDs and GIDs")."""
_last: list[int] = []  # the one that was given out last
_draw = random.SystemRandom().randint


def is_own(uid: int) -> bool:
    """Whether this is the id of a slot."""
    return FIRST <= uid <= LAST


def pick(folders: Iterable[str], living: set[int], draw: Callable[[int, int], int] = _draw) -> int:
    """An id that is none of the `living` (see of_processes), and which owns none of these folders. The first one is
    drawn, then they go up: what an earlier slot left somewhere is nobody's until the range is through. Another agent of
    the machine that takes the same id at the same moment is not seen. Raises OSError where none is left."""
    taken = {_owner(folder) for folder in folders} | living
    uid = _last[0] if _last else draw(FIRST, LAST)
    for _ in range(FIRST, LAST + 1):
        uid = uid + 1 if uid < LAST else FIRST
        if uid not in taken:
            _last[:] = [uid]
            return uid
    raise OSError("no user id of the node's range is free")


def of_processes() -> set[int]:
    """The real user ids of all processes that are in the range."""
    return {uid for pid in os.listdir("/proc") if pid.isdecimal() and is_own(uid := of_process(int(pid)))}


def of_process(pid: int) -> int:
    """The real user id of a process; -1 if it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read()
        return int(text[text.index(b"\nUid:") + 5 :].split(None, 1)[0])
    except (OSError, ValueError):
        return -1


def _owner(folder: str) -> int:
    try:
        return os.lstat(folder).st_uid
    except OSError:
        return -1
