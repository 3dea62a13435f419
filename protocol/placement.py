"""Where a job may and should run, as requested: a strategy, required properties of a node, and the level of isolation
(walls) between jobs."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.resources import GIB, MOST_MEMORY, Count, format_bytes, parse_memory
from distributed_grid.protocol.text import suggestion

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
    """The users whose jobs a node runs if its walls are weaker than `namespace`: its owners, or all."""

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
    """Return why a node with these facts may not run a job of this user, who requests this level at least; empty: it
    may. This is the view of the node's own agent, which knows its level."""
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
        hint = f"{suggestion(word, [*Walls])}there are, the strongest first: {', '.join(Walls)}"
        raise BadValue(f"--walls cannot be {text!r}", hint=hint) from None


def is_wall_uid(uid: int, within: tuple[int, int] = UID_RANGE) -> bool:
    """Whether a user id is one that walls give to jobs."""
    return within[0] <= uid <= within[1]


NODES_MOST = 1000
"""Nodes that one request may name, of each kind."""
LABELS_MOST = 32
JOBS_MOST = 32
WORD_CHARS = 150
"""What is longer is no node's, label's or model's name."""


class Strategy(StrEnum):
    """How nodes are compared that could all take a job."""

    LOCAL_FIRST = "local-first"
    BEST_FIT = "best-fit"
    LOAD_BALANCED = "load-balanced"
    PACK = "pack"
    SPREAD = "spread"


