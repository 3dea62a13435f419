"""The index of usable nodes with filtered views on demand, such as those of one zone or with a certain GPU; and the
locations of jobs for affinity and anti-affinity.
"""

import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Container, Iterable, Iterator
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

from distributed_grid.coordinator.core.model import Job, Node
from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.coordinator.core.placement.constraints import Known, Trait, has_trait, known, trait_of
from distributed_grid.coordinator.core.placement.fragmentation import RequestMix
from distributed_grid.coordinator.core.placement.index import NO_GPUS, Accept, Index, IndexKey, Order
from distributed_grid.coordinator.core.queue.queue import Key, key_of
from distributed_grid.coordinator.core.trends.stay import IdleForecast
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.placement import Constraints, Local, Sign, same_model
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.text import by_number

K = TypeVar("K")
V = TypeVar("V")


class Bounds(NamedTuple):
    """The nodes that a request's affinity allows: those of `near` (None: any), without those of `apart`. `missing`: a
    target of its affinity that waits itself and has no node yet."""

    near: frozenset[str] | None = None
    apart: frozenset[str] = frozenset()
    missing: str = ""


ANYWHERE = Bounds()


class Affinity:
    """The live jobs under each name, their nodes, and the waiting jobs with an affinity to them."""

    def __init__(self, jobs: dict[str, Job]) -> None:
        self._jobs = jobs
        self._live: dict[str, dict[str, None]] = {}
        """The jobs of each group and of each `user/name`, the newest last."""
        self._nodes: dict[str, dict[str, int]] = {}
        """Number of their allocations on each node."""
        self.wanted: dict[str, dict[Key, int]] = {}
        """By target of affinity and line: number of waiting jobs."""
        self._waiting: dict[str, tuple[Key, tuple[str, ...]]] = {}
        """By waiting job: its line and its targets."""

    def bounds(self, asked: Constraints | None) -> Bounds:
        """The nodes that these constraints allow now."""
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
        """The nodes with allocations under this name."""
        job = self._jobs.get(word)
        if job is not None:
            return frozenset((job.node,)) if job.node else frozenset()
        return frozenset(self._nodes.get(word, ()))

    def lives(self, word: str) -> bool:
        """Whether a live job or group has this name."""
        return word in self._jobs or word in self._live

    def newest(self, word: str) -> str:
        """Return the newest job of this name; empty: there is none."""
        return next(self.newest_first(word), "")

    def newest_first(self, word: str) -> Iterator[str]:
        """The live jobs of this name."""
        return reversed(self._live.get(word, {}))

    def names(self, user: str) -> list[str]:
        """The names of a user's live jobs."""
        return [word.partition("/")[2] for word in self._live if word.startswith(f"{user}/")]

    # --- kept up to date ----------------------------------------------------------------------------------------------

    def enter(self, job: Job) -> None:
        """Add a live job."""
        for word in _shared(job):
            self._live.setdefault(word, {})[job.id] = None

    def leave(self, job: Job) -> None:
        """Remove an ended job."""
        for word in _shared(job):
            _take_off(self._live, word, job.id)

    def place(self, job: Job, node: str) -> None:
        """Add its allocation on a node."""
        for word in _shared(job):
            nodes = self._nodes.setdefault(word, {})
            nodes[node] = nodes.get(node, 0) + 1

    def displace(self, job: Job, node: str) -> None:
        """Remove its allocation on a node."""
        for word in _shared(job):
            nodes = self._nodes[word]
            nodes[node] -= 1
            if not nodes[node]:
                _take_off(self._nodes, word, node)

    def want(self, job: Job) -> None:
        """Add a waiting job."""
        asked = job.request.constraints
        if asked is None or not (asked.near or asked.apart):
            return
        key, words = key_of(job), tuple(dict.fromkeys((*asked.near, *asked.apart)))
        self._waiting[job.id] = key, words
        for word in words:
            lines = self.wanted.setdefault(word, {})
            lines[key] = lines.get(key, 0) + 1

    def remove_waiting(self, job: Job) -> None:
        """Remove a waiting job; no effect on one that is not there."""
        if job.id not in self._waiting:
            return
        key, words = self._waiting.pop(job.id)
        for word in words:
            self.wanted[word][key] -= 1
            if not self.wanted[word][key]:
                _take_off(self.wanted, word, key)

    def waiting_for(self, job: Job) -> list[Key]:
        """The lines of waiting jobs with an affinity to this job."""
        words = (job.id, *_shared(job))
        return list(dict.fromkeys(key for word in words for key in self.wanted.get(word, ())))


