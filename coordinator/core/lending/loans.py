"""Loans: what users hold on nodes of other users (docs/shares.md). The coordinator's configuration says who owns a
node; what a node says of itself does not count.

    credit = average lent - average borrowed, and it counts as `credit` of a share at most

Both averages are of dominant shares, with the half-life of fair share. A loan counts with the dominant share that it
had when it was granted, so that the sum of all lent equals the sum of all borrowed.
"""

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from distributed_grid.coordinator.core.policy import Sharing
from distributed_grid.coordinator.core.queue.fairness import FORGOTTEN, halved
from distributed_grid.protocol.messages.history import DayOfLoans
from distributed_grid.protocol.resources import GIB, MILLI, Resources

DAY = 86_400.0
K = TypeVar("K")

Pair = tuple[str, str]
"""Lender and borrower."""
Place = tuple[int, str, str, str]
"""Day since the epoch, lender, borrower and node."""


class Loan(msgspec.Struct, kw_only=True, gc=False):
    """An allocation on a node of another user; `part`: its dominant share of the grid when it was granted. `counted`:
    the time up to which it is in the sums by day (grid time)."""

    lender: str
    borrower: str
    node: str
    resources: Resources
    part: float
    counted: float


class Balance(msgspec.Struct, kw_only=True, gc=False):
    """The number of live loans and the sum of their parts, and the average of the past as of `at`."""

    held: float = 0.0
    loans: int = 0
    past: float = 0.0
    at: float = 0.0

    def average(self, now: float, half_life: float) -> float:
        """The average as of now: its distance from what is lent halves with each half-life."""
        if now <= self.at:
            return self.past
        return self.held + (self.past - self.held) * halved((now - self.at) / half_life)

    def change(self, part: float, now: float, half_life: float) -> None:
        """Add a loan of this part; below 0: remove one."""
        self.past, self.at = self.average(now, half_life), max(now, self.at)
        self.loans += 1 if part > 0 else -1
        self.held = self.held + part if self.loans else 0.0  # without rounding errors


class Loans:
    """All loans, and the balances of pairs of users, of lenders and of borrowers."""

    def __init__(self) -> None:
        self.live: dict[str, Loan] = {}
        """By allocation."""
        self.pairs: dict[Pair, Balance] = {}
        self.lent: dict[str, Balance] = {}
        self.borrowed: dict[str, Balance] = {}
        self.days: dict[Place, list[float]] = {}
        """Sums not reported to the history yet: share-seconds, core-seconds, GiB-seconds, GPU-seconds."""
        self.unsaved: dict[Pair, None] = {}
        """Pairs whose balance has changed since it was saved."""

    def begin(self, allocation: str, loan: Loan, now: float, sharing: Sharing) -> None:
        """Begin the loan that an allocation is."""
        if loan.part > 0:
            self.live[allocation] = loan
            self._change(loan, loan.part, now, sharing)

    def end(self, allocation: str, now: float, sharing: Sharing) -> None:
        """End the loan that an allocation is, if it is one."""
        if (loan := self.live.pop(allocation, None)) is not None:
            self._count(loan, now)
            self._change(loan, -loan.part, now, sharing)

    def _change(self, loan: Loan, part: float, now: float, sharing: Sharing) -> None:
        for balance in self._balances(loan.lender, loan.borrower, now):
            balance.change(part, now, sharing.half_life)
        self.unsaved[loan.lender, loan.borrower] = None

    def _balances(self, lender: str, borrower: str, now: float) -> tuple[Balance, Balance, Balance]:
        pair = self.pairs.get((lender, borrower))
        if pair is None:
            pair = self.pairs[lender, borrower] = Balance(at=now)
        lent = self.lent.setdefault(lender, Balance(at=now))
        return pair, lent, self.borrowed.setdefault(borrower, Balance(at=now))

    def recall(self, lender: str, borrower: str, past: float, now: float) -> None:
        """Restore the saved average of a pair."""
        for balance in self._balances(lender, borrower, now):
            balance.past += past

    def count(self, now: float) -> None:
        """Add all live loans to the sums by day, up to now."""
        for loan in self.live.values():
            self._count(loan, now)

    def _count(self, loan: Loan, now: float) -> None:
        for one in _days_of(loan, now):
            sums = self.days.setdefault((one.day, one.lender, one.borrower, one.node), [0.0] * 4)
            for number, more in enumerate((one.share, one.cpu, one.memory, one.gpu)):
                sums[number] += more
        loan.counted = max(loan.counted, now)

    def unreported(self, now: float) -> list[DayOfLoans]:
        """The sums that were not reported as of now; a day, pair and node may be there several times."""
        found = [DayOfLoans(*place, *sums) for place, sums in sorted(self.days.items())]
        return [*found, *(one for loan in self.live.values() for one in _days_of(loan, now))]

    def take_days(self) -> tuple[DayOfLoans, ...]:
        """Take the sums that are to be reported to the history now."""
        found = tuple(DayOfLoans(*place, *sums) for place, sums in sorted(self.days.items()))
        self.days = {}
        return found

    def credit(self, user: str, now: float, sharing: Sharing) -> float:
        """Return by how much a user's share is lowered for what they have lent; below 0: by how much it is raised for
        what they have borrowed."""
        if user not in self.lent and user not in self.borrowed:
            return 0.0
        return max(-sharing.credit, min(sharing.credit, self.balance(user, now, sharing)))

    def balance(self, user: str, now: float, sharing: Sharing) -> float:
        """Return what a user has lent less what they have borrowed, as averages of dominant shares."""
        lent, borrowed = self.lent.get(user), self.borrowed.get(user)
        found = lent.average(now, sharing.half_life) if lent is not None else 0.0
        return found - borrowed.average(now, sharing.half_life) if borrowed is not None else found

    def drop(self, now: float, sharing: Sharing) -> list[Pair]:
        """Remove balances without loans whose past is negligible; returns the pairs among them."""
        gone = _negligible(self.pairs, now, sharing.half_life)
        for users in (self.lent, self.borrowed):
            _negligible(users, now, sharing.half_life)
        for pair in gone:
            self.unsaved.pop(pair, None)
        return gone


def _days_of(loan: Loan, now: float) -> Iterator[DayOfLoans]:
    """Split a loan by days, from the time it was counted up to until now."""
    of, begin = loan.resources, loan.counted
    while begin < now:
        day = int(begin // DAY)
        end = min(now, (day + 1) * DAY)
        rates = (loan.part, of.cpu / MILLI, of.memory / GIB, of.gpu / MILLI)
        yield DayOfLoans(day, loan.lender, loan.borrower, loan.node, *(rate * (end - begin) for rate in rates))
        begin = end


def _negligible(balances: dict[K, Balance], now: float, half_life: float) -> list[K]:
    """Remove negligible balances; returns their keys."""
    gone = [key for key, one in balances.items() if not one.loans and one.average(now, half_life) < FORGOTTEN]
    for key in gone:
        del balances[key]
    return gone
