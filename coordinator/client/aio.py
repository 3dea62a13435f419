"""The public asyncio client of a grid.

    async with GridClient("ws://127.0.0.1:7433") as grid:
        result = await grid.run("python train.py", gpus=1, priority="high")

It reconnects by itself and says again what was not answered, which is safe: a job is submitted under a key of its own,
so however often that is said, it is one job.
"""

import getpass
import secrets
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from distributed_grid.coordinator.client.downloads import BadAnswer, Listed, Rules, compared
from distributed_grid.coordinator.client.jobs import describe_job
from distributed_grid.coordinator.client.output import JobResult, collect, fetch_files, ship_directory, stream_output
from distributed_grid.coordinator.client.session import (
    ConnectionLost,
    GridUnavailable,
    RequestRefused,
    Session,
    Watches,
)
from distributed_grid.coordinator.client.shipping import HashCache, ShippingError
from distributed_grid.protocol.boosts import DURATION
from distributed_grid.protocol.codec import BULK_BYTES, encode
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import GroupView
from distributed_grid.protocol.jobs import JobView, Priority, Request, State
from distributed_grid.protocol.messages import (
    AskWhy,
    Boosts,
    Cancel,
    Done,
    DrainNodes,
    FileEntry,
    Files,
    GetReceipts,
    GetShared,
    GetShares,
    GetStatus,
    Jobs,
    LabelNodes,
    ListBoosts,
    ListJobs,
    Receipts,
    RequestBoost,
    Shared,
    Shares,
    ShowJobs,
    SignalJob,
    Status,
    Submission,
    Submit,
    Submitted,
    UndrainNodes,
    WantFiles,
    Why,
)
from distributed_grid.protocol.messages.operator import Receipt
from distributed_grid.protocol.nodes import NodeView
from distributed_grid.protocol.placement import Walls
from distributed_grid.protocol.resources import ResourceType
from distributed_grid.protocol.text import parse_duration

__all__ = [
    "BadAnswer",
    "ConnectionLost",
    "GridClient",
    "GridUnavailable",
    "JobResult",
    "RequestRefused",
    "ShippingError",
    "describe_job",
]

_GROUP_BYTES = BULK_BYTES // 4
DEFAULT_URL = "ws://127.0.0.1:7433"


