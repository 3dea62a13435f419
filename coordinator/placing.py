"""What a request says of where it may go, in the words of this grid: what only the coordinator knows is filled in."""

from collections.abc import Mapping
from difflib import get_close_matches

import msgspec

from distributed_grid.coordinator.core.homes import Homes
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.sight import Sight
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.placing import Local, Strategy


def resolved(request: Request, host: str, bundle: str, policy: Policy) -> Request:
    """The request as the ledger takes it. `host` is the machine that it comes from, `bundle` what is shipped with it:
    both matter only where local goes first, and would else keep equal requests apart."""
    first = (request.strategy or policy.strategy) is Strategy.LOCAL_FIRST
    local = Local(host, bundle) if first and (host or bundle) else None
    return request if request.local == local else msgspec.structs.replace(request, local=local)


def neighbours(request: Request, sight: Sight, own: str, homes: Homes, beside: Mapping[str, str]) -> Request:
    """The request with ids for the jobs that it is to be near to: of a name, the newest of the user's that live. Apart
    from a name it stays, whoever bears it then. `own` is the name of the request's own job, `beside` are jobs that are
    submitted with it, by name. Raises BadValue for who is not there, to be seen by who asks."""
    asked = request.constraints
    if asked is None or not (asked.near or asked.apart):
        return request

    user = sight.user

    def lives(word: str) -> bool:
        whose, named, _ = word.partition("/")
        return homes.lives(word) and (sight.sees(whose) if named else sight.names(word))

    def find(word: str) -> str:
        if lives(word):
            return word
        return beside.get(word) or homes.newest(f"{user}/{word}")

    for word in (*asked.near, *asked.apart):
        if word != own and not find(word):
            names = [*homes.names(user), *beside]
            close = get_close_matches(word, names, 1)
            hint = f"did you mean {close[0]}?" if close else "give the whole id or the name of a job that has not ended"
            raise BadValue(f"no job of yours called {word!r} waits or runs", hint=hint)
    near = (find(word) for word in asked.near)
    apart = (word if lives(word) else f"{user}/{word}" for word in asked.apart)
    ids = tuple(dict.fromkeys(filter(None, near)))
    return msgspec.structs.replace(
        request, constraints=msgspec.structs.replace(asked, near=ids, apart=tuple(dict.fromkeys(apart)))
    )
