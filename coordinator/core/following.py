"""What follows from the end of a job, and from that: one after the other, however long it goes on."""

from typing import TYPE_CHECKING

from distributed_grid.coordinator.core import groups

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


def follow(ledger: "Ledger") -> None:
    """See to what follows from the ends that were not seen to yet."""
    while ledger.endings:
        job = ledger.endings.popleft()
        if job.group:
            groups.follow(ledger, job)
