"""What grants and ends mean to the accounts of their users, how the accounts outlast a restart, and how they look."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from distributed_grid.coordinator.core.fairness import Account, RecordShare, dominant, weight
from distributed_grid.coordinator.core.model import Allocation
from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.resources import Resources, capped
from distributed_grid.protocol.shares import UserShare

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger

SAVE_EVERY = 60.0
"""Seconds for which a change of an account may wait for its way to the disk: so much of a user's past a crash may
lose. What is held is on disk in any case, with the allocations."""


def granted(ledger: "Ledger", user: str, amount: Resources) -> None:
    """This user holds so much more."""
    ledger.shares.take(user, amount, ledger.now, ledger.policy.sharing)
    _changed(ledger, user)


def released(ledger: "Ledger", allocation: Allocation) -> None:
    """What this allocation held is its user's no more."""
    user = ledger.jobs[allocation.job].user
    ran = ledger.now - allocation.granted if allocation.started else math.inf
    ledger.shares.give(user, allocation.grant.resources, ran, ledger.now, ledger.policy.sharing)
    _changed(ledger, user)


def _changed(ledger: "Ledger", user: str) -> None:
    if not ledger.shares.unsaved:
        ledger.deadlines.arm("shares", "", ledger.now + SAVE_EVERY)
    ledger.shares.unsaved[user] = None


def due(ledger: "Ledger", name: str) -> None:
    """Save the accounts that have changed, and forget those that do not count any more."""
    shares = ledger.shares
    for user in shares.unsaved:
        account = shares.accounts.get(user)
        if account is not None:
            ledger.out.append(RecordShare(user, account.past, account.at, True))
    shares.unsaved = {}
    for user in shares.drop(ledger.now, ledger.policy.sharing):
        ledger.out.append(RecordShare(user, 0.0, 0.0, True))


def restore(ledger: "Ledger", past: Mapping[str, tuple[float, float]]) -> None:
    """Take up what was on disk: the average of each user and when it was so, and what is held. It goes on from then."""
    accounts = ledger.shares.accounts
    for user, (share, at) in past.items():
        accounts[user] = Account(past=share, at=min(at, ledger.now))
    for held in ledger.allocations.values():
        user = ledger.jobs[held.job].user
        account = accounts.setdefault(user, Account(at=min(held.granted, ledger.now)))
        account.held = account.held + held.grant.resources
        ledger.shares.stale[user] = None


# --- how it looks -----------------------------------------------------------------------------------------------------


def views(ledger: "Ledger", now: float) -> tuple[UserShare, ...]:
    """All users who hold, held or wait, in the order in which they are served next; then those who wait for nothing."""
    running: dict[str, int] = {}
    for held in ledger.allocations.values():
        user = ledger.jobs[held.job].user
        running[user] = running.get(user, 0) + 1
    waiting: dict[str, dict[str, int]] = {}
    first: dict[str, tuple[int, float, int]] = {}
    for (priority, user), standing in ledger.queue.standings.items():
        waiting.setdefault(user, {})[priority.word] = standing.count
        place = (-priority, *ledger.queue.place(standing))
        first[user] = min(first.get(user, place), place)
    order = sorted(first, key=first.__getitem__)
    others = sorted((ledger.shares.accounts.keys() | running.keys()) - first.keys())
    found = []
    for number, user in enumerate((*order, *others), 1):
        account = ledger.shares.accounts.get(user, Account(at=now))
        words = [one.word for one in reversed(Priority) if one.word in waiting.get(user, ())]
        found.append(
            UserShare(
                user=user,
                holds=capped(account.held),
                held=dominant(account.held, ledger.shares.capacity),
                past=ledger.shares.past(account, now, ledger.policy.sharing),
                weight=weight(user, ledger.policy.sharing),
                share=ledger.shares.share(user, now, ledger.policy.sharing),
                running=running.get(user, 0),
                waiting={word: waiting[user][word] for word in words},
                position=number if number <= len(order) else 0,
            )
        )
    return tuple(found)
