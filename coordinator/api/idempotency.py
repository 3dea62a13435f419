"""Idempotency keys: a submission with the key of an earlier one is the same job, so it has to request the same. If it
differs it is refused with the differences; otherwise it would silently never run."""

from collections.abc import Callable, Iterable
from typing import Any

from distributed_grid.coordinator.core.model import Group, Job
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.jobs import Priority, Request, RetryOn
from distributed_grid.protocol.messages import Submission
from distributed_grid.protocol.placement import NO_CONSTRAINTS

TOLD = 3
"""Maximum number of differences listed."""
CHARS = 60
"""Maximum length of a value that is shown."""


def check_keys(
    jobs: Iterable[Submission], named: Callable[[str], str | None], job: Callable[[str], Job | Group | None]
) -> None:
    """Raise BadValue for a key that was used for something else. `named` gives the job of a key, `job` what that is."""
    said: dict[str, Submission] = {}
    for one in jobs:
        first = said.setdefault(one.key, one)
        there = named(one.key)
        before = job(there) if there is not None else None
        if before is not None:
            first = Submission(one.key, before.spec, before.request, _array(before))
        if first is one:
            continue
        found = [*_of_command(first, one), *_of_request(first.request, one.request)]
        if first.array != one.array:
            found.append(f"an array of {_shown(first.array)}, now {_shown(one.array)}")
        if found:
            what = "another command" if first.spec != one.spec else "another request"
            more = f"; and {len(found) - TOLD} more" if len(found) > TOLD else ""
            raise BadValue(
                f"the key {one.key!r} was used for {what}",
                why=f"{there or 'another job of this call'} has it, and one key is one job: "
                + "; ".join(found[:TOLD])
                + more,
                hint="give each job a key of its own",
            )


def _array(before: Job | Group) -> Array | None:
    return before.array if isinstance(before, Group) and before.kind is GroupKind.ARRAY else None


def _of_command(before: Submission, now: Submission) -> list[str]:
    """Return the differences between two commands and their surroundings."""
    if before.spec == now.spec:
        return []
    names = [name for name in before.spec.__struct_fields__ if getattr(before.spec, name) != getattr(now.spec, name)]
    return [_difference(name, getattr(before.spec, name), getattr(now.spec, name)) for name in names]


def _of_request(before: Request, now: Request) -> list[str]:
    """The differences between two requests as the client sent them. In what it stores the coordinator adds the user,
    replaces names of jobs by ids, removes retries after a loss, and raises the memory of a job that ran out of it."""
    parts: dict[str, tuple[Any, Any]] = {}
    for kind in ("cpu", "memory", "gpu"):
        if kind != "memory" or not (before.retry_memory or RetryOn.OOM in before.retry_on + now.retry_on):
            parts[kind] = getattr(before.resources, kind), getattr(now.resources, kind)
    told = ["priority", "nodes", "immediate", "requeue", "gang", "retry_memory", "strategy", "revocable"]
    if before.retries:
        told += ["retries", "retry_on"]
    parts |= {name: (getattr(before, name), getattr(now, name)) for name in told}
    ours, theirs = (one.constraints or NO_CONSTRAINTS for one in (before, now))
    for name in ours.__struct_fields__:
        if name not in ("near", "apart"):
            parts[name] = getattr(ours, name), getattr(theirs, name)
    changed = {name: pair for name, pair in parts.items() if pair[0] != pair[1]}
    if changed.keys() & {"cpu", "memory", "gpu"}:
        rest = [_difference(name, *pair) for name, pair in changed.items() if name not in ("cpu", "memory", "gpu")]
        return [f"it asks {before.resources}, now {now.resources}", *rest]
    return [_difference(name, *pair) for name, pair in changed.items()]


def _difference(name: str, before: Any, now: Any) -> str:
    if name == "env":  # values may be secrets
        names = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        return f"env differs in {_cut(', '.join(names))}"
    return f"{name} {_shown(before)}, now {_shown(now)}"


def _shown(value: Any) -> str:
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, Priority):
        return value.word
    if isinstance(value, Array):
        return _cut(",".join(f"{first}-{last}:{step}" for first, last, step in value.parts))
    if isinstance(value, tuple):
        return _cut(" ".join(map(str, value)))
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= CHARS else f"{text[:CHARS]}…"
