"""Which jobs a person means, and what is known of them: live ones from the ledger, ended ones from the store.

References (an id, the beginning of one, a name, `last`) are resolved from the store: it has live and ended jobs alike.
"""

import difflib
import heapq
import itertools
import math
from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec

from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Job, RecordJob
from distributed_grid.coordinator.core.views import job_view
from distributed_grid.coordinator.driver import Driver
from distributed_grid.coordinator.store import Store
from distributed_grid.protocol.codec import BULK_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import Jobs, ListJobs

LIST_BYTES = BULK_BYTES - (64 << 10)
"""What one answer may hold; the rest is left out and said to be."""
REF_CHARS = 150
"""What is longer is no job's id or name, and is not compared with them."""
REFS = 1000
"""Jobs one request may name."""


class Unanswerable(GridError):
    """A request that is answered by Failed; `code` is its short word."""

    def __init__(self, code: str, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint)
        self.code = code


class Lookup:
    """Finds jobs."""

    def __init__(self, ledger: Ledger, store: Store, driver: Driver) -> None:
        self._ledger = ledger
        self._store = store
        self._driver = driver

    def resolve(self, user: str, refs: tuple[str, ...]) -> list[str]:
        """The ids that the references mean, without doubles. Raises Unanswerable for the first that means none or
        several."""
        if len(refs) > REFS:
            raise Unanswerable("bad-value", f"{len(refs)} jobs in one request", why=f"{REFS} are the most")
        return list(dict.fromkeys(self.resolve_one(user, ref) for ref in refs))

    def resolve_one(self, user: str, ref: str) -> str:
        if ref in self._ledger.jobs:
            return ref
        found = self._store.find(ref, user)
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
            raise Unanswerable(
                "unknown-job", f"{ref[:REF_CHARS]!r} fits several jobs", why=names, hint="give more of the id"
            )
        if ref == "last":
            raise Unanswerable("unknown-job", f"{user} has no job yet", hint="grid run-shared starts one")
        near = difflib.get_close_matches(ref, self._store.newest_names(user), 3) if len(ref) <= REF_CHARS else []
        hint = f"did you mean {' or '.join(near)}?" if near else "`grid jobs --all` lists them"
        raise Unanswerable("unknown-job", f"no job {ref[:REF_CHARS]!r}", hint=hint)

    def job(self, name: str) -> Job | None:
        """A job, living or ended, by its id."""
        return self._ledger.jobs.get(name) or self._store.job(name)

    def views(self, jobs: Iterable[str]) -> list[JobView]:
        """The jobs as they stand, from the ledger or the store."""
        views = []
        for job in jobs:
            if (view := self._ledger.view(job)) is None and (stored := self._store.job(job)) is not None:
                view = job_view(stored, stored.reason)
            if view is not None:
                views.append(view)
        return views

    def newest(self, message: ListJobs) -> Jobs:
        """Those that live and then those that ended, each newest first, as many as are asked for and fit an answer;
        without what makes a list long."""
        most = max(0, min(message.limit, 100_000))
        found = list(itertools.islice(self._living(message), most + 1))
        if len(found) <= most and message.ended and (not message.states or State.ENDED in message.states):
            past = message.past and (message.past[0], message.past[2]) if message.past and message.past[0] else None
            found += self._store.list_ended(most + 1 - len(found), message.user, past)
        views: list[JobView] = []
        size = 0
        for job in found[:most]:
            view = _short(job_view(job, job.reason))
            size += len(msgspec.msgpack.encode(view))
            if size > LIST_BYTES:
                break
            views.append(view)
        return Jobs(message.id, tuple(views), more=len(views) < len(found))

    def _living(self, message: ListJobs) -> Iterator[Job]:
        if message.past and message.past[0]:
            return
        _, submitted, last = message.past or (0.0, math.inf, "")
        ending = sorted(self._ending(), key=attrgetter("submitted"), reverse=True)
        newest = heapq.merge(ending, reversed(list(self._ledger.jobs.values())), key=lambda job: -job.submitted)
        for at, together in itertools.groupby(newest, attrgetter("submitted")):
            if at <= submitted:
                for job in sorted(together, key=attrgetter("id"), reverse=True):
                    fits = (not message.states or job.state in message.states) and message.user in ("", job.user)
                    if fits and (at < submitted or job.id < last):
                        yield job

    def _ending(self) -> list[Job]:
        """Jobs that the ledger is done with and whose end is just being stored, as they were before: what is not on
        disk is not told."""
        ids = {record.job.id for record in self._driver.being_stored() if isinstance(record, RecordJob)}
        stored = (self._store.job(job) for job in ids if job not in self._ledger.jobs)
        return [job for job in stored if job is not None]


def _short(view: JobView) -> JobView:
    """A view for lists: no story, no values of the environment, no output."""
    outcome = view.outcome and msgspec.structs.replace(view.outcome, stdout_tail=b"", stderr_tail=b"")
    spec = msgspec.structs.replace(view.spec, env={})
    return msgspec.structs.replace(view, story=(), outcome=outcome, spec=spec)
