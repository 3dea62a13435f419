"""What a job waits for before it may be placed at all: what becomes of other jobs."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.numbers import Word

MOST_AFTER = 1000
"""Jobs that one job may wait for. An array counts as one."""


class After(StrEnum):
    """What has to have become of the other job: it has started; it has ended with exit code 0; it has ended."""

    STARTED = "after"
    OK = "after-ok"
    ENDED = "after-any"


class Dependency(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job waits for another one, or for all members of an array. `on` is an id, a unique beginning of one, a name or
    `last`; in a submission also the key or name of a job before it in the same submission."""

    on: Word
    kind: After


def parse_after(
    after: Iterable[str] = (), after_ok: Iterable[str] = (), after_any: Iterable[str] = ()
) -> dict[str, Any]:
    """The field `after` of a Submission. Raises BadValue."""
    found = [
        Dependency(on.strip(), kind)
        for kind, names in ((After.STARTED, after), (After.OK, after_ok), (After.ENDED, after_any))
        for on in names
    ]
    if any(not one.on for one in found):
        raise BadValue("a job to wait for has no name", hint="give an id, a name or `last`")
    if len(found) > MOST_AFTER:
        raise BadValue(f"a job cannot wait for {len(found)} others", hint=f"{MOST_AFTER} are the most; use an array")
    return {"after": tuple(dict.fromkeys(found))} if found else {}
