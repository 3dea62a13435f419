"""Names that somebody mistyped."""

from collections.abc import Collection

from distributed_grid.protocol.errors import BadValue

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
    """The answer to who names a node that is none of these: which there are, and which of them may be meant."""
    from difflib import get_close_matches

    name = name[:CHARS]
    known = ", ".join(list(names)[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    close = get_close_matches(name, names, 1)
    return BadValue(
        what or f"unknown node {name!r}",
        why=f"{among} {known}" if names else "there is none yet",
        hint=f"did you mean {close[0]}?" if close else hint,
    )
