"""One-time import of `~/.distributed_grid/resource_boosts.json`, where boosts were kept before the coordinator's store.

Those boosts only reserved capacity, so they become history. Those that had not ended are shown with the command that
requests them again. The file is never deleted: it is renamed to `….imported`, or to `….corrupt-<time>` if invalid; if
that fails it is read again at the next start, with the same result.
"""

import base64
import hashlib
import json
import math
import os
import shlex
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distributed_grid.coordinator.core.commands import RecordJob
from distributed_grid.coordinator.core.model import Attempt, Ended, Job
from distributed_grid.coordinator.store.errors import DiskTrouble
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.boosts import DURATION, Boost, needs
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Priority, Request, State, Step, parse_priority
from distributed_grid.protocol.resources import GIB, MILLI, MOST_CPU, MOST_GPU, MOST_MEMORY, ResourceType
from distributed_grid.runtime.accounts import name_of
from distributed_grid.runtime.logs import get_logger

NAME = "resource_boosts.json"
MOST_BYTES = 16 << 20
MOST_BOOSTS = 10_000
NAME_CHARS = 128
NAMED = 10
"""Maximum number of unreadable entries logged one by one."""
_MOST = {ResourceType.CPU: MOST_CPU, ResourceType.GPU: MOST_GPU, ResourceType.MEMORY: MOST_MEMORY}
_HINT = "request again what is still needed: grid boost request"

log = get_logger("boosts")


def places(state_dir: Path) -> tuple[Path, ...]:
    """Possible locations: the home of the coordinator's user, and its state directory, as a service has no access to
    homes."""
    return Path(os.path.expanduser("~"), ".distributed_grid", NAME), state_dir / NAME


class Corrupt(Exception):
    """The file holds no list of boosts; says why."""


