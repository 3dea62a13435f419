"""Fair share: what each user holds now, and past use, which counts half as much after each half-life. In a priority
class the user with the smallest share is served first (docs/shares.md).

    share = (dominant share of what is held now + average dominant share of the past) / weight

The dominant share of an amount is the largest of its fractions of what the known nodes lend together, by cores, memory
and GPUs. Past use is an exponential moving average, as in HTCondor. A grant counts in full from the moment it is made,
so that a burst is charged at once; and each attempt is charged for at least `charged_least` seconds, so that short ones
count too.
"""

import math

import msgspec

from distributed_grid.coordinator.core.policy import Sharing
from distributed_grid.protocol.resources import Resources

LN2 = 0.6931471805599453
RANKED_EVERY = 1.0
"""Seconds between two rankings of all waiting users, since shares decay with time; a user whose holdings change is
ranked at once."""


class Account(msgspec.Struct, kw_only=True, gc=False):
    """What a user holds, and the average of what they held (a dominant share, 0..1) as of `at` (grid time)."""

    held: Resources = Resources()
    past: float = 0.0
    at: float = 0.0


class Shares:
    """The accounts of all users who hold something, or held it not long ago."""

    def __init__(self) -> None:
        self.capacity = Resources()
        """What the known nodes may lend together."""
        self.accounts: dict[str, Account] = {}
        self.stale: dict[str, None] = {}
        """Users whose share has changed since they were ranked."""
        self.unsaved: dict[str, None] = {}
        """Users whose account differs from that on disk."""
        self.ranked = -math.inf
        """When all were ranked last."""
        self.negligible_at = 0.0
        """Before this no account has become negligible, of those that are not held now."""

    def know(self, old: Resources, new: Resources) -> None:
        """The most that a node lends has changed from `old` to `new`."""
        self.capacity = self.capacity + new - old
        self.ranked = -math.inf

    def take(self, user: str, amount: Resources, now: float, policy: Sharing) -> None:
        """Charge a grant to a user."""
        account = self.accounts.get(user)
        if account is None:
            account = self.accounts[user] = Account(at=now)
        else:
            self._accrue(account, now, policy)
        account.held = account.held + amount
        self.stale[user] = None

    def give(self, user: str, amount: Resources, held_for: float, now: float, policy: Sharing) -> None:
        """Release an amount that a user held for this many seconds."""
        account = self.accounts[user]
        self._accrue(account, now, policy)
        account.held = account.held - amount
        if (missing := policy.charged_least - held_for) > 0:
            account.past += dominant(amount, self.capacity) * missing * LN2 / policy.half_life
        if not account.held:
            self.negligible_at = min(self.negligible_at, _negligible_at(account, policy))
        self.stale[user] = None

    def _accrue(self, account: Account, now: float, policy: Sharing) -> None:
        if now > account.at:
            account.past = self.past(account, now, policy)
            account.at = now

    def past(self, account: Account, now: float, policy: Sharing) -> float:
        """The average past share as of now: its distance to what is held halves in each half-life."""
        return _past(account, dominant(account.held, self.capacity), now, policy)

    def share(self, user: str, now: float, policy: Sharing) -> float:
        """A user's share; the smallest is served first."""
        account = self.accounts.get(user)
        if account is None:
            return 0.0
        holds = dominant(account.held, self.capacity)
        return (holds + _past(account, holds, now, policy)) / weight(user, policy)

    def drop(self, now: float, policy: Sharing) -> list[str]:
        """Remove the accounts of users who hold nothing and whose past use is negligible; returns those users."""
        if now < self.negligible_at:
            return []
        accounts = self.accounts.items()
        gone = [user for user, one in accounts if not one.held and self.past(one, now, policy) < FORGOTTEN]
        for user in gone:
            del self.accounts[user]
        idle = (one for one in self.accounts.values() if not one.held)
        self.negligible_at = min((_negligible_at(one, policy) for one in idle), default=math.inf)
        return gone


def _past(account: Account, holds: float, now: float, policy: Sharing) -> float:
    """The average past share as of now of an account that holds this dominant share."""
    if now <= account.at:
        return account.past
    return holds + (account.past - holds) * halved((now - account.at) / policy.half_life)


FORGOTTEN = 1e-6
MARGIN = 1e-6
"""Half-lives: more than the difference between log2() on one machine and another."""


def _negligible_at(account: Account, policy: Sharing) -> float:
    """Return a time shortly before the past use of a user who holds nothing becomes negligible."""
    if account.past <= FORGOTTEN:
        return account.at
    return account.at + policy.half_life * (math.log2(account.past / FORGOTTEN) - MARGIN)


def weight(user: str, policy: Sharing) -> float:
    """Return how much more than others a user may have; 1 is ordinary."""
    return policy.weights.get(user, 1.0)


def aged(waited: float, policy: Sharing) -> float:
    """Return by how much a user's share is lowered while their first job in a class waits: it grows with time up to a
    bound, so that it only decides between users with nearly equal shares."""
    return policy.aged_most * min(1.0, max(0.0, waited) / policy.aged_after)


def dominant(amount: Resources, capacity: Resources) -> float:
    """The largest fraction of the capacity, 0..1 (more where nodes have since become smaller)."""
    most = amount.cpu / (capacity.cpu or 1)
    if amount.memory and (part := amount.memory / (capacity.memory or 1)) > most:
        most = part
    if amount.gpu and (part := amount.gpu / (capacity.gpu or 1)) > most:
        most = part
    return most


_TERMS = tuple(float(n) for n in range(16, 0, -1))
_TERMS_OF_FEW = _TERMS[-4:]


def halved(times: float) -> float:
    """2 to the power of -times, by arithmetic that gives the same result on every machine, as a replay needs; that of
    pow() depends on the library."""
    if times > 1000.0:
        return 0.0
    whole = int(times)
    x = (times - whole) * LN2
    value = 1.0
    for n in _TERMS_OF_FEW if x < 1e-3 else _TERMS:  # the series of exp(-x), from its small end
        value = 1.0 - x * value / n
    return math.ldexp(value, -whole) if whole else value
