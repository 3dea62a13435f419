"""What clients watch. Jobs, one by one: each hears of every change, as they may see the job, until it has ended.
Groups, as wholes: their counts, at most five times a second, however many members change.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from distributed_grid.coordinator.api.relay import Asker
from distributed_grid.coordinator.core.visibility import Sight
from distributed_grid.protocol.groups import GroupView
from distributed_grid.protocol.jobs import Cause, JobView, State
from distributed_grid.protocol.messages import GroupUpdate, JobUpdate
from distributed_grid.protocol.roles import Reach


@dataclass(slots=True, eq=False)
class Watcher(Asker):
    """A client as those see it who tell of changes: `sight` is how it sees what it watches."""

    sight: Sight = Sight("", Reach.OWN)
    watching: set[str] = field(default_factory=set)


class JobWatches:
    """`views` gives jobs as they stand."""

    def __init__(self, views: Callable[[Iterable[str]], list[JobView]]) -> None:
        self._views = views
        self.watched: dict[str, set[Watcher]] = {}
        """Who watches which job."""
        self.ended: Counter[Cause] = Counter()
        """How many have ended since the start, by cause."""

    def publish(self, view: JobView) -> None:
        """A job changed: those who watch it hear."""
        if view.state is State.ENDED and view.outcome is not None:
            self.ended[view.outcome.cause] += 1
        if watchers := self.watched.get(view.id):
            self._tell(watchers, view)

    def over(self, job: str, cause: Cause) -> None:
        """A job ended that nobody watched then; who began to while the end was being stored hears it from the store."""
        self.ended[cause] += 1
        if watchers := self.watched.get(job):
            (view,) = self._views([job])
            self._tell(watchers, view)

    def _tell(self, watchers: set[Watcher], view: JobView) -> None:
        for one in list(watchers):
            one.connection.send(JobUpdate(one.sight.job(view)))
            if view.state is State.ENDED:
                self.drop(one, view.id)

    def show(self, watcher: Watcher, jobs: Iterable[str]) -> None:
        """Tell of these now, and whenever they change."""
        for view in self._views(jobs):
            if view.state is not State.ENDED:  # also one whose end is just being stored: that is still to be told
                self.add(watcher, view.id)
            watcher.connection.send(JobUpdate(watcher.sight.job(view)))

    def add(self, watcher: Watcher, job: str) -> None:
        """Tell of its changes from now on."""
        if not watcher.gone:
            watcher.watching.add(job)
            self.watched.setdefault(job, set()).add(watcher)

    def drop(self, watcher: Watcher, job: str) -> None:
        """Tell of it no more."""
        watcher.watching.discard(job)
        if watchers := self.watched.get(job):
            watchers.discard(watcher)
            if not watchers:
                del self.watched[job]

    def gone(self, watcher: Watcher) -> None:
        """Its connection is closed."""
        for job in list(watcher.watching):
            self.drop(watcher, job)


EVERY = 0.2
"""Seconds between two looks at what is watched."""


class GroupWatches:
    """`view` gives a group as it stands. A look costs what is watched, not its members, and what has not changed is not
    sent."""

    def __init__(self, view: Callable[[str], GroupView | None]) -> None:
        self._view = view
        self._watchers: dict[str, list[Watcher]] = {}
        self._told: dict[str, GroupView] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, watcher: Watcher, name: str) -> None:
        """Tell of this group now, and whenever it has changed until it has ended."""
        view = self._view(name)
        if view is None:
            return
        watcher.connection.send(GroupUpdate(watcher.sight.group(view)))
        if not view.ended:
            self._watchers.setdefault(name, []).append(watcher)
            self._told.setdefault(name, view)
            if self._timer is None:
                self._look_later()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY, self._look)

    def _look(self) -> None:
        self._timer = None
        for name, watchers in list(self._watchers.items()):
            watchers = self._watchers[name] = [one for one in watchers if not one.gone]
            view = self._view(name) if watchers else None
            if view is not None and view != self._told[name]:
                self._told[name] = view
                for one in watchers:
                    one.connection.send(GroupUpdate(one.sight.group(view)))
            if view is None or view.ended:
                del self._watchers[name], self._told[name]
        if self._watchers:
            self._look_later()
