"""Rate limits: token buckets, failed tries by address, the rate of a user over all connections, and of log lines about
one peer."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any

from distributed_grid.coordinator.net.handshakes import site
from distributed_grid.protocol import messages
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.groups import count
from distributed_grid.runtime.logs import get_logger


class Bucket:
    """A token bucket. Time is an argument, in seconds of any clock that does not run backwards."""

    def __init__(self, rate: float, most: float, now: float) -> None:
        self.rate = rate
        self.most = most
        self._tokens = most
        self._at = now

    def take(self, cost: float, now: float) -> float:
        """Take this much, into debt if need be; the seconds until the debt is paid (0: none)."""
        if now > self._at:
            tokens = self._tokens + (now - self._at) * self.rate
            self._tokens = tokens if tokens < self.most else self.most
            self._at = now
        self._tokens -= cost
        return -self._tokens / self.rate if self._tokens < 0 else 0.0

    def debt(self, now: float) -> float:
        """Seconds until the debt is paid."""
        return self.take(0, now)

    def full(self, now: float) -> bool:
        """Whether the bucket is full."""
        self.take(0, now)
        return self._tokens >= self.most


SHARE = 0.5
"""Seconds of the coordinator's time that a user gets for each second."""
AT_ONCE = 10.0
SECONDS_A_JOB = 20e-6
"""Cost of a submitted job beyond its request: matching, storing, launching."""
SECONDS_A_BYTE = 2e-9
"""Cost of a byte of a blob: it is written while others have their turn, so its time cannot be measured."""
SECONDS_A_BLOB = 100e-6
"""Cost of a blob beyond its bytes: a file that is made, synced and named."""
SLOWEST = 1.0
"""The longest wait of a connection before its next request."""
FAR_OVER = 10.0
"""Seconds of debt from which on requests are refused. One connection alone never gets there: it waits."""
USERS = 1024
"""Maximum number of users that are remembered without a debt."""

AT_ONCE_DONE = (messages.Cancel, messages.SignalJob, messages.DrainNodes, messages.UndrainNodes, messages.Withdraw)
SLOWED_ONLY = (messages.WantOutput, messages.WantFiles, messages.WantFile, messages.PutInput, messages.PutBlob)
"""Parts of a transfer, which a refusal would spoil."""
ASKS_RAY = (messages.RequestBoost, messages.ListBoosts, messages.SuggestBoosts)
"""Requests that wait for the answer of a Ray cluster, which may take half a minute."""
ORDERS = (
    messages.Submit,
    messages.RequestBoost,
    messages.ExtendBoost,
    messages.LabelNodes,
    messages.SetNodes,
    messages.DeclareNode,
    messages.ForgetNodes,
    messages.SetRights,
    messages.SetBalancing,
    messages.OrderScaling,
)
"""Requests of one connection that are carried out in the order in which they were sent, also while one waits for
Ray."""
OUT_OF_TURN = (*AT_ONCE_DONE, messages.PutBlob)
"""Requests that do not wait for the user's other connections: orders, and what waits for the disk itself."""


class Pace(Bucket):
    """The pace of one user. `turn` is held while a request is done, and others have their turn between two requests:
    hundreds of connections of one user keep others waiting no longer than one does."""

    def __init__(self, now: float) -> None:
        super().__init__(SHARE, AT_ONCE, now)
        self.turn = asyncio.Lock()

    def wait(self, message: Any, now: float) -> float:
        """Seconds until this request may be done."""
        return 0.0 if isinstance(message, AT_ONCE_DONE) else min(SLOWEST, self.debt(now))

    def too_much(self, message: Any, now: float) -> float:
        """Seconds after which a request that is refused now may be tried again; 0: it may be done."""
        debt = self.debt(now)
        return 0.0 if debt < FAR_OVER or isinstance(message, AT_ONCE_DONE + SLOWED_ONLY) else debt

    def spend(self, message: Any, seconds: float, now: float) -> None:
        """Charge the CPU time that a request took."""
        if isinstance(message, messages.PutBlob):
            seconds = len(message.data) * SECONDS_A_BYTE + message.end * SECONDS_A_BLOB
        elif isinstance(message, messages.Submit):
            seconds += SECONDS_A_JOB * sum(count(job.array.parts) if job.array else 1 for job in message.jobs)
        self.take(seconds, now)


class Measured:
    """Awaits a coroutine, and measures the CPU time (`seconds`) that it takes itself, without that of others while it
    waits."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, None]:
        error: BaseException | None = None
        while True:
            before = time.thread_time()
            try:
                waits_for = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration:
                return
            finally:
                self.seconds += time.thread_time() - before
            error = None
            try:
                yield waits_for
            except BaseException as raised:
                error = raised


class Paces:
    """The paces of all users."""

    def __init__(self) -> None:
        self._of: dict[str, Pace] = {}

    def of(self, user: str) -> Pace:
        """The pace of a user, shared by all connections of that user."""
        now = time.monotonic()
        if user not in self._of and len(self._of) >= USERS:
            self._of = {name: pace for name, pace in self._of.items() if not pace.full(now)}
        return self._of.setdefault(user, Pace(now))


FAILURES, PER = 10, 60.0
"""Failed tries that one address may make within this many seconds."""
ADDRESSES = 10_000
"""Addresses whose failures are remembered; beyond that the oldest is forgotten."""


class FailedTries:
    """Failed tries to join or renew, by address. Secrets have 256 bits, so this only spares the log. Many nodes may
    share one address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def check(self, peer: str) -> None:
        """Raise GridError for an address that has failed too often."""
        failures = [at for at in self._failures.get(site(peer), []) if at > self._clock() - PER]
        if len(failures) >= FAILURES:
            raise GridError("too many tries from this address have failed", hint=f"wait for {PER:g} s")

    def failed(self, peer: str) -> None:
        """Count a failed try of this address."""
        where = site(peer)
        self._failures[where] = [*self._failures.pop(where, []), self._clock()][-FAILURES:]
        if len(self._failures) > ADDRESSES:
            self._failures.popitem(last=False)


LOG_SECONDS = 10.0
LOG_LINES = 20
"""Maximum number of different lines about one address in that time."""
LOGGED_ADDRESSES = 10_000
"""Addresses that are remembered; beyond that the one whose interval began first is forgotten."""

log = get_logger("door")


@dataclass(slots=True)
class _Said:
    since: float
    lines: set[str] = field(default_factory=set)
    unsaid: int = 0


class LogThrottle:
    """Writes warnings about peers, each only once in a while. The first line of an address's next interval has the
    number of lines left out (`unsaid`)."""

    def __init__(self) -> None:
        self._said: OrderedDict[str, _Said] = OrderedDict()

    def warning(self, event: str, peer: str, now: float | None = None, **more: Any) -> bool:
        """Log a warning unless the same was logged for this peer in this interval, or too many; whether it was
        logged."""
        now = time.monotonic() if now is None else now
        where = site(peer)
        said = self._said.get(where)
        unsaid = 0
        if said is None or now - said.since >= LOG_SECONDS:
            unsaid = said.unsaid if said is not None else 0
            said = self._said[where] = _Said(now)
            self._said.move_to_end(where)
            if len(self._said) > LOGGED_ADDRESSES:
                self._said.popitem(last=False)
        line = f"{event} {more}"
        if line in said.lines or len(said.lines) >= LOG_LINES:
            said.unsaid += 1
            return False
        said.lines.add(line)
        log.warning(event, peer=peer, **more, **({"unsaid": unsaid} if unsaid else {}))
        return True
