"""Who holds how much, and who is next: what `grid shares` asks and shows."""

import msgspec

from distributed_grid.protocol.bounds import Count, Finite, Number
from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.resources import Resources


class GetShares(Message, frozen=True, tag="get-shares"):
    """Who holds how much, and who is next: answered by Shares."""

    id: Number


class UserShare(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A user. `held` is the dominant share of what they hold now, `past` the decayed average of what they held (parts
    of the whole grid), `share` both together by their `weight`: the smallest is served next. `running` counts
    allocations, `waiting` jobs by the word of their priority. `position` in the order of service; 0: nothing waits."""

    user: str
    holds: Resources
    held: Finite
    past: Finite
    share: Finite
    weight: Finite = 1.0
    running: Count = 0
    waiting: dict[str, Count] = {}
    position: Count = 0


class Shares(Message, frozen=True, tag="shares"):
    """The users in the order in which they are served next; `capacity` is what all known nodes may lend together, and
    `half_life` (seconds) says how fast the past is forgotten."""

    id: Number
    users: tuple[UserShare, ...]
    capacity: Resources
    half_life: Finite