def _shared(job: Job) -> tuple[str, ...]:
    """The names that a job shares with others: its group, and its `user/name`."""
    if not job.spec.name:
        return (job.group,) if job.group else ()
    named = f"{job.user}/{job.spec.name}"
    return (job.group, named) if job.group else (named,)


def _take_off(lists: dict[str, dict[K, V]], word: str, key: K) -> None:
    del lists[word][key]
    if not lists[word]:
        del lists[word]


CHANGES_KEPT = 4096
"""Length of the change log; a view that is further behind is rebuilt."""
ENTRIES_KEPT = 200_000
"""Maximum number of nodes in all views together; the least recently used view is dropped first."""
WIDE = 15 / 16
"""A trait that more than this part of the nodes has gets no view: the others are filtered out."""
BUNDLES_KEPT = 64
"""Maximum number of bundles remembered for a node."""
NEAR_MOST = 16
"""Maximum number of nodes compared with the same files, or on one machine."""


class Pool(Enum):
    """Nodes by whether they have allocations."""

    ALL = auto()
    IN_USE = auto()
    FREE = auto()


class View:
    """An index of some of the nodes. `seen`: the position in the change log up to which it is current; below zero: it
    is empty."""

    __slots__ = ("index", "seen")

    def __init__(self) -> None:
        self.index = Index()
        self.seen = -1


class Kind:
    """All nodes that have a trait (None: all nodes), usable or not, and the views of them. For a trait with GPUs the
    views index nodes by their free GPUs of that kind."""

    __slots__ = ("members", "trait", "views")

    def __init__(self, trait: Trait | None, members: dict[str, None]) -> None:
        self.trait = trait
        self.members = members
        self.views: dict[Pool, View] = {}


