"""What follows from the start and the end of jobs, and from that: one after the other, however long it goes on, so that
a chain of any length is followed without going deeper."""

from typing import TYPE_CHECKING

from distributed_grid.coordinator.core import dependencies, groups

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


def follow(ledger: "Ledger") -> None:
    """See to what follows from what was not seen to yet."""
    held = ledger.held
    while held.new or held.begun or ledger.endings or held.over:
        new, held.new = held.new, []
        for name in new:
            dependencies.look(ledger, name)
        begun, held.begun = held.begun, []
        for job in begun:
            dependencies.follow_start(ledger, job)
        while ledger.endings:
            job = ledger.endings.popleft()
            if job.group:
                groups.follow(ledger, job)
            dependencies.follow_end(ledger, job)
        over, held.over = held.over, []
        for group in over:
            dependencies.follow_group(ledger, group)
