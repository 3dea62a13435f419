"""Simulated time: what happens when, and to which process (nothing to a dead one; to a suspended one when it resumes,
in order). And simulated connections, like TCP with keepalives: what is sent on a connection arrives in order or not at
all, and its end may be noticed late."""

import hashlib
import random
from collections import deque
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
        """Schedule an event at this time (now, if that is over), unless its owner is dead by then."""
        self._number += 1
        heappush(self._heap, (max(when, self.now), self._number, owner, act, args))

    def later(self, seconds: float, owner: Process | None, act: Callable[..., None], *args: Any) -> None:
        """Schedule an event this many seconds from now."""
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
        """Continue a process: all its events that were due meanwhile happen now."""
        if not process.frozen:
            return
        process.frozen = False
        backlog, process.backlog = process.backlog, []
        for act, args in backlog:
            self.at(self.now, process, act, *args)

    def note(self, text: str) -> None:
        """Add a line to the trace and to the story."""
        self._trace.append(text)
        if self._recording:
            self.story.append((self.now, text))

    def digest(self) -> str:
        """Return one hash of everything that happened, in order."""
        return hashlib.blake2b("\n".join(self._trace).encode(), digest_size=16).hexdigest()


class Violation(Exception):
    """Something that must never be is. `about` names the job or node, `what` says it in words."""

    def __init__(self, about: str, what: str) -> None:
        super().__init__(f"{about}: {what}")
        self.about = about
        self.what = what


UP, DOWN = 0, 1
"""From the agent to the coordinator, and back."""
FIN = ("fin",)


class Link:
    """The way between one node and the coordinator: what is cut of it, and how long things take."""

    def __init__(self, engine: Engine, chance: random.Random) -> None:
        self.engine = engine
        self.chance = chance
        self.cut = [False, False]
        self.slow = 0.0
        self.wires: list[Wire] = []

    def delay(self) -> float:
        """Seconds that something takes now."""
        return 0.0005 + self.chance.random() * (0.002 + self.slow)

    def heal(self, direction: int) -> None:
        """Send again what was stuck, in order."""
        self.cut[direction] = False
        for wire in [*self.wires]:
            wire.flush(direction)


class Wire:
    """One connection. `ends` are the processes at UP's and DOWN's sending side: the agent, and the coordinator."""

    def __init__(self, link: Link, name: str, agent: "Process", coordinator: "Process") -> None:
        self.link = link
        self.name = name
        self.link_name = ""
        """The node that said hello on it."""
        self.ends: tuple[Any, Any] = (agent, coordinator)
        self.closed = [False, False]
        self.stuck: tuple[list[Any], list[Any]] = ([], [])
        self.flying: tuple[deque[Any], deque[Any]] = (deque(), deque())
        self.last = [0.0, 0.0]
        self.sent = [0, 0]
        self.received = [0, 0]
        self.answered = link.engine.now
        """When a ping of the agent was last answered."""
        self.heard = link.engine.now
        self.doubted = False
        link.wires.append(self)

    def send(self, direction: int, frame: Any) -> None:
        """Send a frame. No effect on a wire that is closed on this side."""
        if self.closed[direction]:
            return
        self.sent[direction] += 1
        self._put(direction, (self.sent[direction], frame))

    def _put(self, direction: int, frame: Any) -> None:
        if self.link.cut[direction]:
            self.stuck[direction].append(frame)
            return
        engine = self.link.engine
        when = self.last[direction] = max(self.last[direction], engine.now + self.link.delay())
        self.flying[direction].append(frame)
        engine.at(when, self.ends[1 - direction], self._arrives, direction)

    def flush(self, direction: int) -> None:
        """The way is free again."""
        frames = [*self.stuck[direction]]
        self.stuck[direction].clear()
        for frame in frames:
            self._put(direction, frame)

    def _arrives(self, direction: int) -> None:
        if not self.flying[direction]:
            return
        number, frame = self.flying[direction].popleft()
        if self.closed[1 - direction]:
            return
        end = self.ends[1 - direction]
        if frame is FIN:
            self.close(1 - direction)
            end.hung_up(self)
            return
        assert number == self.received[direction] + 1, f"{self.name}: frame {number} after {self.received[direction]}"
        self.received[direction] = number
        if direction == UP:
            self.heard = self.link.engine.now
            self.doubted = False
        end.receive(self, frame)

    def close(self, side: int, lose: bool = False, silent: bool = False) -> None:
        """Close the wire on this side. `lose`: at once, so that the last frames may not leave any more. `silent`:
        without a message, as when the power is cut."""
        if self.closed[side]:
            return
        if lose:
            frames = self.stuck[side] or self.flying[side]
            for _ in range(self.link.chance.randint(0, len(frames))):
                frames.pop()
        self.closed[side] = True
        if not silent:
            self.sent[side] += 1
            self._put(side, (self.sent[side], FIN))
        if self.closed[1 - side] and self in self.link.wires:
            self.link.wires.remove(self)

    @property
    def well(self) -> bool:
        """Whether a ping of either end is answered now."""
        one, other = self.ends
        cut = True in self.link.cut or True in self.closed
        return not (cut or one.dead or one.frozen or other.dead or other.frozen)

    @property
    def quick(self) -> bool:
        """Whether what the agent says now arrives as good as at once, nothing being before it on its way."""
        return not (self.link.slow or self.flying[UP] or self.stuck[UP]) and self.well
