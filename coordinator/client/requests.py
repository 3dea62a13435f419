"""The requests to a grid, each defined once for the asyncio and the blocking client.

A request is a generator (`Steps`): it yields messages, gets their answers, and returns the result. The clients run it;
it uses no connection, clock or thread. Messages that most commands do not need are written as `messages.NAME`, which
loads them at first use.
"""

import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import msgspec

from distributed_grid.coordinator.client.submission import as_argv, check, describe_hold, describe_job, pairs
from distributed_grid.protocol import messages
from distributed_grid.protocol.boosts import DURATION
from distributed_grid.protocol.codec import BULK_BYTES, encode
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import Array, GroupView, indexes, member_id
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.jobs import (
    JobView,
    Priority,
    Request,
    State,
)
from distributed_grid.protocol.messages import Cancel, Done, Jobs, ListJobs, ShowJobs, SignalJob, Submission, Submit
from distributed_grid.protocol.nodes import NodeView
from distributed_grid.protocol.placement import Walls
from distributed_grid.protocol.resources import (
    Resources,
    ResourceType,
)
from distributed_grid.protocol.text import parse_duration

if TYPE_CHECKING:
    import inspect

_GROUP_BYTES, _GROUP_JOBS = BULK_BYTES // 4, 4000
_NAMED = 1000
"""How many jobs a message names at most."""
_MEMBER_BYTES = BULK_BYTES // 4
_FEATURES, _LABELS = '{"batch_size": 64}', '{"zone": "attic"}'
T = TypeVar("T")
Steps = Generator[Any, Any, T]
"""Yields a message, for its answer (it gets a number where its id is 0), or one of the steps below."""


class Once(msgspec.Struct, frozen=True):
    """A message that is not repeated on another connection; evaluates to its answer. After ConnectionLost it is not
    known whether it took effect."""

    message: Any


class Post(msgspec.Struct, frozen=True):
    """A message that is not answered, for nothing, once it has left."""

    message: Any


class Together(msgspec.Struct, frozen=True):
    """Messages that are sent together; evaluates to all their answers. `most`: maximum number of unanswered messages
    (0: no limit)."""

    messages: Iterable[Any]
    most: int = 0


class Pause(msgspec.Struct, frozen=True):
    """Time to pass, for nothing."""

    seconds: float


class Until(msgspec.Struct, frozen=True):
    """A job, for the first view of it that this is true of."""

    view: JobView
    reached: Callable[[JobView], bool]


class Returned(msgspec.Struct, frozen=True):
    """The result of a request."""

    value: Any


class Documented:
    """The `__wrapped__` of a client's method, which `help` and notebooks read: the arguments of the request that it
    makes, after `self`, and its return type. It is computed on first use, since that costs more than the import of the
    client."""

    def __init__(self, steps: Callable[..., Steps[Any]]) -> None:
        self._steps = steps

    def __call__(self, *args: Any, **kwargs: Any) -> Steps[Any]:
        """The request."""
        return self._steps(*args, **kwargs)

    @property
    def __signature__(self) -> "inspect.Signature":
        import inspect

        found = inspect.signature(self._steps)
        returned = found.return_annotation
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        return found.replace(
            parameters=[own, *found.parameters.values()],
            return_annotation=returned[len("Steps[") : -1] if isinstance(returned, str) else get_args(returned)[2],
        )


def advance(steps: Steps[Any], answer: Any, error: Exception | None) -> Any:
    """Continue a request with the answer to its last step, or with the error. Returns the next step, or Returned."""
    try:
        return steps.send(answer) if error is None else steps.throw(error)
    except StopIteration as end:
        return Returned(end.value)


def pages(message: Any) -> Steps[Any]:
    """A list, over as many answers as it takes."""
    found = [(yield message)]
    while (message := messages.next_page(message, found[-1], 0)) is not None:
        found.append((yield message))
    return messages.joined(*found)


# --- jobs -------------------------------------------------------------------------------------------------------------


def submit(command: str | Sequence[str], **options: Any) -> Steps[str]:
    """Submit one job (options as in `describe_job`) and return its id, once it is on the coordinator's disk."""
    return (yield from _submitted(describe_job(command, **options)))


