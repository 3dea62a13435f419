"""Who is owed how much: what each user holds now, and what they held before, which counts half as much with each
half-life. Of two users whose jobs wait in one class, the one with the smaller share is served first (docs/shares.md).

    share = (dominant share of what is held now + average dominant share of the past) / weight

The dominant share of an amount is the largest of its parts of all that the known nodes lend together: of their cores,
their memory or their GPUs. The average of the past is an exponential one, as HTCondor's. A grant counts in full from
the moment it is made, so a burst is not ahead of its own bill; and an attempt counts `charged_least` seconds at least,
so that many short ones cannot slip through beneath it.
"""

import math

import msgspec

from distributed_grid.coordinator.core.policy import Sharing
from distributed_grid.protocol.resources import Resources

LN2 = 0.6931471805599453
RANKED_EVERY = 1.0
"""Seconds after which all who wait are ranked anew, since shares change by themselves; who is granted something, or
gives it back, is ranked at once."""


class Account(msgspec.Struct, kw_only=True, gc=False):
    """What a user holds, and the average of what they held (a dominant share, 0..1) as it was at `at` (grid time)."""

    held: Resources = Resources()
    past: float = 0.0
    at: float = 0.0


class Shares:
    """The accounts of all users who hold something, or held it not long ago."""

    def __init__(self) -> None:
        self.capacity = Resources()
        """All that the known nodes may lend together."""
        self.accounts: dict[str, Account] = {}
        self.stale: dict[str, None] = {}
        """Users whose share has changed since they were ranked."""
        self.unsaved: dict[str, None] = {}
        """Users whose account is not as on the disk."""
        self.ranked = -math.inf
        """When all were ranked last."""

    def know(self, old: Resources, new: Resources) -> None:
        """A node that lent `old` lends `new` at the most from now on."""
        self.capacity = self.capacity + new - old
        self.ranked = -math.inf

    def take(self, user: str, amount: Resources, now: float, policy: Sharing) -> None:
        """This user is granted so much."""
        account = self.accounts.get(user)
        if account is None:
            account = self.accounts[user] = Account(at=now)
        else:
            self._accrue(account, now, policy)
        account.held = account.held + amount
        self.stale[user] = None

    def give(self, user: str, amount: Resources, held_for: float, now: float, policy: Sharing) -> None:
        """This user gives back what they held for so many seconds."""
        account = self.accounts[user]
        self._accrue(account, now, policy)
        account.held = account.held - amount
        if (missing := policy.charged_least - held_for) > 0:
            account.past += dominant(amount, self.capacity) * missing * LN2 / policy.half_life
        self.stale[user] = None

    def _accrue(self, account: Account, now: float, policy: Sharing) -> None:
        if now > account.at:
            account.past = self.past(account, now, policy)
            account.at = now

    def past(self, account: Account, now: float, policy: Sharing) -> float:
        """The average share of the past, as of now: it draws near to what is held, by half in a half-life."""
        if now <= account.at:
            return account.past
        holds = dominant(account.held, self.capacity)
        return holds + (account.past - holds) * halved((now - account.at) / policy.half_life)

    def share(self, user: str, now: float, policy: Sharing) -> float:
        """What decides between users: the smaller, the sooner."""
        account = self.accounts.get(user)
        if account is None:
            return 0.0
        return (dominant(account.held, self.capacity) + self.past(account, now, policy)) / weight(user, policy)

    def drop(self, now: float, policy: Sharing) -> list[str]:
        """Forget users who hold nothing and for whom what they held hardly counts any more. Those."""
        accounts = self.accounts.items()
        gone = [user for user, one in accounts if not one.held and self.past(one, now, policy) < FORGOTTEN]
        for user in gone:
            del self.accounts[user]
        return gone


FORGOTTEN = 1e-6


def weight(user: str, policy: Sharing) -> float:
    """How much more than others this user may have; 1 is ordinary."""
    return policy.weights.get(user, 1.0)


def aged(waited: float, policy: Sharing) -> float:
    """By how much a user's share counts less while their first job in a class waits: it grows with the time and is
    bounded, so who waits longest goes first among users who are about even, and nobody else is passed."""
    return policy.aged_most * min(1.0, max(0.0, waited) / policy.aged_after)


def dominant(amount: Resources, capacity: Resources) -> float:
    """The largest of its parts of the capacity, 0..1 (more where nodes have since become smaller)."""
    most = amount.cpu / (capacity.cpu or 1)
    if amount.memory and (part := amount.memory / (capacity.memory or 1)) > most:
        most = part
    if amount.gpu and (part := amount.gpu / (capacity.gpu or 1)) > most:
        most = part
    return most


def halved(times: float) -> float:
    """1 halved so many times: 2 to the power of -times. By plain arithmetic, which is the same on every machine; what
    pow() makes of it depends on the library, and a replay has to come to the same order."""
    if times > 1000.0:
        return 0.0
    whole = int(times)
    x = (times - whole) * LN2
    value = 1.0
    for n in range(4 if x < 1e-3 else 16, 0, -1):  # the series of exp(-x), from its small end
        value = 1.0 - x * value / n
    return math.ldexp(value, -whole) if whole else value
