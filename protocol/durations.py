"""Durations as people write them: plain seconds, `30m`, `1h30m`, `HH:MM:SS`."""

import re

from distributed_grid.protocol.errors import BadValue

_PARTS = re.compile(
    r"^\s*(?:(\d+(?:\.\d+)?)d)?\s*(?:(\d+(?:\.\d+)?)h)?\s*(?:(\d+(?:\.\d+)?)m(?:in)?)?\s*(?:(\d+(?:\.\d+)?)s)?\s*$"
)
_CLOCK = re.compile(r"^\s*(\d+):([0-5]?\d)(?::([0-5]?\d))?\s*$")
_WEIGHTS = (86400, 3600, 60, 1)
MOST = 10 * 365 * 86400


def parse_duration(text: str, zero: bool = False) -> float:
    """Seconds of `90`, `30m`, `1h30m`, `2d`, `01:30:00`; positive (or `zero`) and below ten years. Raises BadValue."""
    seconds = _seconds(text)
    if seconds is None:
        raise BadValue(f"{text!r} is not a duration", hint="give seconds, or 30m, 1h30m, 2d, HH:MM:SS")
    if not (0 < seconds <= MOST or (zero and seconds == 0)):
        least = "zero or more" if zero else "greater than zero"
        raise BadValue(f"the duration {text} is out of range", why=f"it must be {least} and below ten years")
    return seconds


def _seconds(text: str) -> float | None:
    try:
        plain = float(text)
    except ValueError:
        plain = None
    if plain is not None:
        return plain if plain == plain else None
    if match := _CLOCK.match(text):
        hours, minutes, seconds = match[1], match[2], match[3]
        if seconds is None:
            return int(hours) * 60.0 + int(minutes)
        return int(hours) * 3600.0 + int(minutes) * 60 + int(seconds)
    match = _PARTS.match(text)
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