class Catalogue(Index):
    """The index of usable nodes, with views of parts of them on demand."""

    def __init__(self, nodes: dict[str, Node], jobs: dict[str, Job]) -> None:
        super().__init__()
        self.affinity = Affinity(jobs)
        self.mix = RequestMix()
        self._nodes = nodes
        self._everything = Kind(None, {})
        self._kinds: dict[Trait, Kind] = {}
        self._entries = 0
        self._changes: list[str] = []
        self._before = 0
        """Number of changes dropped from the log."""
        self.ordered: list[tuple[list[str | int], str]] = []
        """The sort key and name of every node, usable or not, in the order of names (`text.by_number`)."""
        self._known: dict[str, Known] = {}
        """The properties by which the lists below index nodes."""
        self._hosts: dict[str, dict[str, None]] = {}
        self._labels: dict[tuple[str, str], dict[str, None]] = {}
        self._keys: dict[str, dict[str, None]] = {}
        self._models: dict[str, dict[str, None]] = {}
        self._bundles: dict[str, dict[str, None]] = {}
        self.forecasts: dict[str, IdleForecast] = {}
        """How long nodes are expected to stay idle, of those of which that is known."""
        self._open: dict[str, None] = {}
        """Nodes that run everyone's jobs."""
        self._owned: dict[str, dict[str, None]] = {}
        """The other nodes, by the users whose jobs they run."""
        self._declared: dict[str, None] = {}
        """Usable nodes without agent, which no search finds: only a request that names one may have it."""

    def __contains__(self, name: str) -> bool:
        return name in self._index_keys or name in self._declared

    def put(self, name: str, priority: float, capacity: Capacity) -> None:
        """Add or update a node."""
        if self._nodes[name].facts.declared is not None:
            self._declared[name] = None
            return
        super().put(name, priority, capacity)
        self.mix.changed(name)

    def move(self, name: str, key: IndexKey) -> None:
        """Move a node to a key. With free GPUs its key in views may change even if this one does not, which only
        has the largest part of shared GPUs."""
        if self._index_keys.get(name) != key or key[1] != NO_GPUS:
            super().move(name, key)
            self.touch(name)

    def drop(self, name: str) -> bool:
        """Remove a node; returns whether it was there."""
        self._declared.pop(name, None)
        news = super().drop(name)
        self.mix.changed(name)
        if news:
            self.touch(name)
        return news

    def touch(self, name: str) -> None:
        """Add a node to the change log of the views."""
        self._changes.append(name)
        if len(self._changes) > 2 * CHANGES_KEPT:
            del self._changes[:CHANGES_KEPT]
            self._before += CHANGES_KEPT

    # --- properties of nodes ----------------------------------------------------------------------------------------

    def learn(self, node: Node, labels: dict[str, str]) -> None:
        """Add a node, or update its properties."""
        name, old, new = node.facts.name, self._known.get(node.facts.name), known(node.facts, labels)
        for bundle in node.bundles:
            self._bundles.setdefault(bundle, {})[name] = None
        if old == new:
            return
        if old is not None:
            self._list(name, old, there=False)
        else:
            insort(self.ordered, by_number(name))
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

    def expect(self, name: str, forecast: IdleForecast | None) -> None:
        """Set the forecast of how long a node stays idle; None: there is none."""
        if forecast is not None and forecast.used:
            self.forecasts[name] = forecast
        else:
            self.forecasts.pop(name, None)

    def forget(self, name: str) -> None:
        """Remove a node for good."""
        self.drop(name)
        self.forecasts.pop(name, None)
        self._list(name, self._known.pop(name), there=False)
        del self.ordered[bisect_left(self.ordered, by_number(name))]
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

    def behind(self, past: str) -> Iterator[str]:
        """The names of all nodes behind this one (empty: of all), in their order."""
        start = bisect_right(self.ordered, by_number(past)) if past else 0
        return (name for _, name in itertools.islice(self.ordered, start, None))

    def labels_of(self, name: str) -> dict[str, str]:
        """The labels of a node."""
        return self._known[name].labels

    def whose(self, user: str) -> str | None:
        """The `user` of the trait of nodes that run this user's jobs: empty, if the user owns no node. None: all nodes
        run them, or no user is given."""
        if not user or len(self._open) == len(self._known):
            return None
        return user if user in self._owned else ""

    def trait(self, request: Request) -> Trait | None:
        """The trait that a request asks for."""
        user = self.whose(request.user) if request.user else None
        return None if user is None and request.constraints is None else trait_of(request, user)

    def shipped(self, node: Node, bundle: str) -> None:
        """Note that a bundle was sent to a node."""
        name = node.facts.name
        node.bundles.pop(bundle, None)
        node.bundles[bundle] = None
        _add(self._bundles, bundle, name)
        if len(node.bundles) > BUNDLES_KEPT:
            oldest = next(iter(node.bundles))
            del node.bundles[oldest]
            _remove(self._bundles, oldest, name)

    def near(self, local: Local, hidden: Container[str] = ()) -> list[str]:
        """Usable nodes on this machine or with these files, up to NEAR_MOST of each, without hidden ones."""
        found: dict[str, None] = {}
        for names in (self._hosts.get(local.host, ()), self._bundles.get(local.bundle, ()) if local.bundle else ()):
            usable = (name for name in names if name in self and name not in hidden)
            found.update(dict.fromkeys(itertools.islice(usable, NEAR_MOST)))
        return list(found)

    # --- search -----------------------------------------------------------------------------------------------------

    def search(
        self, wanted: Resources, most: int, trait: Trait | None = None, pool: Pool = Pool.ALL,
        accept: Accept | None = None, order: Order = Order.TIGHTEST,
    ) -> list[str]:  # fmt: skip
        """As `candidates`, among the nodes with this trait in this pool."""
        if trait is None:
            return self._view(self._everything, pool).candidates(wanted, most, accept, order)
        kind = self._kind(trait)
        if not trait.gpus and len(kind.members) > WIDE * len(self._known):
            members = kind.members
            both: Accept = members.__contains__
            if accept is not None:
                also = accept
                both = lambda name: name in members and also(name)  # noqa: E731
            return self._view(self._everything, pool).candidates(wanted, most, both, order)
        return self._view(kind, pool).candidates(wanted, most, accept, order)

    def having(self, trait: Trait) -> dict[str, None]:
        """Return all nodes that have a trait, usable or not."""
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
        """A superset of the nodes with the trait: the shortest of the matching lists."""
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
        where = self.flush()
        now = self._before + len(self._changes)
        if view.seen < self._before:
            view.index = Index()
            names = where if kind is self._everything else kind.members
            view.index.fill((name, self._key_in(kind, name)) for name in names if self._belongs(name, kind, pool))
        elif view.seen < now:
            changed, members = set(self._changes[view.seen - self._before :]), kind.members
            for name in changed if kind is self._everything else [name for name in changed if name in members]:
                if self._belongs(name, kind, pool):
                    view.index.move(name, self._key_in(kind, name))
                else:
                    view.index.drop(name)
        view.seen = now
        return view.index

    def _belongs(self, name: str, kind: Kind, pool: Pool) -> bool:
        if name not in self._index_keys or (kind is not self._everything and name not in kind.members):
            return False
        return pool is Pool.ALL or bool(self._nodes[name].allocations) is (pool is Pool.IN_USE)

    def _key_in(self, kind: Kind, name: str) -> IndexKey:
        key, trait = self._index_keys[name], kind.trait
        if trait is None or not trait.gpus or key[1] == NO_GPUS:
            return key
        capacity = self._nodes[name].capacity
        assert capacity is not None
        return key[0], capacity.free_gpus(trait.gpu_model, trait.gpu_memory), *key[2:]


