"""Rights of users and groups: the highest priority, quotas, exclusive boosts and reservations. `Rules` says where they
come from. How people write limits is here too, and the messages about rights."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Priority, parse_priority
from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.resources import (
    MILLI,
    MOST_COUNT,
    Count,
    Finite,
    Number,
    Resources,
    Word,
    format_bytes,
    format_milli,
    parse_memory,
)

UNLIMITED = -1
MOST_LIMIT = 1 << 50
"""The highest limit, in thousandths or in jobs; memory may be as much as can be asked for."""
Limit = Annotated[int, msgspec.Meta(ge=UNLIMITED, le=MOST_COUNT)]
"""The most that is allowed; -1: any amount."""
NAME_CHARS = 64


class Rights(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Rights as they were set; None: not set. At once: `cores` and `gpus` in thousandths, `memory` in bytes. In each
    day of UTC: `core_hours` and `gpu_hours`, in thousandths of an hour. `jobs_waiting` counts the members of arrays and
    gangs. `exclusive_boosts`: exclusive boosts may be requested. `reservations`: a node is kept for the first job that
    cannot start yet."""

    highest_priority: Priority | None = None
    cores: Limit | None = None
    memory: Limit | None = None
    gpus: Limit | None = None
    core_hours: Limit | None = None
    gpu_hours: Limit | None = None
    jobs_waiting: Limit | None = None
    exclusive_boosts: bool | None = None
    reservations: bool | None = None

    def over(self, others: "Rights") -> "Rights":
        """Return these rights, filled up from `others` where they are not set."""
        if others == NO_RIGHTS:
            return self
        mine = {name: value for name in NAMES if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(others, **mine)

    def quotas(self) -> "Rights":
        """The limits alone, without those that allow any amount."""
        return Rights(**{name: value for name in LIMITS if (value := getattr(self, name)) not in (None, UNLIMITED)})

    def words(self) -> str:
        """The rights that are set, as options of `grid quota set`; empty: no right is set."""
        return " ".join(option(name, value) for name in NAMES if (value := getattr(self, name)) is not None)


NO_RIGHTS = Rights()
NAMES: tuple[str, ...] = Rights.__struct_fields__
LIMITS = ("cores", "memory", "gpus", "core_hours", "gpu_hours", "jobs_waiting")
HELD = {"cores": "cpu", "memory": "memory", "gpus": "gpu"}
"""The limits of what is held at once, and the kind of resource of each."""
A_DAY = {"core_hours": "cpu", "gpu_hours": "gpu"}
"""The limits of what is used in a day, and the kind of resource of each."""


class Whose(StrEnum):
    """The user or group that rights are given to."""

    USER = "user"
    GROUP = "group"
    DEFAULT = "default"
    """All users but operators."""


class GroupRights(msgspec.Struct, frozen=True, omit_defaults=True):
    """A group: its members, and the rights that it has."""

    members: tuple[str, ...]
    rights: Rights = NO_RIGHTS


class Rules(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The rights of the configuration."""

    default: Rights = NO_RIGHTS
    users: dict[str, Rights] = {}
    groups: dict[str, GroupRights] = {}


def key_of(whose: Whose, name: str) -> str:
    """The name under which granted rights are kept: `user/ann`, `group/lab`, `default/`."""
    return f"{whose}/{name}"


# --- messages ---------------------------------------------------------------------------------------------------------


class GetQuota(Message, frozen=True, tag="get-quota"):
    """Request the rights of a user and their use: answered by Quotas. Without a `user`: the sender's own, and for an
    operator those of all users and groups."""

    id: Number
    user: Word = ""


class Quota(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The rights of a user or group that are in force; None: the limit is not set. `holds` counts what is earmarked
    too. `core_hours` and `gpu_hours` (thousandths of an hour) are what running jobs and those that ended today may use
    until the day turns, as far as a limit of them is set. `waiting` counts jobs. `operator`: of jobs that an operator
    of this name submitted. `members`: of a group."""

    whose: Whose
    name: str
    rights: Rights
    holds: Resources
    core_hours: Count = 0
    gpu_hours: Count = 0
    waiting: Count = 0
    operator: bool = False
    members: tuple[str, ...] = ()


class Quotas(Message, frozen=True, tag="quotas"):
    """The rights and their use. For an operator who requests all, the default comes first; then come users by name, and
    groups. `turns`: the end of the day in which hours are counted (grid time)."""

    id: Number
    quotas: tuple[Quota, ...]
    turns: Finite


class SetRights(Message, frozen=True, tag="set-rights"):
    """Give a user, a group or everybody (`default`) these rights, above the configuration; what is not set stays as it
    is. None: take back all that was given so. Answered by Done once it is on disk."""

    id: Number
    whose: Whose
    name: Word
    rights: Rights | None


# --- limits as people write them --------------------------------------------------------------------------------------

_ANY = ("unlimited", "any", "-1")


def parse_limit(name: str, text: str) -> int:
    """A limit as a person writes it: `8`, `0.5`, `64G` of memory (without a unit GB), or `unlimited`. Raises
    BadValue."""
    text = text.strip()
    if text.lower() in _ANY:
        return UNLIMITED
    if name == "memory" and text not in ("0", "0.0", "0B"):
        return parse_memory(text, bare=1 << 30)
    if name == "memory":  # of which there is none
        text = text.removesuffix("B")
    scale = 1 if name in ("jobs_waiting", "memory") else MILLI
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise BadValue(f"{text!r} is not a limit", hint="give a number from 0 up, or unlimited") from None
    if not number.is_finite() or number < 0:
        raise BadValue(f"{text} is not a limit", hint="give a number from 0 up, or unlimited")
    if number > MOST_LIMIT or (scaled := number * scale) > MOST_LIMIT:
        raise BadValue(f"a limit of {text} is too large", hint="give a smaller one, or unlimited")
    if scaled != int(scaled):
        raise BadValue(f"a limit of {text} is too fine", why=f"limits go in steps of {1 / scale:g}")
    return int(scaled)


def parse_rights(given: Mapping[str, Any]) -> Rights:
    """Rights by their names, as people write them. Raises BadValue."""
    rights: dict[str, Any] = {}
    for name, value in given.items():
        if name not in NAMES:
            raise BadValue(f"there is no right {name!r}", hint=f"there are {', '.join(NAMES)}")
        if name in LIMITS:
            value = parse_limit(name, str(value))
        elif name == "highest_priority":
            value = parse_priority(value.word if isinstance(value, Priority) else str(value))
        elif not isinstance(value, bool):
            raise BadValue(f"{name} cannot be {value!r}", hint="give True or False")
        rights[name] = value
    return Rights(**rights)


def limit_words(name: str, value: int) -> str:
    """A limit for people: `8`, `64G`, `unlimited`."""
    if value == UNLIMITED:
        return "unlimited"
    if name == "memory":
        return format_bytes(value)
    return str(value) if name == "jobs_waiting" else format_milli(value)


def amount_words(name: str, value: int) -> str:
    """An amount with what it is: `8 cpu`, `64G memory`, `2 gpu`, `1.5 core-hours`, `20 waiting jobs`."""
    unit = {"cores": "cpu", "gpus": "gpu", "jobs_waiting": "waiting jobs"}.get(name, name.replace("_", "-"))
    return f"{limit_words(name, value)} {unit}"


def option(name: str, value: Any) -> str:
    """A right as an option of `grid quota set`."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if isinstance(value, Priority):
        return f"--{flag} {value.word}"
    return f"--{flag} {limit_words(name, value)}"


def check_name(whose: Whose, name: str) -> None:
    """Raise BadValue for a name that no user or group can have."""
    if whose is Whose.DEFAULT:
        if name:
            raise BadValue("the default is everybody's and has no name", hint="leave the name out")
    elif not 0 < len(name) <= NAME_CHARS or not name.isprintable():
        raise BadValue(f"{name[:80]!r} is no {whose}'s name", why=f"1 to {NAME_CHARS} printable characters")
