"""Detects a store that has lost commits, by comparing it with what is known outside of it. A store that was rolled back
would run jobs a second time, so nothing is started from it before an operator decides."""

from collections.abc import Iterable, Sequence

import msgspec

MOST = 20
"""Maximum number of findings that are kept."""


class Point(msgspec.Struct, frozen=True):
    """A position of a store: its grid and epoch, the number of its last commit, and the grid time of that."""

    grid: str
    epoch: int
    commits: int
    clock: float


class Marked(msgspec.Struct, frozen=True):
    """The high-water mark beside the store. `point` is None where it cannot be used, for the reason `why`; `same_boot`:
    it was written since this machine was last started, so it is exact. Otherwise it may be behind. `key`: that of the
    store's stamps."""

    point: Point | None = None
    why: str = "missing"
    same_boot: bool = False
    key: bytes = b""


class Traces(msgspec.Struct, frozen=True):
    """Other evidence of a store in the state directory. `found`: descriptions of it; `grid` and `epoch`: from the event
    log (empty and 0: it has none); `accepted`: the last jobs that were accepted according to the audit log, and when
    (seconds since the epoch)."""

    found: tuple[str, ...] = ()
    grid: str = ""
    epoch: int = 0
    accepted: tuple[tuple[str, float], ...] = ()


class Loss(msgspec.Struct, frozen=True):
    """Why nothing is started: the findings, the grid time of the first one, and how many commits are known to be lost
    (0: unknown). It stays in the store until an operator accepts it or restores a backup."""

    id: str
    at: float
    found: tuple[str, ...]
    commits: int = 0


CHOOSE = "choose between `grid coordinator restore BACKUP --force` and `grid coordinator accept-loss`"


def loss_words(found: Sequence[str]) -> str:
    """One-line description of a loss."""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"nothing is started, since the store has lost commits: {found[0]}{more}; {CHOOSE}"


def joined(loss: Loss | None, id_: str, at: float, found: Iterable[str], commits: int = 0) -> Loss | None:
    """The loss with new findings added; None: there are no findings."""
    before = loss.found if loss is not None else ()
    fresh = tuple(one for one in dict.fromkeys(found) if one not in before)
    if not fresh:
        return loss
    first = loss or Loss(id_, at, ())
    return Loss(first.id, first.at, (before + fresh)[:MOST], max(first.commits, commits))


def missing(mark: Marked, traces: Traces) -> list[str]:
    """Findings where there is no store and there was one."""
    found = list(traces.found)
    if mark.point is not None:
        found.insert(0, f"its high-water mark (epoch {mark.point.epoch}, {mark.point.commits} commits)")
    return [f"grid.db is missing or empty, and there was one: {', '.join(found)}"] if found else []


def gone_back(store: Point, mark: Marked, behind_damage: int, at: int, traces: Traces) -> list[str]:
    """Findings that commits of a store are lost. `behind_damage`: number of commits in its write-ahead log behind a
    damaged frame, which begins at byte `at`."""
    found: list[str] = []
    point = mark.point
    if point is not None and point.grid != store.grid:
        return [f"grid.db is the store of grid {store.grid}, and the last one here was of grid {point.grid}"]
    if traces.grid and traces.grid != store.grid:
        return [f"grid.db is the store of grid {store.grid}, and the event log is of grid {traces.grid}"]
    if lost := lost_commits(store, mark):
        found.append(f"{_commits(lost)} missing: the mark outside it is at {point and point.commits}, it is at "
                     f"{store.commits}")  # fmt: skip
    newest = max(point.epoch if point is not None else 0, traces.epoch)
    if newest > store.epoch:
        found.append(f"it is at epoch {store.epoch}, and the coordinator has begun epoch {newest} here")
    # A mark of this boot is exact, and says so itself. After a power cut the last transaction may be there in parts:
    # it was told to nobody. What is behind it was written after a sync of what is lost.
    tolerated = 1 if point is not None else 0
    exact = point is not None and mark.same_boot
    if behind_damage and (found or (not exact and behind_damage > tolerated)):
        found.append(f"grid.db-wal is damaged at byte {at}: {_commits(behind_damage)} behind that and lost")
    return found


def lost_commits(store: Point, mark: Marked) -> int:
    """Return how many commits are missing according to the mark."""
    return max(0, mark.point.commits - store.commits) if mark.point is not None else 0


def _commits(count: int) -> str:
    return f"{count} commits are" if count > 1 else "1 commit is"
