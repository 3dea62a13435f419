"""How the accounts of users outlast a restart, and how they look."""

from collections.abc import Mapping

from distributed_grid.coordinator.core.queue.fairness import Account, RecordShare, dominant, weight
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.resources import capped
from distributed_grid.protocol.shares import UserShare


def due(state: GridState, name: str) -> None:
    """Save the accounts that have changed, and forget those that do not count any more."""
    shares = state.shares
    for user in shares.unsaved:
        account = shares.accounts.get(user)
        if account is not None:
            state.out.append(RecordShare(user, account.past, account.at, True))
    shares.unsaved = {}
    for user in shares.drop(state.now, state.policy.sharing):
        state.out.append(RecordShare(user, 0.0, 0.0, True))


def restore(state: GridState, past: Mapping[str, tuple[float, float]]) -> None:
    """Take up what was on disk: the average of each user and when it was so, and what is held. It goes on from then."""
    accounts = state.shares.accounts
    for user, (share, at) in past.items():
        accounts[user] = Account(past=share, at=min(at, state.now))
    for held in state.allocations.values():
        user = state.jobs[held.job].user
        account = accounts.setdefault(user, Account(at=min(held.granted, state.now)))
        account.held = account.held + held.grant.resources
        state.shares.stale[user] = None


# --- how it looks -----------------------------------------------------------------------------------------------------


def views(state: GridState, now: float) -> tuple[UserShare, ...]:
    """All users who hold, held or wait, in the order in which they are served next; then those who wait for nothing."""
    running: dict[str, int] = {}
    for held in state.allocations.values():
        user = state.jobs[held.job].user
        running[user] = running.get(user, 0) + 1
    waiting: dict[str, dict[str, int]] = {}
    first: dict[str, tuple[int, float, int]] = {}
    for (priority, user), standing in state.queue.standings.items():
        waiting.setdefault(user, {})[priority.word] = standing.count
        place = (-priority, *state.queue.place(standing))
        first[user] = min(first.get(user, place), place)
    order = sorted(first, key=first.__getitem__)
    others = sorted((state.shares.accounts.keys() | running.keys()) - first.keys())
    found = []
    for number, user in enumerate((*order, *others), 1):
        account = state.shares.accounts.get(user, Account(at=now))
        words = [one.word for one in reversed(Priority) if one.word in waiting.get(user, ())]
        found.append(
            UserShare(
                user=user,
                holds=capped(account.held),
                held=dominant(account.held, state.shares.capacity),
                past=state.shares.past(account, now, state.policy.sharing),
                weight=weight(user, state.policy.sharing),
                share=state.shares.share(user, now, state.policy.sharing),
                running=running.get(user, 0),
                waiting={word: waiting[user][word] for word in words},
                position=number if number <= len(order) else 0,
            )
        )
    return tuple(found)
