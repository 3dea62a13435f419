"""All nodes that can be given work, by their room, and views of some of them: those in one zone, say, or with a
certain GPU; and where the jobs are that others want to be near to or apart from.
"""

import itertools
from collections.abc import Container, Iterable
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

from distributed_grid.coordinator.core.model import Job, Node
from distributed_grid.coordinator.core.placement.constraints import Known, Trait, has_trait, known, trait_of
from distributed_grid.coordinator.core.placement.index import NO_GPUS, Accept, Index, Place
from distributed_grid.coordinator.core.queue.queue import Key, key_of
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.placement import Constraints, Local, Sign, same_model
from distributed_grid.protocol.resources import Resources

K = TypeVar("K")
V = TypeVar("V")


class Bounds(NamedTuple):
    """Where a request may go by what it wants to be near to or apart from: on one of `near` (None: anywhere), on none
    of `apart`. `missing` is what it waits for: it lives and has no place yet."""

    near: frozenset[str] | None = None
    apart: frozenset[str] = frozenset()
    missing: str = ""


ANYWHERE = Bounds()


class Affinity:
    """What lives under each name, and on which nodes."""

    def __init__(self, jobs: dict[str, Job]) -> None:
        self._jobs = jobs
        self._live: dict[str, dict[str, None]] = {}
        """The jobs of each group and of each `user/name`, the newest last."""
        self._nodes: dict[str, dict[str, int]] = {}
        """How many of them hold something on which node."""
        self.wanted: dict[str, dict[Key, int]] = {}
        """How many jobs wait, by their line, that want to be near to this or apart from it."""
        self._waiting: dict[str, tuple[Key, tuple[str, ...]]] = {}
        """Their lines and what they want, by their ids."""

    def bounds(self, asked: Constraints | None) -> Bounds:
        """Where such a request may go now."""
        if asked is None or not (asked.near or asked.apart):
            return ANYWHERE
        near: frozenset[str] | None = None
        for word in asked.near:
            if nodes := self.nodes(word):
                near = nodes if near is None else near & nodes
            elif self.lives(word):
                return Bounds(missing=word)
        return Bounds(near, frozenset(node for word in asked.apart for node in self.nodes(word)))

    def nodes(self, word: str) -> frozenset[str]:
        """The nodes where what is called so holds something."""
        job = self._jobs.get(word)
        if job is not None:
            return frozenset((job.node,)) if job.node else frozenset()
        return frozenset(self._nodes.get(word, ()))

    def lives(self, word: str) -> bool:
        """Whether something is called so that waits or holds a place."""
        return word in self._jobs or word in self._live

    def newest(self, word: str) -> str:
        """The job that came last of those called so; empty: there is none."""
        return next(reversed(self._live.get(word, {})), "")

    def names(self, user: str) -> list[str]:
        """The names of a user's jobs that live."""
        return [word.partition("/")[2] for word in self._live if word.startswith(f"{user}/")]

    # --- kept up to date ----------------------------------------------------------------------------------------------

    def enter(self, job: Job) -> None:
        """This job lives from now on."""
        for word in _shared(job):
            self._live.setdefault(word, {})[job.id] = None

    def leave(self, job: Job) -> None:
        """It does not live any more."""
        for word in _shared(job):
            _take_off(self._live, word, job.id)

    def place(self, job: Job, node: str) -> None:
        """It holds something there from now on."""
        for word in _shared(job):
            nodes = self._nodes.setdefault(word, {})
            nodes[node] = nodes.get(node, 0) + 1

    def displace(self, job: Job, node: str) -> None:
        """It holds nothing there any more."""
        for word in _shared(job):
            nodes = self._nodes[word]
            nodes[node] -= 1
            if not nodes[node]:
                _take_off(self._nodes, word, node)

    def want(self, job: Job) -> None:
        """It waits from now on."""
        asked = job.request.constraints
        if asked is None or not (asked.near or asked.apart):
            return
        key, words = key_of(job), tuple(dict.fromkeys((*asked.near, *asked.apart)))
        self._waiting[job.id] = key, words
        for word in words:
            lines = self.wanted.setdefault(word, {})
            lines[key] = lines.get(key, 0) + 1

    def want_no_more(self, job: Job) -> None:
        """It does not wait any more, if it did."""
        if job.id not in self._waiting:
            return
        key, words = self._waiting.pop(job.id)
        for word in words:
            self.wanted[word][key] -= 1
            if not self.wanted[word][key]:
                _take_off(self.wanted, word, key)

    def waiting_for(self, job: Job) -> list[Key]:
        """The lines of those that want to be near to this job or apart from it."""
        words = (job.id, *_shared(job))
        return list(dict.fromkeys(key for word in words for key in self.wanted.get(word, ())))


