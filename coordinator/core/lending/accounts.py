"""The ledger's accounts of loans: which allocations are loans, which balances are saved, and what is shown of them."""

from collections.abc import Mapping

from distributed_grid.coordinator.core.commands import Lent, RecordLoan
from distributed_grid.coordinator.core.data import GridData
from distributed_grid.coordinator.core.lending.loans import Balance, Loan, Pair
from distributed_grid.coordinator.core.model import Allocation
from distributed_grid.coordinator.core.queue.fairness import dominant
from distributed_grid.protocol.messages.history import UserBalance, UserLoans

SAVED_EVERY = 60.0
"""Interval between saves of changed balances, and between reports of live loans to the history (s): a crash may lose
this much of loans that have ended."""


def begin(state: GridData, user: str, allocation: Allocation) -> None:
    """Note that an allocation of this user holds its grant from now on."""
    if (loan := _loan(state, user, allocation, state.now)) is not None:
        state.loans.begin(allocation.id, loan, state.now, state.policy.sharing)
        _arm(state)


def end(state: GridData, allocation: Allocation) -> None:
    """Note that an allocation does not hold its grant any more."""
    state.loans.end(allocation.id, state.now, state.policy.sharing)


def due(state: GridData, name: str) -> None:
    """Save changed balances, remove negligible ones, and report all loans up to now to the history."""
    loans, sharing = state.loans, state.policy.sharing
    for loan in loans.live.values():
        loans.unsaved[loan.lender, loan.borrower] = None
    for pair in loans.unsaved:
        state.out.append(RecordLoan(*pair, loans.pairs[pair].average(state.now, sharing.half_life), state.now, True))
    loans.unsaved = {}
    state.out += (RecordLoan(*pair, 0.0, 0.0, True) for pair in loans.drop(state.now, sharing))
    loans.count(state.now)
    if found := loans.take_days():
        state.out.append(Lent(found))
    if loans.pairs:
        _arm(state)


def restore(state: GridData, known: Mapping[Pair, tuple[float, float]]) -> None:
    """Restore the balances: past loans and their time from disk, and live ones from the allocations."""
    live: dict[Pair, dict[str, Loan]] = {}
    for node in state.nodes.values():
        for held in node.allocations.values():
            loan = _loan(state, state.jobs[held.job].user, held, min(held.granted, state.now))
            if loan is not None:
                live.setdefault((loan.lender, loan.borrower), {})[held.id] = loan
    sharing = state.policy.sharing
    for pair in sorted(known.keys() | live.keys()):
        loans = live.get(pair, {})
        past, at = known.get(pair, (0.0, min((one.counted for one in loans.values()), default=state.now)))
        at = min(at, state.now)
        balance = Balance(held=sum(one.part for one in loans.values()), past=past, at=at)
        state.loans.recall(*pair, balance.average(state.now, sharing.half_life), state.now)
        for name, loan in loans.items():
            loan.counted = max(loan.counted, at)
            state.loans.begin(name, loan, state.now, sharing)
    if state.loans.pairs:
        _arm(state)


def _loan(state: GridData, user: str, allocation: Allocation, since: float) -> Loan | None:
    """Return an allocation of this user as a loan; None: its node is the user's own, or has no owner."""
    lender = state.policy.sharing.owners.get(allocation.node, "")
    if lender in ("", user):
        return None
    amount = allocation.grant.charged
    part = dominant(amount, state.shares.capacity)
    return Loan(lender=lender, borrower=user, node=allocation.node, resources=amount, part=part, counted=since)


def _arm(state: GridData) -> None:
    if ("loans", "") not in state.deadlines.armed:
        state.deadlines.arm("loans", "", state.now + SAVED_EVERY)


# --- views ------------------------------------------------------------------------------------------------------------


def balances(state: GridData, now: float) -> tuple[UserBalance, ...]:
    """Return the balances of all users who have lent or borrowed, the largest credit first."""
    loans, sharing = state.loans, state.policy.sharing
    nothing = Balance()
    found = [
        UserBalance(
            user,
            loans.lent.get(user, nothing).average(now, sharing.half_life),
            loans.borrowed.get(user, nothing).average(now, sharing.half_life),
            loans.credit(user, now, sharing),
        )
        for user in loans.lent.keys() | loans.borrowed.keys()
    ]
    return tuple(sorted(found, key=lambda one: (one.borrowed - one.lent, one.user)))


def pairs(state: GridData, now: float) -> tuple[UserLoans, ...]:
    """The balances of all pairs of lender and borrower; the largest come first."""
    found = [
        UserLoans(lender, borrower, one.held, one.average(now, state.policy.sharing.half_life), one.loans)
        for (lender, borrower), one in state.loans.pairs.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.past, one.lender, one.borrower)))
