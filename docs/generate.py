"""Prints into the documentation what the code alone knows: `make docs` rewrites, `--check` only compares.

Generated parts stand between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from distributed_grid.coordinator import config_text
from distributed_grid.coordinator.core.model import MOVES
from distributed_grid.protocol import messages
from distributed_grid.protocol.jobs import HOLDING

DOCS = Path(__file__).parent


def states() -> str:
    """The law of job states as a table."""
    rows = ["| from | to | holds resources |", "|---|---|---|"]
    for state, targets in MOVES.items():
        to = ", ".join(other.name for other in MOVES if other in targets) or "(nothing)"
        rows.append(f"| {state.name} | {to} | {'yes' if state in HOLDING else 'no'} |")
    return "\n".join(rows)


def wire() -> str:
    """Every message with its first sentence, by who sends it."""
    rows = ["| sent by | message | meaning |", "|---|---|---|"]
    for union, sender in (
        ("FromAgent", "agent"),
        ("ToAgent", "coordinator to agent"),
        ("FromAgentData", "agent, data connection"),
        ("ToAgentData", "coordinator, data connection"),
        ("FromClient", "client"),
        ("ToClient", "coordinator to client"),
    ):
        for kind in getattr(messages, union).__args__:
            rows.append(f"| {sender} | `{kind.__name__}` | {sentence(kind.__doc__)} |")
    return "\n".join(rows)


def sentence(docstring: str) -> str:
    """The first sentence of a docstring on one line."""
    return re.split(r"(?<=[.;:]) ", " ".join(docstring.split()), maxsplit=1)[0].rstrip(";:.") + "."


PARTS: dict[str, Callable[[], str]] = {
    "states": states,
    "wire": wire,
    "settings": config_text.table,
    "aliases": config_text.aliases,
}
MARK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def generate(text: str) -> str:
    """The text with its generated parts renewed."""
    return MARK.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}\n{match[3]}", text)


def main() -> int:
    """Renew all pages, or with --check say which are not up to date (exit 1)."""
    stale = []
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text()
        renewed = generate(text)
        if renewed != text:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(renewed)
    if stale:
        print(("not up to date: " if "--check" in sys.argv else "renewed: ") + ", ".join(stale))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