def _shared(job: Job) -> tuple[str, ...]:
    """What it is called together with others."""
    if not job.spec.name:
        return (job.group,) if job.group else ()
    named = f"{job.user}/{job.spec.name}"
    return (job.group, named) if job.group else (named,)


def _take_off(lists: dict[str, dict[K, V]], word: str, key: K) -> None:
    del lists[word][key]
    if not lists[word]:
        del lists[word]


CHANGES_KEPT = 4096
"""So many changes are remembered; a view that has missed one is made anew."""
ENTRIES_KEPT = 200_000
"""So many nodes may lie in all views together; the view that was not asked for longest goes first."""
WIDE = 15 / 16
"""A trait that more than this part of the nodes has gets no view: the others are passed over."""
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
    """Some of the nodes, by their room. `seen`: how many changes there had been when it was last brought up to date;
    below zero: it was never made."""

    __slots__ = ("index", "seen")

    def __init__(self) -> None:
        self.index = Index()
        self.seen = -1


class Kind:
    """The nodes that have a trait (None: all of them), whether they can be given work or not, and the views of them.
    Where certain GPUs are asked for, a view knows nodes by those of them that are free."""

    __slots__ = ("members", "trait", "views")

    def __init__(self, trait: Trait | None, members: dict[str, None]) -> None:
        self.trait = trait
        self.members = members
        self.views: dict[Pool, View] = {}