class Without:
    """A read-only overlay of a catalogue that hides some of its nodes."""

    def __init__(self, index: Catalogue, hidden: frozenset[str]) -> None:
        self.affinity = index.affinity
        self.mix = index.mix
        self.forecasts = index.forecasts
        self.labels_of = index.labels_of
        self.trait = index.trait
        self._index = index
        self._hidden = hidden

    def __len__(self) -> int:
        return len(self._index) - sum(name in self._index for name in self._hidden)

    def __contains__(self, name: str) -> bool:
        return name not in self._hidden and name in self._index

    def near(self, local: Local) -> list[str]:
        """As the catalogue's method of this name."""
        return self._index.near(local, self._hidden)

    def search(
        self, wanted: Resources, most: int, trait: Trait | None = None, pool: Pool = Pool.ALL,
        accept: Accept | None = None, order: Order = Order.TIGHTEST,
    ) -> list[str]:  # fmt: skip
        """As the catalogue's method of this name."""
        hidden = self._hidden
        shown: Accept = lambda name: name not in hidden and (accept is None or accept(name))  # noqa: E731
        return self._index.search(wanted, most, trait, pool, shown, order)


Shown = Catalogue | Without


def _add(lists: dict[K, dict[str, None]], key: K, name: str) -> None:
    lists.setdefault(key, {})[name] = None


def _remove(lists: dict[K, dict[str, None]], key: K, name: str) -> None:
    names = lists.get(key, {})
    names.pop(name, None)
    if not names:
        lists.pop(key, None)