def submit_one(command: str | Sequence[str], **options: Any) -> Steps[str]:
    """Submit as `submit` does what is to have one result. Raises BadValue for an array or a gang."""
    described = describe_job(command, **options)
    if described.array is not None or described.request.gang:
        many = "an array" if described.array is not None else "a gang"
        hint = "`submit` it, and ask for the result of each member"
        raise BadValue(f"{many} is many jobs", why="this is for one, and its result", hint=hint)
    return (yield from _submitted(described))


def _submitted(described: Submission) -> Steps[str]:
    (group,) = _groups([described])
    job: str = (yield Submit(id=0, jobs=group)).jobs[0]
    return job


def submit_many(jobs: Iterable[Submission]) -> Steps[list[str]]:
    """Submit jobs and return their ids in order. They travel in groups, each of which is accepted as a whole or not at
    all. If no job names another, a group leaves while the one before is stored: so where one is refused, the groups
    before it, and at most one behind it, are accepted. Under the same keys they can be submitted again. Raises BadValue
    for what `describe_job` did not make."""
    check("jobs", jobs, Iterable, "a list of what describe_job(command, …) made")
    listed = tuple(jobs)
    for job in listed:
        if not isinstance(job, Submission):
            raise BadValue(f"{job!r:.80} is not a described job", hint="make it with describe_job(command, …)")
    groups = (Submit(id=0, jobs=group) for group in _groups(listed))
    named = any(job.after or job.request.constraints for job in listed)
    answers = yield Together(groups, most=1 if named else 2)
    return [one for answer in answers for one in answer.jobs]


def wait(job: str) -> Steps[JobView]:
    """The job (id, unique prefix, name or `last`) once it has ended."""
    view = yield from show(job)
    ended: JobView = yield Until(view, lambda one: one.state is State.ENDED)
    return ended


def show(job: str) -> Steps[JobView]:
    """A job as it stands, with its story."""
    return only((yield ShowJobs(id=0, jobs=(job,))), job)


def only(answer: Jobs, ref: str) -> JobView:
    """The job of an answer about this reference. Raises BadValue where that means several."""
    if answer.groups:
        name = answer.groups[0].id
        raise BadValue(f"{name} is many jobs", why="this is for one", hint=f"name one of them, such as {name}_0")
    if len(answer.jobs) > 1:
        hint = f"name one of them, such as {answer.jobs[0].id}"
        raise BadValue(f"{ref} is {len(answer.jobs)} jobs", why="this is for one", hint=hint)
    return answer.jobs[0]


def jobs(
    *, ended: bool = False, states: Iterable[State] = (), user: str = "", limit: int = 1000
) -> Steps[list[JobView]]:
    """Jobs, at most `limit`: those that live, the newest first, then with `ended` the others, the newest end first."""
    check("states", states, Iterable, "a list of states")
    answer = yield from pages(ListJobs(id=0, ended=ended, states=tuple(states), user=user, limit=limit))
    return list(answer.jobs)


def arrays(*, ended: bool = False, user: str = "", limit: int = 1000) -> Steps[list[GroupView]]:
    """Arrays as wholes, at most `limit`: those that live, then with `ended` the others."""
    return list((yield ListJobs(id=0, ended=ended, user=user, limit=limit, fold=True)).groups)


def show_array(array: str) -> Steps[GroupView]:
    """An array as it stands."""
    answer: Jobs = yield ShowJobs(id=0, jobs=(array,))
    if not answer.groups:
        raise BadValue(f"{array} is no array", hint="`show` is for single jobs")
    return answer.groups[0]


def members(array: str) -> Steps[list[JobView]]:
    """The jobs of an array as they stand, in short. Of a large one the first may have changed before the last are
    told."""
    check("array", array, str, "its id or name")
    if not _is_part(array):
        groups = (yield ShowJobs(id=0, jobs=(array,))).groups
        if groups and groups[0].array is not None:
            return (yield from _members(groups[0].id, groups[0].array, len(encode(0, [*groups]))))
    return list((yield ShowJobs(id=0, jobs=(array,), members=True)).jobs)