def this_user() -> str:
    """The name this process's jobs run under."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


class GridClient:
    """One connection to a coordinator. Use it as `async with GridClient(url) as grid`.

    `patience` is how long (seconds) a lost coordinator is waited for before GridUnavailable is raised; the first
    connect is tried once.
    """

    def __init__(self, url: str = DEFAULT_URL, *, user: str = "", patience: float = 300.0) -> None:
        self.url = url
        self.user = user or this_user()
        self._watches = Watches(lambda message: self._session.ask(message), lambda: self._session.number())
        watches = self._watches
        self._session = Session(url, self.user, patience, watches.update, watches.renew, watches.fail)
        self._hashes = HashCache()

    async def connect(self) -> None:
        """Connect. Raises GridUnavailable where nobody answers."""
        await self._session.open()
        if self._session.welcome is not None:
            self.user = self._session.welcome.user or self.user

    async def close(self) -> None:
        """Leave; jobs run on."""
        await self._session.close()

    async def __aenter__(self) -> "GridClient":
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    async def submit(self, command: str | Sequence[str], **options: Any) -> str:
        """Submit one job (options as in `describe_job`) and return its id, once it is on the coordinator's disk."""
        return (await self.submit_many([describe_job(command, **options)]))[0]

    async def submit_many(self, jobs: Sequence[Submission]) -> list[str]:
        """Submit jobs and return their ids in order. They travel in groups; one that is refused takes its group with
        it, and those submitted before stay."""
        ids: list[str] = []
        for group in _groups(jobs):
            answer = await self._session.ask(Submit(id=self._session.number(), jobs=group))
            ids += answer.jobs
        return ids

    async def run(self, command: str | Sequence[str], **options: Any) -> JobResult:
        """Submit one job, wait for its end, and return its result with all of its output (up to 16 MiB a stream)."""
        return await self.result(await self.submit(command, **options))

    async def result(self, job: str) -> JobResult:
        """Wait for a job's end and return its result with its output."""
        return await collect(self._session, self._watches, await self.wait(job))

    async def wait(self, job: str) -> JobView:
        """The job (id, unique prefix, name or `last`) once it has ended."""
        view = await self.show(job)
        async with aclosing(self._watches.follow(view)) as views:
            async for view in views:  # noqa: B007
                pass
        return view

    async def follow(self, job: str) -> AsyncGenerator[JobView, None]:
        """The job now and whenever it changes, until it has ended."""
        async with aclosing(self._watches.follow(await self.show(job))) as views:
            async for view in views:
                yield view

    async def stream(self, job: str) -> AsyncGenerator[tuple[str, bytes], None]:
        """The job's output from its beginning, as (`stdout` or `stderr`, bytes), until both have ended. It goes on
        where it was after a lost connection, a restarted coordinator or agent."""
        async with aclosing(stream_output(self._session, self._watches, await self.show(job))) as pieces:
            async for piece in pieces:
                yield piece

    async def logs(self, job: str) -> tuple[bytes, bytes]:
        """All of an ended job's stdout and stderr, waiting for its end (up to 16 MiB each, the last ones)."""
        result = await self.result(job)
        return result.stdout_bytes, result.stderr_bytes

    async def show(self, job: str) -> JobView:
        """A job as it stands, with its story."""
        return await self._session.show(job)

    async def jobs(
        self, *, ended: bool = False, states: Iterable[State] = (), user: str = "", limit: int = 1000
    ) -> list[JobView]:
        """Jobs, at most `limit`: those that live, the newest first, then with `ended` the others, the newest end
        first."""
        number = self._session.number()
        ask = ListJobs(id=number, ended=ended, states=tuple(states), user=user, limit=limit)
        return list((await self._session.ask_all(ask)).jobs)

    async def arrays(self, *, ended: bool = False, user: str = "", limit: int = 1000) -> list[GroupView]:
        """Arrays as wholes, at most `limit`: those that live, then with `ended` the others."""
        ask = ListJobs(id=self._session.number(), ended=ended, user=user, limit=limit, fold=True)
        return list((await self._session.ask(ask)).groups)

    async def show_array(self, array: str) -> GroupView:
        """An array as it stands."""
        answer: Jobs = await self._session.ask(ShowJobs(id=self._session.number(), jobs=(array,)))
        if not answer.groups:
            raise BadValue(f"{array} is no array", hint="`show` is for single jobs")
        return answer.groups[0]

    async def members(self, array: str) -> list[JobView]:
        """The jobs of an array as they stand, in short."""
        ask = ShowJobs(id=self._session.number(), jobs=(array,), members=True)
        return list((await self._session.ask(ask)).jobs)

    async def cancel(self, *jobs: str, reason: str = "", grace: float | None = None) -> None:
        """End these jobs: SIGTERM, `grace` seconds (none: each job's own), SIGKILL. Returns once that is on disk."""
        seconds = -1.0 if grace is None else grace
        await self._session.ask(Cancel(id=self._session.number(), jobs=jobs, reason=reason, grace=seconds))

    async def signal(self, job: str, signum: int) -> None:
        """Send a signal to a running job, once. Raises ConnectionLost where it is not known whether that was done."""
        await self._session.ask(SignalJob(id=self._session.number(), job=job, signal=signum), retry=False)

    # --- boosts -------------------------------------------------------------------------------------------------------

    async def request_boost(
        self,
        target: str,
        kind: ResourceType,
        amount: float,
        *,
        priority: Priority = Priority.NORMAL,
        duration: float = DURATION,
        source: str = "",
        exclusive: bool = False,
        walls: Walls = Walls.NONE,
    ) -> str:
        """Ask for a boost of so many cores, GPUs or GB for `duration` seconds, and return its id, once it is on the
        coordinator's disk. It is a job: `follow` tells how it goes on, and it is lent once it runs. `exclusive`: for
        programs that use its placement group alone. `walls`: from a node with this level or a stronger one."""
        asked = RequestBoost(
            id=self._session.number(),
            key=secrets.token_hex(16),
            target=target,
            kind=kind,
            amount=amount,
            priority=priority,
            duration=duration,
            source=source,
            exclusive=exclusive,
            walls=walls,
        )
        answer: Submitted = await self._session.ask(asked)
        return answer.jobs[0]

    async def boosts(self, target: str = "") -> Boosts:
        """The boosts that have not ended, for all nodes or one, and what Ray shows."""
        answer: Boosts = await self._session.ask_all(ListBoosts(id=self._session.number(), target=target))
        return answer

    # --- the grid -----------------------------------------------------------------------------------------------------

    async def status(self) -> Status:
        """How the grid is."""
        answer: Status = await self._session.ask_all(GetStatus(id=self._session.number()))
        return answer

    async def nodes(self) -> list[NodeView]:
        """The nodes."""
        return list((await self.status()).nodes)

    async def shared(self, node: str = "") -> Shared:
        """What is offered and what is lent, on all nodes or one."""
        answer: Shared = await self._session.ask_all(GetShared(id=self._session.number(), node=node))
        return answer

    async def shares(self) -> Shares:
        """Who holds how much, and who is next (docs/shares.md)."""
        answer: Shares = await self._session.ask(GetShares(id=self._session.number()))
        return answer

    async def drain(self, *nodes: str, reason: str = "", deadline: float | str | None = None) -> str:
        """Give these nodes no new job; what still runs there after `deadline` (seconds or text such as `"30m"`; 0: now)
        is taken back. Returns what came of it, once it is on disk."""
        seconds = -1.0 if deadline is None else parse_duration(str(deadline), zero=True)
        return await self._order(DrainNodes(id=self._session.number(), nodes=nodes, reason=reason, deadline=seconds))

    async def undrain(self, *nodes: str) -> str:
        """Give these nodes jobs again."""
        return await self._order(UndrainNodes(id=self._session.number(), nodes=nodes))

    async def label(self, *nodes: str, labels: Mapping[str, str | None]) -> str:
        """Give these nodes these labels; None removes one."""
        return await self._order(LabelNodes(id=self._session.number(), nodes=nodes, labels=dict(labels)))

    async def _order(self, message: DrainNodes | UndrainNodes | LabelNodes) -> str:
        answer: Done = await self._session.ask(message)
        return answer.text

    async def receipts(self, job: str = "", node: str = "", limit: int = 100) -> list[Receipt]:
        """What was preempted, the newest first: where this job took a place or gave one, or on this node."""
        number = self._session.number()
        answer: Receipts = await self._session.ask(GetReceipts(id=number, job=job, node=node, limit=limit))
        return list(answer.receipts)

    async def why(self, job: str = "", request: Request | None = None) -> Why:
        """Why a job is where it is, or where a request would go."""
        answer: Why = await self._session.ask(AskWhy(id=self._session.number(), job=job, request=request))
        return answer

    # --- files --------------------------------------------------------------------------------------------------------

    async def ship(self, directory: str | Path) -> str:
        """Send what of a directory the coordinator has not got yet; the hash is for `bundle=` of jobs. Raises
        ShippingError."""
        return (await ship_directory(self._session, Path(directory), self._hashes)).hash

    async def files(self, job: str, *globs: str) -> list[FileEntry]:
        """The files in the job's working directory that match any of the globs (none: all). A file whose path is not
        UTF-8 has its bytes in `raw`. Raises BadAnswer where the node lists others."""
        view = await self.show(job)
        return [file.entry for file in (await self._listed(view, globs or ("**",))).files]

    async def fetch(
        self, job: str, *globs: str, into: str | Path = ".", force: bool = False, executable: bool = False
    ) -> list[Path]:
        """Bring the matching files of a job's working directory into a directory here; their paths. What changed here
        since the job was submitted is left as it is unless `force` is true: the others are written, and GridError says
        which are not. Hidden files are brought where a pattern names the dot. Executable bits are kept with
        `executable`. Raises BadAnswer where the node answers with what was not asked for."""
        view = await self.show(job)
        listed = await self._listed(view, globs or ("**",))
        rules = Rules(min(view.submitted, time.time()), force, executable)
        return await fetch_files(self._session, view, listed, Path(into), rules)

    async def _listed(self, view: JobView, globs: tuple[str, ...]) -> Listed:
        question = WantFiles(id=self._session.number(), allocation=view.allocation, globs=globs)
        answer: Files = await self._session.ask(question)
        if answer.error:
            raise GridUnavailable(f"the files of {view.id} cannot be listed", why=answer.error)
        return compared(answer, globs, view.node)


def _groups(jobs: Sequence[Submission]) -> Iterable[tuple[Submission, ...]]:
    """The jobs in groups that each fit a frame."""
    group: list[Submission] = []
    size = 0
    for job in jobs:
        length = len(encode(0, [job]))
        if length > BULK_BYTES - 1024:
            raise BadValue("a job is too large to submit", why=f"its command and environment have {length} bytes")
        if group and size + length > _GROUP_BYTES:
            yield tuple(group)
            group, size = [], 0
        group.append(job)
        size += length
    if group:
        yield tuple(group)
