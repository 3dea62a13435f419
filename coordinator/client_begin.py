"""When a job may begin, as people write it."""

import re
from datetime import datetime, timedelta
from typing import Any

from distributed_grid.protocol.durations import parse_duration
from distributed_grid.protocol.errors import BadValue

_OF_DAY = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")


def parse_begin(text: str, now: datetime) -> dict[str, Any]:
    """The field `begin` or `delay` of a Submission: `+30m` from when it is taken, a time of day (the next), or a date
    and time as in ISO 8601. What has no time zone is in that of `now`. Raises BadValue."""
    text = text.strip()
    if text.startswith("+"):
        return {"delay": parse_duration(text[1:])}
    if (match := _OF_DAY.fullmatch(text)) is not None:
        hour, minute, second = (int(part or 0) for part in match.groups())
        at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return {"begin": (at if at > now else at + timedelta(days=1)).timestamp()}
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        hint = "write it as +30m, 22:15 or 2030-01-31T22:15"
        raise BadValue(f"the time {text!r} cannot be read", hint=hint) from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=now.tzinfo)
    return {"begin": max(0.0, at.timestamp())}
