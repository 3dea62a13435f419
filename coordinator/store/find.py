"""Which jobs a person may mean by a word: the lookups in the store behind every command that names a job."""

from collections.abc import Callable
from typing import Any

from distributed_grid.protocol.groups import member_id, split_member

SEVERAL = 6
"""So many that fit are enough to say that several do."""
Read = Callable[..., Any]


def find(read: Read, ref: str, user: str, only: str = "", by_name: bool = True) -> list[str]:
    """The ids of the jobs or groups that may be meant: one, none, or (several fit the prefix) up to 6. `only`: this
    user's, as if there were no others; not `by_name`: names are not known.

    An id, `last` (this user's newest), a name (the newest so called, this user's before others'), or the beginning of
    an id, with or without `j-`. A name or beginning that fits the members of a group means the group, and with `_7`
    behind it its member 7.
    """
    if ref == "last":
        rows = read("SELECT id FROM jobs WHERE user = ? ORDER BY submitted DESC, rowid DESC LIMIT 1", (user,))
        return [_whole(read, row[0]) for row in rows]
    for table in ("jobs", "groups"):
        if exact := read(f"SELECT id FROM {table} WHERE id = ? AND ? IN ('', user)", (ref, only)).fetchone():  # noqa: S608
            return [exact[0]]
    named = (
        "SELECT id FROM jobs WHERE name = ? AND name <> '' AND ? IN ('', user) "
        "ORDER BY user = ? DESC, submitted DESC LIMIT 1"
    )
    if by_name and (newest := read(named, (ref, only, user)).fetchone()):
        return [_whole(read, newest[0])]
    if (member := split_member(ref)) is not None:
        return _members(read, find(read, member[0], user, only, by_name), member[1])
    prefix = ref.lower() if ref.lower().startswith("j-") else f"j-{ref.lower()}"
    return _beginning_with(read, prefix, only) if len(prefix) >= 3 else []


def _whole(read: Read, job: str) -> str:
    """The group of a member; any other job itself."""
    if (member := split_member(job)) is not None and _is_group(read, member[0]):
        return member[0]
    return job


def _is_group(read: Read, name: str) -> bool:
    return read("SELECT 1 FROM groups WHERE id = ?", (name,)).fetchone() is not None


def _members(read: Read, groups: list[str], index: int) -> list[str]:
    names = [member_id(group, index) for group in groups]
    return [name for name in names if read("SELECT 1 FROM jobs WHERE id = ?", (name,)).fetchone()]


def _beginning_with(read: Read, prefix: str, only: str) -> list[str]:
    """A group's members are one, and are stepped over at once however many they are."""
    found: list[str] = []
    at = prefix
    while len(found) < SEVERAL:
        among = "SELECT id FROM jobs WHERE id > ? AND id < ? AND ? IN ('', user) ORDER BY id LIMIT 1"
        row = read(among, (at, prefix + "~", only)).fetchone()
        if row is None:
            break
        found.append(_whole(read, row[0]))
        at = found[-1] if found[-1] == row[0] else found[-1] + "_~"
    return found
