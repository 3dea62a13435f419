"""What an operator has to hear of jobs that try what they may not, without letting a job fill a log: the same is said
once in a while, and so much of it at most. Stdlib only: the supervisor uses it, too."""

from collections import deque
from collections.abc import Callable

SECONDS = 60.0
LINES = 20
"""The most lines in that time."""
UNHEARD = 20
"""Lines that are kept for an agent that is not there; of more, the newest."""


class Seldom:
    """Lets a line pass if it was not said within the last interval, and not enough was. The first line of the next
    interval says how many were left out."""

    def __init__(self) -> None:
        self._since = 0.0
        self._said: set[str] = set()
        self._unsaid = 0

    def passed(self, line: str, now: float) -> str:
        """The line as it is to be said at `now` (seconds); empty: it is left out."""
        if not self._said or now - self._since >= SECONDS:
            self._since, unsaid, self._unsaid = now, self._unsaid, 0
            self._said = {line}
            return f"{line} ({unsaid} more lines like this one were left out)" if unsaid else line
        if line in self._said or len(self._said) >= LINES:
            self._unsaid += 1
            return ""
        self._said.add(line)
        return line


class Telling:
    """Warnings of the supervisor: into its own log, and to the agent, whose log an operator reads. `tell` takes one to
    the agent (False: there is none; it is kept for the next one)."""

    def __init__(self, log: Callable[[str], None], tell: Callable[[str], bool], clock: Callable[[], float]) -> None:
        self._log, self._tell, self._clock = log, tell, clock
        self._seldom = Seldom()
        self._unheard: deque[str] = deque(maxlen=UNHEARD)

    def warn(self, line: str) -> None:
        """Say this, unless it was said a moment ago."""
        if said := self._seldom.passed(line, self._clock()):
            self._log(said)
            if not self._tell(said):
                self._unheard.append(said)

    def unheard(self) -> list[str]:
        """What no agent has heard yet. From now on one has."""
        lines = [*self._unheard]
        self._unheard.clear()
        return lines
