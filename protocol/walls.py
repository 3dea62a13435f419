"""The walls behind which a node runs its jobs: how well it keeps a job from the agent, from the supervisor and from the
jobs of others. A node tells its level; a job may ask for a level at least."""

from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache

from distributed_grid.protocol.errors import BadValue

UID_RANGE = (1_879_048_192, 1_879_113_727)
"""The first and the last user id of the range, by default. No account may have one of them: a process of such a user is
a job, on whatever machine of the grid it is met."""


class Walls(StrEnum):
    """The levels, the strongest first. `user`: a user id that neither the agent nor another submitter's job has.
    `namespace`: user, mount and pid namespaces of its own. `landlock`: the agent's user id, with the agent's folders
    closed by Landlock. `none`: the agent's user id and no more."""

    USER = "user"
    NAMESPACE = "namespace"
    LANDLOCK = "landlock"
    NONE = "none"

    @property
    def strength(self) -> int:
        """A greater number is a stronger level; `none` is 0."""
        return _STRENGTH[self]

    def meets(self, least: "Walls") -> bool:
        """Whether this level is as strong as `least` or stronger."""
        return _STRENGTH[self] >= _STRENGTH[least]


_STRENGTH = {level: number for number, level in enumerate(reversed(Walls))}

LEAST_SHARED: Walls = Walls.NAMESPACE
"""The weakest level behind which a node runs jobs of everyone; below it, those of its owners."""


class Trust(StrEnum):
    """Whose jobs a node runs where its walls are weaker than `namespace`: those of its owners, or everyone's."""

    OWNER = "owner"
    EVERYONE = "everyone"


@lru_cache(64)
def level_of(told: str) -> Walls:
    """The level that a node tells; `none` for an agent that tells none, or one that is not known here."""
    try:
        return Walls(told)
    except ValueError:
        return Walls.NONE


def admits(walls: str, owners: tuple[str, ...], trusts: str, user: str) -> bool:
    """Whether a node that tells these facts runs jobs of this user."""
    return open_to_all(walls, trusts) or user in owners


def unfit(walls: str, owners: tuple[str, ...], trusts: str, user: str, least: Walls) -> str:
    """Why a node that tells these facts may not run a job of this user, who asks for this level at least; empty: it
    may. As the node's own agent sees it: it knows its level."""
    level = level_of(walls)
    if not level.meets(least):
        return f"its walls are {level}, and the job asks for {least}"
    if not admits(walls, owners, trusts, user):
        return f"its walls are {level}, and it runs jobs of its owners only"
    return ""


def open_to_all(walls: str, trusts: str) -> bool:
    """Whether a node that tells these facts runs jobs of everyone."""
    return level_of(walls).meets(LEAST_SHARED) or trusts == Trust.EVERYONE


def parse_walls(text: str) -> Walls:
    """A level by its name. Raises BadValue, with the level that was meant where one is near."""
    word = str(text).strip().lower()
    try:
        return Walls(word)
    except ValueError:
        near = get_close_matches(word, [*Walls], 1)
        meant = f"did you mean {near[0]}? " if near else ""
        hint = f"{meant}there are, the strongest first: {', '.join(Walls)}"
        raise BadValue(f"--walls cannot be {text!r}", hint=hint) from None


def is_wall_uid(uid: int, within: tuple[int, int] = UID_RANGE) -> bool:
    """Whether a user id is one that walls give to jobs."""
    return within[0] <= uid <= within[1]