class Local(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is local to a request under local-first: the host name of the machine it comes from, and the files that are
    shipped with it. Set by the coordinator, not by the client."""

    host: str = ""
    bundle: str = ""


class Sign(StrEnum):
    """The operator of a label rule."""

    IS = "="
    IS_NOT = "!="
    THERE = ""


class LabelRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rule for a node's label: a value, any but this value (also no such label), or that it exists."""

    key: str
    sign: Sign = Sign.THERE
    value: str = ""

    def met(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels are so."""
        if self.sign is Sign.THERE:
            return self.key in labels
        return (labels.get(self.key) == self.value) is (self.sign is Sign.IS)

    def __str__(self) -> str:
        return f"{self.key}{self.sign.value}{self.value}"


class Constraints(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, cache_hash=True):
    """Restrictions on the node of a request. `only`: one of these; `exclude`: none of these; each of the `labels` rules
    is met.

    The GPUs of the grant are of this `gpu_model` (see `same_model`), and each has `gpu_memory` bytes free that are not
    granted to others: on a shared device the requested amounts add up.

    `near` are jobs or groups by their ids: where one of each holds a place, or anywhere when it is over. `apart` are
    such ids, or names as `user/name`: on no node where a job of that name holds a place.

    `walls`: jobs run there behind this level or a stronger one.
    """

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    labels: tuple[LabelRule, ...] = ()
    gpu_model: str = ""
    gpu_memory: Count = 0
    near: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    walls: Walls = Walls.NONE


NO_CONSTRAINTS = Constraints()


@lru_cache(4096)
def same_model(pattern: str, model: str) -> bool:
    """Whether a GPU is of the model that is asked for: its whole name where the pattern has one of `*?[`, else a part
    of it; small and capital letters are the same. `A|B`: of one of several models. Empty: any model."""
    model = model.lower()
    for one in pattern.lower().split("|"):
        whole = any(sign in one for sign in "*?[")
        if (one or not pattern) and (fnmatchcase(model, one) if whole else one in model):
            return True
    return False


def called(word: str) -> str:
    """Return a member of `near` or `apart` as text for people."""
    return word.partition("/")[2] or word


def parse_strategy(text: str) -> Strategy:
    """A strategy by its name. Raises BadValue."""
    word = str(text).strip().lower().replace("_", "-")
    try:
        return Strategy(word)
    except ValueError:
        hint = f"{suggestion(word, [*Strategy])}there are {', '.join(Strategy)}"
        raise BadValue(f"unknown strategy {text!r}", hint=hint) from None


def parse_label(text: str) -> LabelRule:
    """`K=V`, `K!=V` or `K`. Raises BadValue."""
    for sign in (Sign.IS_NOT, Sign.IS):
        key, found, value = text.partition(sign.value)
        if found:
            break
    else:
        sign = Sign.THERE
    if not key.strip() or (found and not value.strip()):
        raise BadValue(f"--label {text!r} says nothing", hint="write K=V, K!=V, or K for a label with any value")
    return LabelRule(key.strip(), sign, value.strip())


def parse_placing(
    *,
    gpu: int,
    strategy: str | None = None,
    only: Iterable[str] = (),
    exclude: Iterable[str] = (),
    labels: Iterable[str] = (),
    gpu_model: str | None = None,
    gpu_memory: float | str | None = None,
    near: Iterable[str] = (),
    apart: Iterable[str] = (),
    walls: str | None = None,
) -> dict[str, Any]:
    """The fields `strategy` and `constraints` of a Request for `gpu` milli-GPUs. `gpu_memory` without a unit is in GB.
    Raises BadValue."""
    constraints = Constraints(
        only=_unique(only),
        exclude=_unique(exclude),
        labels=tuple(dict.fromkeys(map(parse_label, labels))),
        gpu_model=(gpu_model or "").strip(),
        gpu_memory=parse_memory(str(gpu_memory), bare=GIB) if gpu_memory is not None else 0,
        near=_unique(near),
        apart=_unique(apart),
        walls=parse_walls(walls) if walls is not None else Walls.NONE,
    )
    if problem := complaint(constraints, gpu):
        raise problem
    return {
        "strategy": parse_strategy(strategy) if strategy is not None else None,
        "constraints": constraints if constraints != NO_CONSTRAINTS else None,
    }


def _unique(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in words))


def complaint(asked: Constraints, gpu: int) -> BadValue | None:
    """Return what is wrong with constraints of a request for `gpu` milli-GPUs, whatever the grid's nodes are; None:
    nothing."""
    names = [*asked.only, *asked.exclude, *asked.near, *asked.apart]
    words = [*names, asked.gpu_model, *(text for rule in asked.labels for text in (rule.key, rule.value))]
    if not all(names):
        return BadValue("the name of a node or job is empty", hint="name it, or leave that out")
    for word in words:
        if len(word) > WORD_CHARS or not word.isprintable():
            return BadValue(
                f"{word[:40]!r} is no name of a node, label, model or job",
                why=f"those have at most {WORD_CHARS} characters, all of them printable",
                hint="`grid nodes` lists the nodes, and `grid jobs` your jobs",
            )
    if len(asked.only) > NODES_MOST or len(asked.exclude) > NODES_MOST or len(asked.labels) > LABELS_MOST:
        return BadValue(f"at most {NODES_MOST} nodes and {LABELS_MOST} labels can be named")
    if len(asked.near) > JOBS_MOST or len(asked.apart) > JOBS_MOST:
        return BadValue(f"at most {JOBS_MOST} jobs can be named")
    if both := set(asked.only) & set(asked.exclude):
        return BadValue(f"{min(both)} is asked for and excluded", hint="keep it in --only or in --exclude")
    if both := set(asked.near) & set(asked.apart):
        return BadValue(f"to be near to {min(both)} and apart from it", hint="keep it in --near or in --apart")
    if any(not rule.key for rule in asked.labels):
        return BadValue("a label without a name is asked for", hint="write K=V, K!=V, or K")
    for first in asked.labels:
        for other in asked.labels:
            if first.key == other.key and first.sign is Sign.IS and not other.met({first.key: first.value}):
                return BadValue(f"no node can have both {first} and {other}", hint="keep one of them")
    if not gpu and (asked.gpu_model or asked.gpu_memory):
        return BadValue(
            f"a GPU {_kind(asked)} is asked for, and no GPU",
            why="a model and memory say which GPUs are meant, not how many",
            hint="ask for --gpus 1, or for a part such as --gpus 0.5",
        )
    if asked.gpu_memory > MOST_MEMORY:
        return BadValue("so much GPU memory cannot be asked for")
    return None


def _kind(asked: Constraints) -> str:
    return f"like {asked.gpu_model}" if asked.gpu_model else f"with {format_bytes(asked.gpu_memory)}"
