"""All nodes that can be given work, by their room, and views of some of them by theirs: those that are in use, say.

A view is made when it is first asked for, of the nodes that belong to it, and brought up to date when it is asked for
again, by what has changed since: so it costs those who ask, and nobody else.
"""

import itertools
from collections.abc import Mapping
from enum import Enum, auto

from distributed_grid.coordinator.core.index import Accept, Index
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.room import Room
from distributed_grid.protocol.placing import Local

CHANGES_KEPT = 4096
"""So many changes are remembered; a view that has missed one is made anew."""
ENTRIES_KEPT = 200_000
"""So many nodes may lie in all views together; the view that was not asked for longest goes first."""

BUNDLES_KEPT = 64
"""Of so many shipments it is remembered that a node has them."""
NEAR_MOST = 16
"""So many nodes with the same files, or on one machine, are compared."""


class Pool(Enum):
    """Nodes told apart by whether jobs of the grid hold anything there."""

    ALL = auto()
    IN_USE = auto()
    FREE = auto()


class View:
    """Some of the nodes, by their room. `seen`: how many changes there had been when it was last brought up to date."""

    __slots__ = ("index", "seen")

    def __init__(self, seen: int) -> None:
        self.index = Index()
        self.seen = seen


class Catalogue(Index):
    """The nodes that can be given work now, by what is left on them; and parts of them, on demand."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        super().__init__()
        self._nodes = nodes
        self._views: dict[Pool, View] = {}
        self._bundles: dict[str, dict[str, None]] = {}
        self._hosts: dict[str, dict[str, None]] = {}
        self._changes: list[str] = []
        self._before = 0
        """How many changes were forgotten."""
        self._host_of: dict[str, str] = {}

    def put(self, name: str, priority: float, room: Room) -> bool:
        """This node has this room from now on. Whether that is news."""
        news = super().put(name, priority, room)
        if news and self._views:
            self.touch(name)
        return news

    def drop(self, name: str) -> bool:
        """This node gets no work for now. Whether that is news."""
        news = super().drop(name)
        if news and self._views:
            self.touch(name)
        return news

    def touch(self, name: str) -> None:
        """Something about this node has changed that may put it in a view or take it out of one."""
        self._changes.append(name)
        if len(self._changes) > 2 * CHANGES_KEPT:
            del self._changes[:CHANGES_KEPT]
            self._before += CHANGES_KEPT

    # --- what lies near ---------------------------------------------------------------------------------------------

    def learn(self, node: Node) -> None:
        """This node is known, or what is known of it is not what it was."""
        name = node.facts.name
        old = self._host_of.get(name)
        if old != node.facts.hostname:
            if old is not None:
                _without(self._hosts, old, name)
            self._host_of[name] = node.facts.hostname
            self._hosts.setdefault(node.facts.hostname, {})[name] = None
        for bundle in node.bundles:
            self._bundles.setdefault(bundle, {})[name] = None

    def shipped(self, node: Node, bundle: str) -> None:
        """These files were sent to this node."""
        name = node.facts.name
        if node.bundles.pop(bundle, 0) == 0:
            self._bundles.setdefault(bundle, {})[name] = None
        node.bundles[bundle] = None
        if len(node.bundles) > BUNDLES_KEPT:
            oldest = next(iter(node.bundles))
            del node.bundles[oldest]
            _without(self._bundles, oldest, name)

    def near(self, local: Local) -> list[str]:
        """Nodes that can be given work, on this machine or with these files: NEAR_MOST of each at the most."""
        found: dict[str, None] = {}
        for names in (self._hosts.get(local.host, ()), self._bundles.get(local.bundle, ()) if local.bundle else ()):
            usable = (name for name in names if name in self)
            found.update(dict.fromkeys(itertools.islice(usable, NEAR_MOST)))
        return list(found)

    # --- views ------------------------------------------------------------------------------------------------------

    def view(self, pool: Pool) -> Index:
        """The nodes of this pool that can be given work now."""
        if pool is Pool.ALL:
            return self
        belongs: Accept = self._in_use if pool is Pool.IN_USE else self._free
        now = self._before + len(self._changes)
        view = self._views.get(pool)
        if view is None or view.seen < self._before:
            view = self._views[pool] = View(now)
            for name in self._where:
                if belongs(name):
                    view.index.copy(name, self)
        elif view.seen < now:
            for name in set(self._changes[view.seen - self._before :]):
                if belongs(name):
                    view.index.copy(name, self)
                else:
                    view.index.drop(name)
            view.seen = now
        return view.index

    def _in_use(self, name: str) -> bool:
        return bool(self._nodes[name].allocations)

    def _free(self, name: str) -> bool:
        return not self._nodes[name].allocations


def _without(lists: dict[str, dict[str, None]], key: str, name: str) -> None:
    """Take a name off the list under this key, and the list where it was the last."""
    names = lists[key]
    del names[name]
    if not names:
        del lists[key]
