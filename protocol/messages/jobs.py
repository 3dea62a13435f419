"""Messages between a client and the coordinator about jobs. Most commands load this module and no other."""

import msgspec

from distributed_grid.protocol.groups import Array, GroupView
from distributed_grid.protocol.jobs import Dependency, JobSpec, JobView, Request, State
from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.resources import Code, Count, Finite, Number, Word


class Submission(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job to submit, or many with an `array`. `key` is made by the client, unique per user: submitting the same key
    again returns the job (or group) that is there already. It waits for all that is in `after`, and until `begin` (grid
    time) or for `delay` seconds."""

    key: Word
    spec: JobSpec
    request: Request
    array: Array | None = None
    after: tuple[Dependency, ...] = ()
    begin: Finite = 0.0
    delay: Finite = 0.0


class Submit(Message, frozen=True, tag="submit"):
    """Take these jobs, all or none; answered once on disk. `watch`: send JobUpdate for them from then on."""

    id: Number
    jobs: tuple[Submission, ...]
    watch: bool = False


class Submitted(Message, frozen=True, tag="submitted"):
    """The jobs' ids, or the groups', in the order of the submissions; `fit` is how many nodes of `nodes` could ever run
    the first."""

    id: Number
    jobs: tuple[str, ...]
    fit: Count = 0
    nodes: Count = 0


class Failed(Message, frozen=True, tag="failed"):
    """A request could not be done: what, why, what to try; `code` is a short stable word (unknown-job, never-fits,
    bad-value, not-allowed, unavailable, busy, internal)."""

    id: Number
    code: str
    what: str
    why: str = ""
    hint: str = ""


class Done(Message, frozen=True, tag="done"):
    """A request was done; `text` where there is something to say."""

    id: Number
    text: str = ""


class Watch(Message, frozen=True, tag="watch"):
    """Send JobUpdate for these jobs (id, unique prefix, name or `last`) now and whenever they change.
    `whole`: for groups send GroupUpdate, and nothing of their members."""

    id: Number
    jobs: tuple[str, ...]
    whole: bool = False


class JobUpdate(Message, frozen=True, tag="job-update"):
    """A watched job as it stands now."""

    job: JobView


class GroupUpdate(Message, frozen=True, tag="group-update"):
    """A watched group as it stands now; told when it has changed, at most five times a second, until it has ended."""

    group: GroupView


class Cancel(Message, frozen=True, tag="cancel"):
    """End these jobs, all or none; taken once it is on disk. Answered by Done, or by Failed if one is not known.
    Without `jobs`: all that live of this `user` (or, where it is said, of `every` user), in one of these `states`."""

    id: Number
    jobs: tuple[str, ...]
    reason: str = ""
    grace: Finite = -1.0
    user: str = ""
    states: tuple[State, ...] = ()
    every: bool = False


class SignalJob(Message, frozen=True, tag="signal-job"):
    """Send a signal to a running job."""

    id: Number
    job: str
    signal: Code


class ListJobs(Message, frozen=True, tag="list-jobs"):
    """Jobs, at most `limit`: those not ended, the newest first, and with `ended` then the others, the newest end first.
    `past`: the list goes on behind the job that had ended then (0: not yet), was submitted then, and has this id.
    `fold`: groups as wholes, without their members. `boosts`, `holds`: those alone. `failed`: of those that have ended,
    only those that failed (see `has_failed`), and of groups those that have some."""

    id: Number
    ended: bool = False
    states: tuple[State, ...] = ()
    user: str = ""
    limit: Code = 1000
    past: tuple[Finite, Finite, str] | None = None
    fold: bool = False
    boosts: bool = False
    failed: bool = False
    holds: bool = False


class Jobs(Message, frozen=True, tag="jobs"):
    """Jobs as they stand, and groups as wholes; stories are left out of long lists."""

    id: Number
    jobs: tuple[JobView, ...]
    more: bool = False
    groups: tuple[GroupView, ...] = ()


class ShowJobs(Message, frozen=True, tag="show-jobs"):
    """These jobs whole (id, unique prefix, name or `last`), with their stories. Answered by Jobs, where a group is one
    of its `groups`; with `members` there are its members too, in short."""

    id: Number
    jobs: tuple[str, ...]
    members: bool = False
