"""Where jobs are that others want to be near to or apart from: by a job's id, a group's, or `user/name`.

A job that asks for such a place waits for more than room: for its neighbour to be placed, or to go. So who wants what
is kept as well, and looked at again when it comes about.
"""

from typing import NamedTuple, TypeVar

from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.queue.queue import Key, key_of
from distributed_grid.protocol.placement import Constraints

K = TypeVar("K")
V = TypeVar("V")


class Bounds(NamedTuple):
    """Where a request may go by what it wants to be near to or apart from: on one of `near` (None: anywhere), on none
    of `apart`. `missing` is what it waits for: it lives and has no place yet."""

    near: frozenset[str] | None = None
    apart: frozenset[str] = frozenset()
    missing: str = ""


ANYWHERE = Bounds()


class Homes:
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
