"""Boosts: jobs whose workload is a raylet, which adds the resources borrowed on a node to a Ray cluster."""

import math
import re
from enum import StrEnum

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.resources import GIB, MIB, MILLI, MOST_FINITE, Count, Resources, ResourceType, Span, Word

LABEL, TARGET, SOURCE = "grid-boost", "grid-target", "grid-source"
"""The labels of a leased raylet: the boost's id, whom it is for, where it is."""
GROUP = "grid-boost-"
"""How the names of placement groups of exclusive boosts begin, in Ray's namespace `grid`."""
JOIN_WITHIN = 60.0
"""Seconds that a raylet may take from its start until Ray shows it, if nothing else is set."""
DURATION = 3600.0
"""Seconds that a boost lasts if nothing else is said (as seed 000 has it)."""
OVERHEAD = 512 * MIB
"""Bytes that a raylet takes for itself: its processes have some 220 MB (Ray 2.60), and there is its object
store."""
OBJECT_STORE = 80 << 20
"""Bytes of its object store; Ray takes no less than 75 MiB."""
_LOGGED = r"^\[[^\]]+ [A-Z] \d+ \d+\] (\(\w+\) )?\S+:\d+: "
_LIGHT = r"^\[[^\]]+ [DIW] \d+ \d+\] "
"""What Ray's C++ puts before a line that it logs, and before one that tells of no error."""
_NOT_IN_A_NAME = r"[^A-Za-z0-9_.-]"
LABEL_CHARS = 63
"""Maximum number of characters of a value of a label in Ray."""
_ID = r"j-[a-z2-7]{12}"


class RayAuth(StrEnum):
    """How Ray's processes authenticate to each other (RAY_AUTH_MODE)."""

    DISABLED = "disabled"
    TOKEN = "token"  # noqa: S105 (a way, not a token)


class Boost(msgspec.Struct, frozen=True, omit_defaults=True):
    """The resources that are lent: `amount` of `kind` (thousandths of a core or GPU, bytes) for the node `target`,
    through the Ray cluster whose head is at `address` (HOST:PORT). `ray` and `python` are that cluster's versions, as
    far as they are known. `exclusive`: a placement group has all of it. `join_within`: seconds from the start of its
    raylet until Ray has to show it; the raylet gives way to other programs from then on, or later. `automatic`: the
    grid lends it by itself, and takes it back."""

    target: Word
    address: Word
    kind: ResourceType
    amount: Count
    auth: RayAuth = RayAuth.DISABLED
    ray: Word = ""
    python: Word = ""
    exclusive: bool = False
    join_within: Span = JOIN_WITHIN
    automatic: bool = False


def amount_words(kind: ResourceType, amount: int) -> str:
    """Format an amount as it is requested: `2 cpu`, `4 GB memory`."""
    return f"{amount / GIB:g} GB memory" if kind is ResourceType.MEMORY else f"{amount / MILLI:g} {kind}"


def title(boost: Boost) -> str:
    """Describe a boost, in place of a job's command: `boost cpu 2 for gpu-master`."""
    amount = f"{boost.amount / GIB:g} GB" if boost.kind is ResourceType.MEMORY else f"{boost.amount / MILLI:g}"
    return f"boost {boost.kind} {amount} for {boost.target}{', exclusive' if boost.exclusive else ''}"


def group_name(boost_id: str) -> str:
    """Return the name of the placement group of an exclusive boost."""
    return GROUP + boost_id


def custom_resource(target: str) -> str:
    """Return the name of the Ray resource by which a task requests what was lent to this node."""
    return "boost_" + re.sub(_NOT_IN_A_NAME, "_", target)


def label_value(node: str) -> str:
    """The name of a node as the value of a label of its raylet. Ray takes letters, digits, `-`, `_` and `.`, none of
    the signs first or last, and LABEL_CHARS at most (Ray's documentation, "Use labels to control scheduling")."""
    return re.sub(_NOT_IN_A_NAME, "_", node)[:LABEL_CHARS].strip("_.-")


def is_boost_id(text: str) -> bool:
    """Whether this is the whole id of a boost, as far as can be told without asking."""
    return re.fullmatch(_ID, text) is not None


def parse_amount(kind: ResourceType, amount: float) -> int:
    """Parse a requested amount: bytes, or thousandths of cores or GPUs rounded up to whole ones, since a raylet has
    whole ones. Raises BadValue."""
    if not 0 < amount <= MOST_FINITE:
        raise BadValue(f"{amount:g} is no amount of {kind}", hint="give a number above 0, such as 2")
    if kind is ResourceType.MEMORY:
        return round(amount * GIB)
    return max(1, math.ceil(round(amount * MILLI) / MILLI)) * MILLI


def rounding(kind: ResourceType, amount: float) -> str:
    """Explain that more is lent than was requested; empty: the amount is exact."""
    lent = parse_amount(kind, amount)
    if kind is ResourceType.MEMORY or lent == round(amount * MILLI):
        return ""
    what = "GPUs" if kind is ResourceType.GPU else "cores"
    return f"a raylet has whole {what}: {amount_words(kind, lent)} for {amount:g}"


def needs(kind: ResourceType, amount: int) -> Resources:
    """Return the resources that a boost takes of its source. A boost of GPUs takes a core for each, one of memory one
    core: Ray's tasks request one by default, and could never run there without. One of memory also takes what its
    raylet needs itself; the others have no limit of memory, as jobs that request none."""
    if kind is ResourceType.CPU:
        return Resources(cpu=amount)
    if kind is ResourceType.GPU:
        return Resources(cpu=amount, gpu=amount)
    return Resources(cpu=MILLI, memory=amount + OVERHEAD)


def last_words(stderr: str, stdout: str = "") -> str:
    """The lines of Ray's output that say why it did not start, or ended. `ray start` repeats the raylet's last lines on
    stdout."""
    lines = [line for text in (stdout, stderr) for one in text.splitlines() if (line := one.strip())]
    weighty = [re.sub(_LOGGED, "", line) for line in lines if not re.match(_LIGHT, line)]
    said = [line for line in weighty if _tells(line)]
    return (said or weighty or lines or [""])[-1][:500]


def _tells(line: str) -> bool:
    return any(word in line for word in ("Error", "error:", "mismatch", "timed out", "Failed", "failed"))