@dataclass(frozen=True)
class ResourceBoostPersistence:
    """The file at `path`."""

    path: Path

    def import_into(self, store: Store, now: float) -> None:
        """Import into the store's history, before the store is read. Errors are logged and never prevent a start."""
        try:
            about = os.stat(self.path)
        except OSError:
            return  # missing, or not visible
        if not stat.S_ISREG(about.st_mode):
            self._warn("old boosts cannot be read", "it is no file", "move it away")
            return
        try:
            text = self._read()
        except OSError as error:
            hint = "make it readable to the user of the coordinator, or move it away"
            self._warn("old boosts cannot be read", error.strerror or str(error), hint)
            return
        try:
            entries = _entries(text)
        except Corrupt as corrupt:
            kept = self._set_aside(f"corrupt-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}")
            self._warn("Persistence file corrupted", str(corrupt), _HINT, kept=kept)
            return
        user = name_of(about.st_uid)
        jobs, wrong = [], []
        for name, entry in entries:
            try:
                jobs.append(_job(name, entry, user, now))
            except BadValue as error:
                wrong.append((name, error.what))
        try:
            store.commit(store.snapshot([RecordJob(job, new=True) for job in jobs], now))
        except DiskTrouble as error:
            self._warn("old boosts could not be imported", error.why or error.what, "the next start tries again")
            store.reopen()
            return
        for name, why in wrong[:NAMED]:
            self._warn("an old boost was left out", f"{name[:40]!r}: {why}", _HINT)
        was_active = sum(job.outcome is not None and job.outcome.cause is Cause.NOT_JOINED for job in jobs)
        kept = self._set_aside("imported")
        told = {"imported": len(jobs), "left_out": len(wrong), "were_active": was_active, "kept": kept}
        log.info("old boosts are in `grid boost history`", file=str(self.path), **told)

    def _read(self) -> bytes:
        """The content, at most one byte more than is allowed."""
        # It may be a pipe by now, on which a blocking open waits.
        with open(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(MOST_BYTES + 1)

    def _set_aside(self, word: str) -> str:
        """Rename it to an unused name, which is returned; a failure is logged, and the file stays."""
        new = self.path.with_name(f"{self.path.name}.{word}")
        number = 1
        while os.path.lexists(new):
            number += 1
            new = self.path.with_name(f"{self.path.name}.{word}-{number}")
        try:
            os.rename(self.path, new)
        except OSError as error:
            hint = "move it away, or it is read at each start"
            self._warn("the file of old boosts cannot be renamed", error.strerror or str(error), hint)
            return str(self.path)
        return str(new)

    def _warn(self, what: str, why: str, hint: str, **more: str) -> None:
        log.warning(what, file=str(self.path), why=why, hint=hint, **more)


# --- what is in it ----------------------------------------------------------------------------------------------------


def _entries(text: bytes) -> list[tuple[str, Any]]:
    """The boosts by id: from a list, a mapping, or either under `boosts`. Raises Corrupt."""
    if len(text) > MOST_BYTES:
        raise Corrupt(f"it has more than {MOST_BYTES >> 20} MiB")
    try:
        found = json.loads(text)
    except RecursionError:
        raise Corrupt("it is nested too deeply") from None
    except ValueError as error:
        raise Corrupt(f"it is not JSON: {error}") from None
    if isinstance(found, dict) and isinstance(found.get("boosts"), dict | list):
        found = found["boosts"]
    if isinstance(found, list):
        pairs = [(one.get("boost_id", "") if isinstance(one, dict) else "", one) for one in found]
    elif isinstance(found, dict):
        pairs = list(found.items())
    else:
        raise Corrupt("it holds no boosts")
    if pairs and not any(isinstance(one, dict) and {"target_node", "resource_type"} & set(one) for _, one in pairs):
        raise Corrupt("it holds something else than boosts")
    if len(pairs) > MOST_BOOSTS:
        raise Corrupt(f"it holds {len(pairs)} boosts, and {MOST_BOOSTS} are the most")
    return [(name if isinstance(name, str) else "", one) for name, one in pairs]


def _job(name: str, entry: Any, user: str, now: float) -> Job:
    """The boost as a job of the history; deterministic. Raises BadValue."""
    if not isinstance(entry, dict):
        raise BadValue("it is no boost")
    kind = _kind(entry.get("resource_type"))
    target, source = _name(entry, "target_node"), _name(entry, "source_node", empty=True)
    amount = _number(entry, "amount")
    units = amount * (GIB if kind is ResourceType.MEMORY else MILLI)
    if not 1 <= units <= _MOST[kind]:
        raise BadValue(f"amount: {amount:g} is none")
    began = min(_time(entry, "allocated_at"), now)
    until = max(began, _time(entry, "expires_at")) if entry.get("expires_at") is not None else began + DURATION
    active = entry.get("is_active", True)
    if not isinstance(active, bool):
        raise BadValue("is_active: neither true nor false")
    priority = _priority(entry.get("priority"))
    if active and now < until:
        again = _request_again(target, kind, amount, priority, until - began)
        cause, text, ended = Cause.NOT_JOINED, f"imported; the old way only reserved capacity: {again}", now
    elif active:
        cause, text, ended = Cause.TIME_LIMIT, "imported; it had expired", min(until, now)
    else:
        cause, text, ended = Cause.CANCELLED, "imported; it had ended", min(until, now)
    old = (name or json.dumps(entry, sort_keys=True)).encode(errors="surrogatepass")
    return Job(
        id="j-" + base64.b32encode(hashlib.sha256(user.encode() + b"\0" + old).digest()).decode().lower()[:12],
        key="imported-" + hashlib.sha256(old).hexdigest(),
        user=user,
        spec=JobSpec(
            ("ray", "start", "--block"),
            time_limit=until - began,
            boost=Boost(target=target, address="", kind=kind, amount=round(units)),
        ),
        request=Request(needs(kind, round(units)), priority, immediate=True, requeue=False),
        submitted=began,
        phase=Ended(
            outcome=Outcome(cause, text=text, seconds=ended - began),
            at=ended,
            attempt=Attempt(source, None, began),
        ),
        story=[Step(now, State.ENDED, text)],
        begun=True,
    )


def _request_again(target: str, kind: ResourceType, amount: float, priority: Priority, seconds: float) -> str:
    whole = amount if kind is ResourceType.MEMORY else math.ceil(amount)
    said = ["grid", "boost", "request", target, kind.value, f"{whole:g}", "--priority", priority.word]
    return shlex.join([*said, "--duration", f"{max(1, round(seconds))}"])


def _kind(found: Any) -> ResourceType:
    try:
        return ResourceType(_word(found))
    except ValueError:
        raise BadValue(f"resource_type: {str(found)[:40]!r} is none of {', '.join(ResourceType)}") from None


def _priority(found: Any) -> Priority:
    return Priority.NORMAL if found is None else parse_priority(_word(found)[:40])


def _word(found: Any) -> str:
    """`high` of `high`, `HIGH` and `AllocationPriority.HIGH`."""
    return found.rpartition(".")[2].lower() if isinstance(found, str) else repr(found)


def _name(entry: dict[str, Any], field: str, empty: bool = False) -> str:
    found = entry.get(field) or ""
    if not isinstance(found, str) or not found.isprintable() or len(found) > NAME_CHARS or not (found or empty):
        raise BadValue(f"{field}: {str(found)[:40]!r} is no name of a node")
    return found


def _number(entry: dict[str, Any], field: str) -> float:
    found = entry.get(field)
    try:
        if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found):
            return float(found)
    except OverflowError:
        pass
    raise BadValue(f"{field}: {str(found)[:40]!r} is no number")


def _time(entry: dict[str, Any], field: str) -> float:
    """Seconds since 1970, from a number or an ISO 8601 date and time (without a zone: local time)."""
    found = entry.get(field)
    try:
        seconds = datetime.fromisoformat(found).timestamp() if isinstance(found, str) else _number(entry, field)
        datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise BadValue(f"{field}: {str(found)[:40]!r} is no time") from None
    return max(0.0, seconds)
