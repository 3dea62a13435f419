"""The patterns of `--get`: which files of a working directory they match.

The node uses them to find files, and the client to check the node's answer. A path is text; bytes in it that are not
UTF-8 are surrogate escapes, as in Python's os module.
"""

import fnmatch
from collections.abc import Sequence
from enum import Enum

from distributed_grid.protocol.errors import BadValue

GLOB_CHARS = 64 << 10
"""The largest number of characters that the patterns of one question may have together."""


GLOBS = 1000
"""The largest number of patterns of one question."""


class Match(Enum):
    """Whether a path is among the files that were asked for."""

    NO = "no"
    HIDDEN = "hidden"
    """It lies in a directory that was asked for, but has a name that begins with a dot, which no pattern names."""
    YES = "yes"


def parse_glob(glob: str) -> list[str]:
    """The parts of a pattern. Raises BadValue for a pattern that does not lead into the working directory."""
    parts = [part for part in glob.split("/") if part not in ("", ".")]
    if glob.startswith("/") or ".." in parts or not parts:
        raise BadValue(f"{glob!r} does not lead into the working directory", hint="give a path relative to it")
    parts = [part for number, part in enumerate(parts) if part != "**" or parts[number - 1 : number] != ["**"]]
    return [*parts, "*"] if glob.endswith("/") else parts  # with a slash at its end it means directories


class Globs:
    """Several patterns. `**` is any number of directories, and a directory that matches stands for all that is in it.
    As in a shell, a wildcard does not match a name that begins with a dot. Raises BadValue."""

    def __init__(self, globs: Sequence[str]) -> None:
        for glob in globs:
            if not isinstance(glob, str):
                raise BadValue(f"{glob!r:.80} is no pattern", hint='give text, such as "*.csv"')
        if sum(map(len, globs)) > GLOB_CHARS:
            raise BadValue("the patterns are too long", why=f"they may have {GLOB_CHARS} characters together")
        if len(globs) > GLOBS:
            raise BadValue(f"{len(globs)} patterns are too many", why=f"{GLOBS} are the most")
        self._patterns = [parse_glob(glob) for glob in globs]

    def match(self, path: str) -> Match:
        """Whether the file at this path is asked for."""
        parts = path.split("/")
        found = Match.NO
        for pattern in self._patterns:
            for depth in _matching_depths(parts, pattern)[0]:
                if not any(part.startswith(".") for part in parts[depth:]):
                    return Match.YES
                found = Match.HIDDEN
        return found

    def may_match_below(self, path: str) -> bool:
        """Whether any file in the directory at this path, or further below, may be asked for."""
        parts = path.split("/")
        return any(any(_matching_depths(parts, pattern)) for pattern in self._patterns)


def _matching_depths(parts: Sequence[str], pattern: Sequence[str]) -> tuple[list[int], set[int]]:
    """Return the numbers of leading parts of the path that match the whole pattern, and the places in the pattern at
    which a longer path may go on. All places where a match is possible are followed at the same time, so that many `**`
    cost little."""
    depths = []
    places = _beyond_stars({0}, pattern)
    for depth, part in enumerate(parts, 1):
        hidden = part.startswith(".")
        after = set()
        for at in places:
            if at == len(pattern):
                continue
            if pattern[at] == "**":
                if not hidden:
                    after.add(at)
            elif (not hidden or pattern[at].startswith(".")) and fnmatch.fnmatchcase(part, pattern[at]):
                after.add(at + 1)
        places = _beyond_stars(after, pattern)
        if len(pattern) in places:
            depths.append(depth)
        if not places:
            break
    return depths, places


def _beyond_stars(places: set[int], pattern: Sequence[str]) -> set[int]:
    """Add the places after each `**`, which may match nothing."""
    for at in list(places):
        while at < len(pattern) and pattern[at] == "**":
            at += 1
            places.add(at)
    return places
