"""Leases: until when a job may run on without word from the coordinator. Stdlib only.

A leased job may be run again elsewhere once its node has been silent for so long that its lease is over. That is safe
only if the job is over by then, so this end of the bargain trusts nobody: the deadline is a point on the boot clock,
which counts a machine's sleep and which nobody can set; it is kept by the process that is the job's parent; and a word
that is heard after the deadline revives nothing. It counts from the *sending* of the heartbeat that the coordinator
answered. The coordinator counts from a receipt, which is later.

The next supervisor, after this one was killed, must not take a deadline for later than it was. It reads since when each
job is leased from its intent, and the newest renewal from the journal, where one is noted now and then, not synced: a
killed process's writes are safe, and after a power cut no job is left. So it may miss what was renewed in the last
quarter of the shortest lease, and the agent says the newest one again when it connects; if no agent does in the
three quarters that are left, the job ends a little early, never late.
"""

from distributed_grid.agent.supervisor.job import NEVER

GRACE = 1.0
"""Seconds that a job has at most between SIGTERM and SIGKILL when its lease is over."""


class Leases:
    """The leases of all allocations that run or wait to be spawned. `renewed` is when the agent sent the newest
    heartbeat that the coordinator answered, `next` when something is due, or earlier. Times are seconds since boot."""

    def __init__(self) -> None:
        self.renewed = 0.0
        self.next = NEVER
        self._held: dict[str, tuple[float, float]] = {}  # seconds, and since when
        self._noted = 0.0

    def hold(self, key: str, lease: float, since: float) -> None:
        """Lease this allocation for so many seconds from `since` or the newest renewal on; 0 is no lease."""
        if lease:
            self._held[key] = lease, since
            self.next = min(self.next, self._deadline(key))

    def drop(self, key: str) -> None:
        """It is over, or nobody cares any more."""
        self._held.pop(key, None)

    def renew(self, at: float, now: float) -> bool:
        """All leases run anew from `at`. Call `over` with the same `now` first, or what is over is revived. True if
        this one is to be noted in the journal."""
        self.renewed = max(self.renewed, min(at, now))
        shortest = min((lease for lease, _ in self._held.values()), default=NEVER)
        if self.renewed - self._noted < shortest / 4:
            return False
        self._noted = self.renewed
        return True

    def over(self, now: float) -> dict[str, float]:
        """What is over, with the seconds of its lease. Each is told once."""
        if now < self.next:
            return {}
        found = {key: lease for key, (lease, _) in self._held.items() if self._deadline(key) <= now}
        for key in found:
            del self._held[key]
        self.next = min(map(self._deadline, self._held), default=NEVER)
        return found

    def _deadline(self, key: str) -> float:
        lease, since = self._held[key]
        return max(since, self.renewed) + lease


def why(lease: float) -> str:
    """For people: why a leased job was ended."""
    return f"no word from the coordinator for {lease:g} s; a leased job does not run on without it"