def _members(group: str, array: Array, size: int) -> Steps[list[JobView]]:
    """The members of a group; `size`: about how many bytes one takes."""
    names = [member_id(group, index) for index in indexes(array.parts)]
    most = max(1, min(_NAMED, _MEMBER_BYTES // size))
    found: list[JobView] = []
    for at in range(0, len(names), most):
        found += (yield ShowJobs(id=0, jobs=tuple(names[at : at + most]), members=True)).jobs
    return found


def _is_part(array: str) -> bool:
    """Whether this may name some members of an array, such as `ARRAY_3-7,9`."""
    group, _, which = array.rpartition("_")
    return bool(group) and which[:1].isdecimal() and ("-" in which or "," in which)


def cancel(*jobs: str, reason: str = "", grace: float | None = None) -> Steps[None]:
    """End these jobs: SIGTERM, `grace` seconds (none: each job's own), SIGKILL. Returns once that is on disk. Of more
    than 1,000 those before one that is unknown end."""
    for at in range(0, max(1, len(jobs)), _NAMED):
        named = jobs[at : at + _NAMED]
        yield Cancel(id=0, jobs=named, reason=reason, grace=-1.0 if grace is None else grace)


def signal(job: str, signum: int) -> Steps[None]:
    """Send a signal to a running job, once. Raises ConnectionLost where it is not known whether that was done."""
    yield Once(SignalJob(id=0, job=job, signal=signum))


def why(job: str = "", request: Request | None = None, lasts: float = 0.0) -> "Steps[messages.Why]":
    """Explain why a job is where it is, or where a request would go. `lasts`: the maximum duration of the requested job
    in seconds, with its grace (0: it has no time limit)."""
    answer: messages.Why = yield messages.AskWhy(id=0, job=job, request=request, lasts=lasts)
    return answer


def predict(
    command: str | Sequence[str],
    features: Mapping[str, float] | None = None,
    *,
    within: float = 0.0,
    bundle: str = "",
    array: bool = False,
) -> "Steps[messages.Needs]":
    """Predict what a command of yours will need, by what runs like it used (docs/needs.md). `features`: numbers by
    name, such as a batch size, of which the first three count; `within`: how likely it runs for at most so many
    seconds; `bundle`: of `ship`, what is shipped with it (default: as much as with the last run like it); `array`: it
    is a member of an array."""
    found: messages.Needs = yield messages.Predict(
        0, messages.excerpt(as_argv(command)), bundle, array, pairs("features", features, _FEATURES), within
    )
    return found


def record_use(
    command: str | Sequence[str],
    features: Mapping[str, float] | None = None,
    *,
    seconds: float = 0.0,
    memory: int = 0,
    cores: float = 0.0,
    gpu_memory: int = 0,
    held: int = 0,
    ended: str = "done",
) -> Steps[None]:
    """Record a run that the grid did not see: seconds, the most memory (bytes), the most cores at once, the most GPU
    memory (bytes); 0: not known. `ended`: done, "out of memory" (of the `held` bytes), "time limit" or cut. It counts
    for your jobs alone."""
    words = messages.excerpt(as_argv(command))
    numbers = pairs("features", features, _FEATURES)
    yield messages.RecordUse(0, words, numbers, seconds, memory, cores, gpu_memory, held, ended)


def declare_node(
    name: str,
    whole: Resources,
    free: Resources | None = None,
    *,
    known: bool = False,
    kept: Iterable[ResourceType] = (),
    gpu_model: str = "",
    gpu_memory: int = 0,
    labels: Mapping[str, str] | None = None,
) -> Steps[str]:
    """Declare what a node without agent has, and how much of that is `free` (None: all): holds that name it take of
    that, and no job runs there. `known`: only what is free has changed of a node declared before, and of `kept` kinds
    as much is as before; `gpu_memory`: bytes of each GPU. What was answered."""
    left = whole if free is None else free
    check("kept", kept, Iterable, "a list of kinds of resources")
    answer: Done = yield messages.DeclareNode(
        0, name, whole, left, gpu_model, gpu_memory, pairs("labels", labels, _LABELS), known, tuple(kept)
    )
    return answer.text


def scaling() -> "Steps[messages.ScalingStatus]":
    """Machines that the grid creates by itself, its pools, and the plan of now (docs/scaling.md)."""
    answer: messages.ScalingStatus = yield messages.GetScaling(0)
    return answer


def create_machine(pool: str, type: str = "", why: str = "") -> Steps[str]:
    """Create a machine of a pool, within its limits, and return its name. Raises ConnectionLost if it is not known
    whether that was ordered."""
    from distributed_grid.protocol.scaling.plans import ScaleOrder

    answer: Done = yield Once(messages.OrderScaling(0, ScaleOrder.CREATE, pool, why, type))
    return answer.text


def end_machine(name: str, why: str = "") -> Steps[None]:
    """End a machine as soon as no job runs on it."""
    from distributed_grid.protocol.scaling.plans import ScaleOrder

    yield messages.OrderScaling(0, ScaleOrder.END, why=why, machine=name)


def make_token(role: Role, name: str, ttl: float, labels: Mapping[str, str] | None = None) -> Steps[str]:
    """A token by which a peer of this name joins, once, within `ttl` seconds."""
    answer: messages.TokenMade = yield Once(messages.MakeToken(0, role, name, ttl, 1, pairs("labels", labels, _LABELS)))
    return answer.token


def _groups(jobs: Sequence[Submission]) -> Iterator[tuple[Submission, ...]]:
    """The jobs in groups that each fit a frame."""
    for at in range(0, len(jobs), _GROUP_JOBS):
        yield from _halved(jobs[at : at + _GROUP_JOBS])


def _halved(jobs: Sequence[Submission]) -> Iterator[tuple[Submission, ...]]:
    length, half = len(encode(0, [*jobs])), len(jobs) // 2
    if length <= (_GROUP_BYTES if half else BULK_BYTES - 1024):
        yield tuple(jobs)
    elif half:
        yield from (*_halved(jobs[:half]), *_halved(jobs[half:]))
    else:
        raise BadValue("a job is too large to submit", why=f"its command and environment have {length} bytes")


# --- boosts -----------------------------------------------------------------------------------------------------------


def request_boost(
    target: str,
    kind: ResourceType,
    amount: float,
    *,
    priority: Priority = Priority.NORMAL,
    duration: float = DURATION,
    source: str = "",
    only_source: str = "",
    exclusive: bool = False,
    walls: Walls = Walls.NONE,
) -> Steps[str]:
    """Request a boost of `amount` cores, GPUs or GB for `duration` seconds, and return its id, once it is on the
    coordinator's disk. It is a job: use `follow` to observe it; it is lent once it runs. `source` is preferred,
    `only_source` the only node asked. `exclusive`: for programs that use its placement group alone. `walls`: from a
    node with this level or a stronger one."""
    answer = yield messages.RequestBoost(
        id=0,
        key=secrets.token_hex(16),
        target=target,
        kind=kind,
        amount=amount,
        priority=priority,
        duration=duration,
        source=source,
        only_source=only_source,
        exclusive=exclusive,
        walls=walls,
    )
    job: str = answer.jobs[0]
    return job


def boosts(target: str = "") -> "Steps[messages.Boosts]":
    """The boosts that have not ended, for all nodes or one, and what Ray shows."""
    answer: messages.Boosts = yield from pages(messages.ListBoosts(id=0, target=target))
    return answer


# --- holds ------------------------------------------------------------------------------------------------------------


def request_hold(**options: Any) -> Steps[str]:
    """Request a hold (options as in `describe_hold`, such as `cpus=4, duration="2h"`) and return its id, once it is on
    the coordinator's disk. It is a job: use `follow` to observe it; its resources are held once it runs, and `cancel`
    releases them."""
    return (yield from _submitted(describe_hold(**options)))


def holds() -> Steps[list[JobView]]:
    """The holds that have not ended, the newest first."""
    return list((yield from pages(ListJobs(id=0, holds=True))).jobs)


# --- the grid ---------------------------------------------------------------------------------------------------------


def status() -> "Steps[messages.Status]":
    """Return the status of the grid."""
    answer: messages.Status = yield from pages(messages.GetStatus(id=0))
    return answer


def nodes() -> Steps[list[NodeView]]:
    """The nodes."""
    return list((yield from status()).nodes)


def shared(node: str = "") -> "Steps[messages.Shared]":
    """Return the resources that are offered and lent, on all nodes or one."""
    answer: messages.Shared = yield from pages(messages.GetShared(id=0, node=node))
    return answer


def trends(node: str = "", window: str = "15m") -> "Steps[messages.Trends]":
    """Return the trends of the use of a node, with forecasts; or those of all nodes. `window`: 5m, 15m, 1h, 1d or
    1w."""
    from distributed_grid.protocol.history.trends import parse_window

    answer: messages.Trends = yield from pages(messages.GetTrends(id=0, node=node, window=parse_window(window)))
    return answer


def balancing() -> "Steps[messages.BalancingStatus]":
    """Return the state of rebalancing: mode, policy, the last moves."""
    answer: messages.BalancingStatus = yield from pages(messages.GetBalancing(id=0))
    return answer


def shares() -> "Steps[messages.Shares]":
    """Return the shares of all users, in the order of service (docs/shares.md)."""
    answer: messages.Shares = yield messages.GetShares(id=0)
    return answer


def ledger(user: str = "", node: str = "", days: int = 7) -> "Steps[messages.Loans]":
    """Return the loans between users (docs/shares.md): all of them, or those that a `user` lent or borrowed, or those
    on a `node`; by day for `days` days back."""
    answer: messages.Loans = yield messages.GetLoans(id=0, user=user, node=node, days=days)
    return answer


def quota(user: str = "") -> "Steps[messages.Quotas]":
    """Return your own rights and their use (docs/rights.md); for operators those of a `user`, or of all users and
    groups."""
    answer: messages.Quotas = yield messages.GetQuota(id=0, user=user)
    return answer


def set_rights(name: str = "", *, whose: str = "user", **rights: Any) -> Steps[str]:
    """Grant rights to a user, a `group`, or by `default` to everybody: `highest_priority`, `cores`, `memory` (GB, or
    text), `gpus`, `core_hours`, `gpu_hours`, `jobs_waiting` (each a number, or "unlimited"), `exclusive_boosts`,
    `reservations`. What is not named stays as it is. Returns what holds then, once it is on disk."""
    return str(
        (yield messages.SetRights(id=0, whose=_whose(whose), name=name, rights=messages.parse_rights(rights))).text
    )


def unset_rights(name: str = "", *, whose: str = "user") -> Steps[str]:
    """Take back all rights that operators have granted so: the configuration holds again."""
    return str((yield messages.SetRights(id=0, whose=_whose(whose), name=name, rights=None)).text)


def _whose(word: str) -> "messages.Whose":
    if word not in [*messages.Whose]:
        raise BadValue(f"rights cannot be given to a {word!r:.80}", hint=f"give {', '.join(messages.Whose)}")
    return messages.Whose(word)


def drain(*nodes: str, reason: str = "", deadline: float | str | None = None) -> Steps[str]:
    """Give these nodes no new job; what still runs there after `deadline` (seconds or text such as `"30m"`; 0: now) is
    taken back. Returns what came of it, once it is on disk."""
    seconds = -1.0 if deadline is None else parse_duration(str(deadline), zero=True)
    return str((yield messages.DrainNodes(id=0, nodes=nodes, reason=reason, deadline=seconds)).text)


def undrain(*nodes: str) -> Steps[str]:
    """Give these nodes jobs again."""
    return str((yield messages.UndrainNodes(id=0, nodes=nodes)).text)


def label(*nodes: str, labels: Mapping[str, str | None]) -> Steps[str]:
    """Give these nodes these labels; None removes one."""
    return str((yield messages.LabelNodes(id=0, nodes=nodes, labels=pairs("labels", labels, _LABELS))).text)


def receipts(job: str = "", node: str = "", limit: int = 100) -> "Steps[list[messages.Receipt]]":
    """Return the preemptions, the newest first: those in which this job took or gave a place, or those on this node."""
    return list((yield messages.GetReceipts(id=0, job=job, node=node, limit=limit)).receipts)


def renew(identity: Path) -> Steps[float]:
    """Get a new certificate for the identity in this folder. Returns in how many seconds to renew again (0: no
    certificate was given)."""
    from distributed_grid.identity.enrollment import RenewalRequest, renewal_after

    asked = RenewalRequest(identity)
    answer: messages.NewCertificate = yield messages.WantCertificate(id=0, request=asked.request)
    if not answer.certificate:
        return 0.0
    asked.keep(answer.certificate)
    return renewal_after(identity)
