"""Who may still live of the allocations that a damaged journal does not name: found by what the kernel says.

`Survivors.find` is the one place where they are looked for: control groups that are named after an allocation, and
processes that were started for one. `sure` says whether what it finds is all that there can be: then finding nothing
proves that nothing lives; else only a reboot or the owner's word does. Stdlib only.
"""

import os
import re
import signal
from collections.abc import Callable, Iterable

from distributed_grid.agent import supervisor_procs as procs
from distributed_grid.agent.supervisor_book import Book
from distributed_grid.agent.supervisor_cgroupfs import Place, members_below
from distributed_grid.agent.supervisor_job import NEVER
from distributed_grid.agent.supervisor_tree import Tree

ALLOCATION = re.compile(r"j-[a-z2-7]{12}(?:_\d{1,9})?\.\d{1,9}")
"""What an allocation's id looks like, as far as an unknown one is taken for one."""
EVERY = 2.0
"""Seconds between two looks while it is not known what ran."""


class Survivors:
    """`places` is where the jobs' control groups are."""

    def __init__(self, book: Book, tree: Tree, places: Iterable[Place | None], log: Callable[[str], None]) -> None:
        self.sure = False
        self._book = book
        self._tree = tree
        self._log = log
        self._places = {place.path for place in places if place is not None}
        self._next = 0.0

    def find(self) -> dict[str, set[int]]:
        """The processes that live of each allocation."""
        found = {key: {*pids} for key, pids in self._tree.strays().items()}
        for place in self._places:
            for key in _names(place):
                if ALLOCATION.fullmatch(key) and (pids := members_below(os.path.join(place, key))):
                    found.setdefault(key, set()).update(pids)
        return found

    @property
    def due(self) -> float:
        """When to look again."""
        return self._next if self._book.unknown else NEVER

    def look(self, now: float) -> bool:
        """While it is not known what ran: end what is found of it that no job here is. True once it is proven that
        nothing is left."""
        if now < self.due:
            return False
        self._next = now + EVERY
        lives = self.find()
        for key, pids in lives.items():
            job = self._book.jobs.get(key)
            if job is None or job.outcome is not None:
                self._log(f"{key} still lives, and the journal does not know it: it is ended")
                for pid in pids - {os.getpid()}:
                    if (seen := procs.stat(pid)) is not None:
                        procs.send(pid, seen.start, signal.SIGKILL)
        return self.sure and not lives and not any(job.adopted for job in self._tree.ending)


def _names(path: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
