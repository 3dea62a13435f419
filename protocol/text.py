"""Text as people write it: durations (plain seconds, `30m`, `1h30m`, `HH:MM:SS`), suggestions for mistyped names, and
paths of files.

A file name is bytes, and text on the wire is UTF-8: a path that is not UTF-8 is sent as bytes (`raw`), beside a text
that shows it. In the program such a path is text with surrogate escapes, as in Python's os module.
"""

import re
from collections.abc import Collection, Sequence

from distributed_grid.protocol.errors import BadValue

_PARTS = r"^\s*(?:(\d+(?:\.\d+)?)d)?\s*(?:(\d+(?:\.\d+)?)h)?\s*(?:(\d+(?:\.\d+)?)m(?:in)?)?\s*(?:(\d+(?:\.\d+)?)s)?\s*$"
_CLOCK = r"^\s*(\d+):([0-5]?\d)(?::([0-5]?\d))?\s*$"
_DIGITS = re.compile(r"([0-9]{1,18})")
_WEIGHTS = (86400, 3600, 60, 1)
MOST = 10 * 365 * 86400


def parse_duration(text: str, zero: bool = False) -> float:
    """Seconds of `90`, `30m`, `1h30m`, `2d`, `01:30:00`; positive (or `zero`) and below ten years. Raises BadValue."""
    seconds, hint = _seconds(text), "give seconds, or 30m, 1h30m, 2d, HH:MM:SS"
    if seconds is None:
        raise BadValue(f"{text!r} is not a duration", hint=hint)
    if not (0 < seconds <= MOST or (zero and seconds == 0)):
        least = "zero or more" if zero else "greater than zero"
        raise BadValue(f"the duration {text} is out of range", why=f"it must be {least} and below ten years", hint=hint)
    return seconds


def _seconds(text: str) -> float | None:
    try:
        plain = float(text)
    except ValueError:
        plain = None
    if plain is not None:
        return plain if plain == plain else None
    if match := re.match(_CLOCK, text):
        hours, minutes, seconds = match[1], match[2], match[3]
        if seconds is None:
            return int(hours) * 60.0 + int(minutes)
        return int(hours) * 3600.0 + int(minutes) * 60 + int(seconds)
    match = re.match(_PARTS, text)
    if match and any(match.groups()):
        return float(sum(float(part) * weight for part, weight in zip(match.groups(), _WEIGHTS, strict=True) if part))
    return None


def format_duration(seconds: float) -> str:
    """Seconds for people, two units at most: `4.2s`, `12m04s`, `3h05m`, `6d02h`."""
    if not seconds < 1e15:  # also not a number
        return "for ever"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def clock(at: float, now: float | None = None) -> str:
    """A moment for people: `14:05:10 UTC`, and if that is not on the day of `now`, `2026-01-31 14:05:10 UTC`. Both in
    seconds since the epoch. Without `now` there is no date, for what is only minutes ahead."""
    day, second = divmod(int(at), 86_400)
    time = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} UTC"
    return time if now is None or day == int(now) // 86_400 else f"{_date(day)} {time}"


def _date(day: int) -> str:
    """The date of a day since the epoch, by arithmetic: there is no calendar here. Years are counted from March, so
    that the day that only some have is their last."""
    era, of_era = divmod(day + 719_468, 146_097)
    years = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * years + years // 4 - years // 100)
    month = (5 * of_year + 2) // 153
    year, month, of_month = 400 * era + years + month // 10, (month + 2) % 12 + 1, of_year - (153 * month + 2) // 5 + 1
    return f"{year:04}-{month:02}-{of_month:02}"


def counted(count: int, what: str, many: str = "") -> str:
    """`1 node`, `2 nodes`; `many`: the plural, where it is another one."""
    return f"{count} {what if count == 1 else many or what + 's'}"


def listed(words: Sequence[str], most: int, count: int = -1, between: str = ", ") -> str:
    """The first of these words, and how many more there are: `a, b and 3 more`. `count`: of how many they are."""
    more = (len(words) if count < 0 else count) - most
    return between.join(words[:most]) + (f" and {more} more" if more > 0 else "")


def by_number(name: str) -> tuple[list[str | int], str]:
    """Sort key of names with numbers in them: `lab2` before `lab10`."""
    parts = _DIGITS.split(name)
    return [int(part) if at % 2 else part for at, part in enumerate(parts)], name


def suggestion(word: str, names: Collection[str]) -> str:
    """`did you mean cpu? `, to be followed by what there is to choose from; empty where none of the names is near."""
    from difflib import get_close_matches

    close = get_close_matches(word, names, 1)
    return f"did you mean {close[0]}? " if close else ""


NAMED = 10
"""So many of the names that there are, are told."""
CHARS = 100
"""No name is longer, and comparing takes its time."""


def unknown_node(
    name: str,
    names: Collection[str],
    what: str = "",
    among: str = "the nodes of this grid are",
    hint: str = "see `grid nodes`",
) -> BadValue:
    """Return the error for an unknown node name: it lists the known nodes, and suggests similar ones."""
    name = name[:CHARS]
    known = listed(sorted(names, key=by_number), NAMED)
    return BadValue(
        what or f"unknown node {name!r}",
        why=f"{among} {known}" if names else "there is none yet",
        hint=suggestion(name, names).strip() or hint,
    )


PATH_BYTES = 4095
NAME_BYTES = 255


def to_wire(path: str) -> tuple[str, bytes]:
    """The text for messages, and the bytes where the path is not UTF-8 (else none)."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raw = path.encode(errors="surrogateescape")
        return raw.decode(errors="backslashreplace"), raw
    return path, b""


def from_wire(path: str, raw: bytes) -> str:
    """The path that a message names."""
    return raw.decode(errors="surrogateescape") if raw else path


def shown(path: str) -> str:
    """The path for people: bytes that are not UTF-8 are escaped."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def check_relative(path: str) -> None:
    """Hold that a path is relative and plain: no `.`, `..`, empty or overlong parts, no zero byte. Raises BadValue."""
    try:
        size = len(path.encode(errors="surrogateescape"))
    except UnicodeEncodeError:
        raise _bad(path, "it is not text") from None
    if not path or path.startswith("/"):
        raise _bad(path, "it is not relative")
    if "\0" in path:
        raise _bad(path, "it has a zero byte")
    if size > PATH_BYTES:
        raise _bad(path, f"it has {size} bytes, and {PATH_BYTES} are the most")
    for part in path.split("/"):
        if part in ("", ".", ".."):
            raise _bad(path, f"it has a part {part!r}")
        if len(part.encode(errors="surrogateescape")) > NAME_BYTES:
            raise _bad(path, f"a name in it has more than {NAME_BYTES} bytes")


def _bad(path: str, why: str) -> BadValue:
    return BadValue(f"the path {path[:80]!r} cannot be used", why=why)
