"""Groups that clients watch as wholes: their counts, at most five times a second, however many members change."""

import asyncio
from collections.abc import Callable

from distributed_grid.coordinator.watching import Watcher
from distributed_grid.protocol.groups import GroupView
from distributed_grid.protocol.messages import GroupUpdate

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