class Catalogue(Index):
    """The nodes that can be given work now, by what is left on them; and parts of them, on demand."""

    def __init__(self, nodes: dict[str, Node], jobs: dict[str, Job]) -> None:
        super().__init__()
        self.homes = Affinity(jobs)
        self._nodes = nodes
        self._everything = Kind(None, {})
        self._kinds: dict[Trait, Kind] = {}
        self._entries = 0
        self._changes: list[str] = []
        self._before = 0
        """How many changes were forgotten."""
        self._known: dict[str, Known] = {}
        """What the lists below go by."""
        self._hosts: dict[str, dict[str, None]] = {}
        self._labels: dict[tuple[str, str], dict[str, None]] = {}
        self._keys: dict[str, dict[str, None]] = {}
        self._models: dict[str, dict[str, None]] = {}
        self._bundles: dict[str, dict[str, None]] = {}
        self._open: dict[str, None] = {}
        """The nodes that run jobs of everyone."""
        self._owned: dict[str, dict[str, None]] = {}
        """The others, by the users whose jobs they run."""

    def lay(self, name: str, place: Place) -> None:
        """This node lies there from now on. One with free GPUs may belong elsewhere in a view also where that is no
        news here: of devices that are shared, only the largest part is known here."""
        if self._where.get(name) != place or place[1] != NO_GPUS:
            super().lay(name, place)
            self.touch(name)

    def drop(self, name: str) -> bool:
        """This node gets no work for now. Whether that is news."""
        news = super().drop(name)
        if news:
            self.touch(name)
        return news

    def touch(self, name: str) -> None:
        """Something about this node has changed that may put it in a view or take it out of one."""
        self._changes.append(name)
        if len(self._changes) > 2 * CHANGES_KEPT:
            del self._changes[:CHANGES_KEPT]
            self._before += CHANGES_KEPT

    # --- what nodes are ---------------------------------------------------------------------------------------------

    def learn(self, node: Node, labels: dict[str, str]) -> None:
        """This node is known, or what is known of it is not what it was."""
        name, old, new = node.facts.name, self._known.get(node.facts.name), known(node.facts, labels)
        for bundle in node.bundles:
            self._bundles.setdefault(bundle, {})[name] = None
        if old == new:
            return
        if old is not None:
            self._list(name, old, there=False)
        self._known[name] = new
        self._list(name, new, there=True)
        for trait, kind in self._kinds.items():
            if has_trait(trait, new):
                kind.members[name] = None
            elif name in kind.members:
                del kind.members[name]
                for view in kind.views.values():
                    view.index.drop(name)
        self.touch(name)

    def forget(self, name: str) -> None:
        """This node is no more."""
        self.drop(name)
        self._list(name, self._known.pop(name), there=False)
        for kind in self._kinds.values():
            if name in kind.members:
                del kind.members[name]
                for view in kind.views.values():
                    view.index.drop(name)
        for bundle in self._nodes[name].bundles:
            _remove(self._bundles, bundle, name)
        self.touch(name)

    def _list(self, name: str, node: Known, there: bool) -> None:
        change = _add if there else _remove
        change(self._hosts, node.host, name)
        for key, value in node.labels.items():
            change(self._labels, (key, value), name)
            change(self._keys, key, name)
        for model in dict.fromkeys(gpu.model for gpu in node.gpus):
            change(self._models, model, name)
        for owner in node.only or ():
            change(self._owned, owner, name)
        if node.only is None and there:
            self._open[name] = None
        else:
            self._open.pop(name, None)

    def labels_of(self, name: str) -> dict[str, str]:
        """The labels of a node."""
        return self._known[name].labels

    def values(self, key: str) -> list[str]:
        """The values that nodes have of a label."""
        return sorted(value for other, value in self._labels if other == key)

    def whose(self, user: str) -> str | None:
        """Whose jobs a node is to run that runs this user's: the user's, or everyone's (empty) where the user owns no
        node. None: all nodes run them, or it is not asked."""
        if not user or len(self._open) == len(self._known):
            return None
        return user if user in self._owned else ""

    def trait(self, request: Request) -> Trait | None:
        """The trait that a request asks for, as far as nodes differ in it."""
        user = self.whose(request.user) if request.user else None
        return None if user is None and request.constraints is None else trait_of(request, user)

    @property
    def keys(self) -> list[str]:
        """The labels there are."""
        return sorted(self._keys)

    def shipped(self, node: Node, bundle: str) -> None:
        """These files were sent to this node."""
        name = node.facts.name
        node.bundles.pop(bundle, None)
        node.bundles[bundle] = None
        _add(self._bundles, bundle, name)
        if len(node.bundles) > BUNDLES_KEPT:
            oldest = next(iter(node.bundles))
            del node.bundles[oldest]
            _remove(self._bundles, oldest, name)

    def near(self, local: Local, hidden: Container[str] = ()) -> list[str]:
        """Nodes that can be given work, on this machine or with these files: NEAR_MOST of each at the most, and none
        that is hidden."""
        found: dict[str, None] = {}
        for names in (self._hosts.get(local.host, ()), self._bundles.get(local.bundle, ()) if local.bundle else ()):
            usable = (name for name in names if name in self and name not in hidden)
            found.update(dict.fromkeys(itertools.islice(usable, NEAR_MOST)))
        return list(found)

    # --- search -----------------------------------------------------------------------------------------------------

    def search(
        self, wanted: Resources, most: int, trait: Trait | None = None, pool: Pool = Pool.ALL,
        accept: Accept | None = None, loosest: bool = False,
    ) -> list[str]:  # fmt: skip
        """As `candidates`, of those nodes only that have the trait and belong to the pool."""
        if trait is None:
            return self._view(self._everything, pool).candidates(wanted, most, accept, loosest)
        kind = self._kind(trait)
        if not trait.gpus and len(kind.members) > WIDE * len(self._known):
            members = kind.members
            both: Accept = members.__contains__
            if accept is not None:
                also = accept
                both = lambda name: name in members and also(name)  # noqa: E731
            return self._view(self._everything, pool).candidates(wanted, most, both, loosest)
        return self._view(kind, pool).candidates(wanted, most, accept, loosest)

    def having(self, trait: Trait) -> dict[str, None]:
        """The nodes that have a trait, whether they can be given work or not."""
        return self._kind(trait).members

    def _kind(self, trait: Trait) -> Kind:
        kind = self._kinds.pop(trait, None)
        if kind is None:
            likely = self._likely(trait)
            kind = Kind(trait, {name: None for name in likely if has_trait(trait, self._known[name])})
            self._entries += len(kind.members)
            while self._entries > ENTRIES_KEPT and self._kinds:
                oldest = next(iter(self._kinds))
                self._entries -= len(self._kinds.pop(oldest).members)
        self._kinds[trait] = kind  # the last of them: it was asked for last
        return kind

    def _likely(self, trait: Trait) -> Iterable[str]:
        """A list with all nodes that have the trait, as short as one can be had without looking at them."""
        lists: list[dict[str, Any]] = [self._known]
        for rule in trait.labels:
            if rule.sign is Sign.IS:
                lists.append(self._labels.get((rule.key, rule.value), {}))
            elif rule.sign is Sign.THERE:
                lists.append(self._keys.get(rule.key, {}))
        if trait.gpus:
            models = [names for model, names in self._models.items() if same_model(trait.gpu_model, model)]
            lists.append({name: None for names in models for name in names})
        shortest = min(lists, key=len)
        if trait.user is not None and len(self._open) + len(own := self._owned.get(trait.user, {})) < len(shortest):
            return itertools.chain(self._open, own)
        return shortest

    def _view(self, kind: Kind, pool: Pool) -> Index:
        if kind is self._everything and pool is Pool.ALL:
            return self
        view = kind.views.get(pool)
        if view is None:
            view = kind.views[pool] = View()
        where = self.laid()
        now = self._before + len(self._changes)
        if view.seen < self._before:
            view.index = Index()
            names = where if kind is self._everything else kind.members
            view.index.fill((name, self._place_in(kind, name)) for name in names if self._belongs(name, kind, pool))
        elif view.seen < now:
            changed, members = set(self._changes[view.seen - self._before :]), kind.members
            for name in changed if kind is self._everything else [name for name in changed if name in members]:
                if self._belongs(name, kind, pool):
                    view.index.lay(name, self._place_in(kind, name))
                else:
                    view.index.drop(name)
        view.seen = now
        return view.index

    def _belongs(self, name: str, kind: Kind, pool: Pool) -> bool:
        if name not in self._where or (kind is not self._everything and name not in kind.members):
            return False
        return pool is Pool.ALL or bool(self._nodes[name].allocations) is (pool is Pool.IN_USE)

    def _place_in(self, kind: Kind, name: str) -> Place:
        place, trait = self._where[name], kind.trait
        if trait is None or not trait.gpus or place[1] == NO_GPUS:
            return place
        room = self._nodes[name].room
        assert room is not None
        return place[0], room.free_gpus(trait.gpu_model, trait.gpu_memory), *place[2:]


