"""What a request says of where it may go, in the words of this grid: what only the coordinator knows is filled in."""

import msgspec

from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.placing import Local, Strategy


def resolved(request: Request, host: str, bundle: str, policy: Policy) -> Request:
    """The request as the ledger takes it. `host` is the machine that it comes from, `bundle` what is shipped with it:
    both matter only where local goes first, and would else keep equal requests apart."""
    first = (request.strategy or policy.strategy) is Strategy.LOCAL_FIRST
    local = Local(host, bundle) if first and (host or bundle) else None
    return request if request.local == local else msgspec.structs.replace(request, local=local)
