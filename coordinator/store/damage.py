"""Removes damaged rows at a start, together with the live rows that depend on them. The rest makes the ledger."""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from distributed_grid.coordinator.core.model import Allocation, Earmarked, Job, Queued
from distributed_grid.coordinator.store.rows import KEYS, STATEMENTS, Damaged, checksum, decode_job, encode_change
from distributed_grid.protocol.jobs import State

_allocation = msgspec.msgpack.Decoder(Allocation).decode


class _Live(NamedTuple):
    """A live job with its number in the tables, and what it holds."""

    n: int
    job: Job
    allocation: Allocation | None


def remove_damaged(db: sqlite3.Connection, rows: Iterable[Damaged]) -> list[str]:
    """Remove these rows in the open transaction, with what depends on them: the job of a change, and intact live rows,
    of which descriptions are returned. Raises sqlite3.Error."""
    before = _names(db)
    for row in rows:
        table = "jobs" if row.table in ("changes", "ended") else row.table
        for name in dict.fromkeys((table, row.table)):
            db.execute(f"DELETE FROM {name} WHERE {KEYS[name]} = ?", (row.key,))  # noqa: S608
    try:
        return [*_remove_dependants(db, before - _names(db))]
    except (ValueError, OverflowError) as error:
        raise sqlite3.DatabaseError(str(error)) from None


def _names(db: sqlite3.Connection) -> set[str]:
    """The ids of live jobs; some may be damaged."""
    found = db.execute("SELECT CAST(id AS BLOB) FROM live CROSS JOIN jobs ON jobs.n = live.n")
    return {name.decode(errors="replace") for (name,) in found}


def _live(db: sqlite3.Connection) -> Iterator[_Live]:
    for n, body, change, state, allocation in db.execute(
        "SELECT live.n, jobs.body, changes.body, state, allocation FROM live CROSS JOIN jobs ON jobs.n = live.n "
        "LEFT JOIN changes ON changes.n = live.n"
    ):
        holds = allocation is not None and state != State.WAITING
        yield _Live(n, decode_job(body, change), _allocation(allocation) if holds else None)


def _remove_dependants(db: sqlite3.Connection, gone: set[str]) -> Iterator[str]:
    """Remove what cannot stay without the jobs that are `gone` and with the nodes and groups that are left."""
    nodes = {name for (name,) in db.execute("SELECT name FROM nodes")}
    groups = {name for (name,) in db.execute("SELECT id FROM groups WHERE ended = 0")}
    live, lacking = [*_live(db)], {0: ""}
    while lacking:
        members = Counter(one.job.group for one in live)
        lacking = {one.n: why for one in live if (why := _reason(one, gone, nodes, groups, members))}
        db.executemany("DELETE FROM jobs WHERE n = ?", [(n,) for n in lacking])
        removed = [one for one in live if one.n in lacking]
        yield from (f"jobs: {one.job.id} is removed, too: {lacking[one.n]}" for one in removed)
        gone |= {one.job.id for one in removed}
        live = [one for one in live if one.n not in lacking]
    for name in sorted(groups - {one.job.group for one in live}):
        db.execute("DELETE FROM groups WHERE id = ?", (name,))
        yield f"groups: {name} is removed, too: none of its jobs is left"
    for one in live:
        phase = one.job.phase
        if isinstance(phase, Earmarked) and any(place.node not in nodes for place in phase.earmark.places):
            _queue(db, one.job)
            yield f"changes: {one.job.id} waits in the queue again: a node of its earmark is not known"


def _reason(one: _Live, gone: set[str], nodes: set[str], groups: set[str], members: Counter[str]) -> str:
    """Why a live job cannot stay; empty: it can."""
    job, allocation = one.job, one.allocation
    if job.group and job.group not in groups:
        return "its group is not known"
    if job.request.gang > members[job.group]:
        return "its gang is not complete"
    if job.state is State.WAITING:
        return ""
    if allocation is None or allocation.node not in nodes:
        return "its node is not known"
    others = {
        allocation.within: "it is in a hold that is not known",
        job.active.predecessor: "it follows a job that is not known",
        allocation.grant.holder: "it uses the cores of a job that is not known",
    }
    return next((why for name, why in others.items() if name.rpartition(".")[0] in gone), "")


def _queue(db: sqlite3.Connection, job: Job) -> None:
    """Put a job in the queue that waits for its earmark."""
    job.phase = Queued()
    of_change, body = (job.id, job.state.value, job.node), encode_change(job)
    db.execute(STATEMENTS["changes", 1], (*of_change, body, None, checksum(body, *of_change), None))
