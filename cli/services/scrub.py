"""Takes secrets out of what is shown to somebody else. Only for what is left of a text after what is known to be safe
was chosen: nobody can tell every secret by its looks."""

import json
import re
from typing import Any

HIDDEN = "[hidden]"
_WORDS = "secret|token|passw|credential|apikey|api_key"
_PATTERNS = [
    (re.compile(r"-----BEGIN [^-]+-----.*?(-----END [^-]+-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"grid1(\.[\w-]+)+"), HIDDEN),  # an invitation
    (re.compile(r"(?<=://)[^/@\s]+@"), f"{HIDDEN}@"),  # a name and password in an address
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), rf"\1 {HIDDEN}"),
    (re.compile(rf"(?i)([\w-]*({_WORDS})[\w-]*[\"']?\s*[:=]\s*)\S+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?<![\w/+=-])[\w+=-]{32,}(?![\w/+=-])"), HIDDEN),  # long, and without a break: keys and hashes
]
_SAFE = {
    "timestamp", "level", "allocation", "allocations", "job", "jobs", "node", "grid", "epoch", "incarnation", "cores",
    "memory", "gpus", "lends", "state_dir", "pid", "role", "seconds", "bytes", "count", "size", "running_for", "port",
}  # fmt: skip
"""What log lines say that holds no text of others. What else they say is scrubbed, or left out where it is not text."""


def scrub(text: str) -> str:
    """The text without what looks like a secret."""
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def scrub_all(value: Any) -> Any:
    """The same for all text in lists and maps."""
    match value:
        case str():
            return scrub(value)
        case dict():
            return {key: scrub_all(one) for key, one in value.items()}
        case list() | tuple():
            return [scrub_all(one) for one in value]
    return value


def log_line(line: str) -> str:
    """A line of a service's log without secrets."""
    try:
        told = json.loads(line)
    except ValueError:
        return scrub(line)
    if not isinstance(told, dict):
        return scrub(line)
    return json.dumps({key: value if key in _SAFE else scrub(str(value)) for key, value in told.items()})