class Without:
    """A catalogue with some of its nodes hidden: to look at, it changes nothing."""

    def __init__(self, index: Catalogue, hidden: frozenset[str]) -> None:
        self.homes = index.homes
        self.labels_of = index.labels_of
        self.trait = index.trait
        self._index = index
        self._hidden = hidden

    def __len__(self) -> int:
        return len(self._index) - sum(name in self._index for name in self._hidden)

    def __contains__(self, name: str) -> bool:
        return name not in self._hidden and name in self._index

    def near(self, local: Local) -> list[str]:
        """As of the catalogue."""
        return self._index.near(local, self._hidden)

    def search(
        self, wanted: Resources, most: int, trait: Trait | None = None, pool: Pool = Pool.ALL,
        accept: Accept | None = None, loosest: bool = False,
    ) -> list[str]:  # fmt: skip
        """As of the catalogue."""
        hidden = self._hidden
        shown: Accept = lambda name: name not in hidden and (accept is None or accept(name))  # noqa: E731
        return self._index.search(wanted, most, trait, pool, shown, loosest)


Shown = Catalogue | Without


def _add(lists: dict[K, dict[str, None]], key: K, name: str) -> None:
    lists.setdefault(key, {})[name] = None


def _remove(lists: dict[K, dict[str, None]], key: K, name: str) -> None:
    names = lists.get(key, {})
    names.pop(name, None)
    if not names:
        lists.pop(key, None)
