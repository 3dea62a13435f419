"""Simulated time: what is due when, and who it happens to. Events of a process that is dead do not happen; those of one
that is suspended happen when it goes on, in their order.
"""

import hashlib
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Process:
    """Something that can be killed, or suspended and resumed."""

    def __init__(self) -> None:
        self.dead = False
        self.frozen = False
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []


class Engine:
    """The heap of events. `trace` grows by a line for each event that happens, so that two runs can be compared; with
    `recording` what is noted is kept as a story as well."""

    def __init__(self, recording: bool = False) -> None:
        self.now = 0.0
        self.events = 0
        self.story: list[tuple[float, str]] = []
        self._recording = recording
        self._heap: list[tuple[float, int, Process | None, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._trace: list[str] = []

    def at(self, when: float, owner: Process | None, act: Callable[..., None], *args: Any) -> None:
        """Let this happen then (now, if that is over), unless its owner is dead by that time."""
        self._number += 1
        heappush(self._heap, (max(when, self.now), self._number, owner, act, args))

    def later(self, seconds: float, owner: Process | None, act: Callable[..., None], *args: Any) -> None:
        """The same, so many seconds from now."""
        self.at(self.now + seconds, owner, act, *args)

    def step(self) -> bool:
        """Let the next event happen; False when there is none."""
        while self._heap:
            when, _, owner, act, args = heappop(self._heap)
            if owner is not None:
                if owner.dead:
                    continue
                if owner.frozen:
                    owner.backlog.append((act, args))
                    continue
            self.now = when
            self.events += 1
            self._trace.append(f"{when:.6f} {act.__name__}")
            act(*args)
            return True
        return False

    def freeze(self, process: Process) -> None:
        """Suspend it: nothing happens to it until it is thawed."""
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """All that was due meanwhile happens now."""
        if not process.frozen:
            return
        process.frozen = False
        backlog, process.backlog = process.backlog, []
        for act, args in backlog:
            self.at(self.now, process, act, *args)

    def note(self, text: str) -> None:
        """Say what happened: part of the trace, and of the story."""
        self._trace.append(text)
        if self._recording:
            self.story.append((self.now, text))

    def digest(self) -> str:
        """One hash of everything that happened, in order."""
        return hashlib.blake2b("\n".join(self._trace).encode(), digest_size=16).hexdigest()


class Violation(Exception):
    """Something that must never be is. `about` names the job or node, `what` says it in words."""

    def __init__(self, about: str, what: str) -> None:
        super().__init__(f"{about}: {what}")
        self.about = about
        self.what = what
