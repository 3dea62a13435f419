"""What the operator has ordered for a node, as it travels on the wire and lies on disk."""

import re
from collections.abc import Iterable, Mapping

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.numbers import Count, Finite

REASON_CHARS = 500
"""What of a reason is kept."""
LABELS_MOST = 100
"""Labels that may be ordered for one node."""
_KEY = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$")
_VALUE_CHARS = 63


class Drain(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A node gets no new job: since when (grid time), by whom, why, and until when what runs there may go on
    (`deadline`, grid time; 0: to its end)."""

    since: Finite
    by: str = ""
    reason: str = ""
    deadline: Finite = 0.0


class Aside(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The grid itself gives a node no new job, after `failures` launches in a row failed there: `until` then (grid
    time; 0: its time is over, and it is on trial), for so many `seconds`; and why the last of them failed."""

    until: Finite
    seconds: Finite
    failures: Count
    why: str = ""


class NodeOrders(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All that was ordered for a node, by the operator and (`aside`) by the grid itself. `labels` stand over those that
    its agent tells; None: the node has no such label, whatever its agent tells."""

    drain: Drain | None = None
    labels: dict[str, str | None] = {}
    aside: Aside | None = None

    @property
    def open(self) -> bool:
        """Whether new jobs may start there: it is neither drained nor set aside."""
        return self.drain is None and (self.aside is None or not self.aside.until)

    def over(self, told: Mapping[str, str]) -> dict[str, str]:
        """The labels of the node: those its agent told, as the operator changed them."""
        if not self.labels:
            return dict(told)
        both = {**told, **self.labels}
        return {key: value for key, value in both.items() if value is not None}


NO_ORDERS = NodeOrders()


def parse_labels(words: Iterable[str]) -> dict[str, str | None]:
    """What `K=V` (set) and `K-` (remove) say. Raises BadValue."""
    found: dict[str, str | None] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals and not key.endswith("-"):
            raise BadValue(f"{word!r} is not a label", hint=f"{word}=VALUE sets it, {word}- removes it")
        key = key if equals else key[:-1]
        if key in found:
            raise BadValue(f"the label {key} is given twice", hint="give it once")
        found[key] = value if equals else None
    check_labels(found)
    return found


def check_labels(labels: Mapping[str, str | None]) -> None:
    """Raise BadValue for names and values that labels cannot have."""
    if not labels:
        raise BadValue("no label is given", hint="KEY=VALUE sets one, KEY- removes it")
    if len(labels) > LABELS_MOST:
        raise BadValue(f"{len(labels)} labels at once", hint=f"{LABELS_MOST} are the most")
    for key, value in labels.items():
        if not _KEY.match(key):
            hint = "letters, digits, and . _ / - between them, up to 63"
            raise BadValue(f"a label cannot be called {key[:80]!r}", hint=hint)
        if value is not None and (len(value) > _VALUE_CHARS or not value.isprintable()):
            raise BadValue(
                f"the label {key} cannot have the value {value[:80]!r}", hint="up to 63 printable characters"
            )
