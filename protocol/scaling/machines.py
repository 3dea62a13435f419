"""A machine that the grid has created, or is about to create, and the transitions of its state
(`MACHINE_MOVES`). A machine is a node once its agent has joined, by the same name."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from distributed_grid.protocol.resources import Count, Finite, Resources, Text, Word
from distributed_grid.protocol.scaling.plans import DrainCause


class MachineState(StrEnum):
    """The state of a machine."""

    WANTED = "wanted"
    """It is recorded; its provider was not asked for it yet."""
    CREATING = "creating"
    """Its provider was asked for it, and has not said that it is there."""
    BOOTING = "booting"
    """It is there; its agent has not joined."""
    JOINED = "joined"
    DRAINING = "draining"
    """It gets no new jobs, and ends when the last one has ended."""
    ENDING = "ending"
    """Its provider was asked to end it, and has not said that it is gone."""
    GONE = "gone"
    FAILED = "failed"
    """Its provider has refused it: it never was."""


S = MachineState
MACHINE_MOVES: Mapping[MachineState, frozenset[MachineState]] = {
    S.WANTED: frozenset({S.CREATING, S.FAILED}),
    S.CREATING: frozenset({S.BOOTING, S.JOINED, S.ENDING, S.FAILED}),
    S.BOOTING: frozenset({S.JOINED, S.ENDING, S.GONE}),
    S.JOINED: frozenset({S.DRAINING, S.ENDING, S.GONE}),
    S.DRAINING: frozenset({S.JOINED, S.ENDING, S.GONE}),
    S.ENDING: frozenset({S.GONE}),
    S.GONE: frozenset(),
    S.FAILED: frozenset(),
}
"""Legal transitions. One that is CREATING only becomes GONE by ENDING: an answer that was lost may still come true."""
OVER = frozenset({S.GONE, S.FAILED})
"""States in which a machine is not there, costs nothing, and never will be."""
STARTING = frozenset({S.WANTED, S.CREATING, S.BOOTING})
"""States on the way to a node."""


class Machine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A machine; its `name` is also the name of its node and the token of its creation. `since`: when it came into this
    state. `born`: when its provider was asked first, from which it may cost something. `ends_by`: when it ends itself
    at the latest. `handle`: what its provider calls it. `calls`: how often its provider was asked to create it,
    `answered` the bits of those calls that were answered for sure, `asked` when the last one was made; `ends`: how
    often it was asked to end it, and `retry` when it is asked again. `queued`: it waits in its provider's queue, for
    `queue_within` at most; its life, and the time it has to join, begin when it leaves it. `resources` and `price` as
    in its pool when it was decided, `why` the reason of that, `jobs` those that it was created for, and `ran` whether
    any job has run on it. `text`: what happened to it last. Times are grid time."""

    name: Word
    pool: Word
    provider: Word
    type: Word = ""
    zone: Word = ""
    spot: bool = False
    state: MachineState = MachineState.WANTED
    wanted: Finite = 0.0
    since: Finite = 0.0
    born: Finite = 0.0
    booted: Finite = 0.0
    joined: Finite = 0.0
    over: Finite = 0.0
    ends_by: Finite = 0.0
    join_within: Finite = 0.0
    abandoned_after: Finite = 0.0
    queue_within: Finite = 0.0
    queued: bool = False
    handle: Word = ""
    boot: Word = ""
    """The boot id of its node when that joined: another one is another machine."""
    calls: Count = 0
    answered: Count = 0
    asked: Finite = 0.0
    ends: Count = 0
    retry: Finite = 0.0
    cause: DrainCause | None = None
    """Why it is drained."""
    missed: Count = 0
    """In how many lists of its provider in a row it was missing."""
    resources: Resources = Resources()
    price: Finite | None = None
    why: Text = ""
    text: Text = ""
    jobs: tuple[Word, ...] = ()
    ran: bool = False

    @property
    def live(self) -> bool:
        """Whether it may be there, and cost something."""
        return self.state not in OVER

    @property
    def refused(self) -> bool:
        """Whether its provider has refused to create it, so that it has cost nothing."""
        return self.state is MachineState.FAILED

    @property
    def sure(self) -> bool:
        """Whether no call for it is unanswered."""
        return self.answered == (1 << self.calls) - 1
