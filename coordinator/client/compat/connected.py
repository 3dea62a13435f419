"""The bases of the guides' classes: their client connection, which they open or are given; and how they borrow and give
back, as a boost or as a hold."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from logging import Logger
from typing import Self

from distributed_grid.config.settings import ClusterConfig, load
from distributed_grid.coordinator.client.aio import GridClient
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.jobs import Cause, JobSpec, JobView, State

CANCEL_SECONDS = 5.0
"""Time to cancel what was asked for by a caller who was cancelled (s)."""
NO_NODE = "No nodes have sufficient available resources"
"""What the guides say where nobody has it."""


class WithClient:
    """Base class that connects on first use; `async with` and `shutdown()` disconnect. A client that is not its `own`
    is neither connected nor closed here: its owner does that."""

    def __init__(self, client: GridClient, own: bool) -> None:
        self.client = client
        self._own = own

    async def initialize(self) -> None:
        """Connect now. Raises GridUnavailable if no coordinator answers."""
        if self._own:
            await self.client.connect()

    async def shutdown(self) -> None:
        """Disconnect. What was started or borrowed stays."""
        if self._own:
            await self.client.close()

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()


class Connected(WithClient):
    """Made with a configuration (default: the one that `grid` would find), or with a client."""

    def __init__(self, cluster_config: ClusterConfig | None = None, client: GridClient | None = None) -> None:
        self.config = cluster_config or load()
        one = client or GridClient(self.config.client_url(), trusts=self.config.coordinator.user)
        super().__init__(one, client is None)


async def borrowed(
    client: GridClient, request: Awaitable[str], states: Collection[State], what: str, log: Logger
) -> str | None:
    """The id of what is requested (`what` it is, for an error) once it is in one of these states; None if no node has
    it now, or ever could: the log says why. Raises BadValue for an invalid request, GridError if it ends before. If
    the caller is cancelled, it is cancelled too."""
    asking = asyncio.ensure_future(request)
    try:
        view = await _settled(client, await asyncio.shield(asking), states)
    except RequestRefused as refused:
        if refused.code == "bad-value":
            raise BadValue(refused.what, refused.why, refused.hint) from None
        if refused.code != "never-fits":
            raise
        log.warning("%s: %s", NO_NODE, refused.what)
        return None
    except asyncio.CancelledError:
        with contextlib.suppress(GridError, TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await client.cancel(await asking, reason="its caller was cancelled")
        raise
    if view.state in states:
        return view.id
    outcome = view.outcome
    why = outcome.text if outcome is not None else ""
    if outcome is not None and outcome.cause is Cause.NOT_PLACED:
        log.warning("%s: %s", NO_NODE, why)
        return None
    raise GridError(f"the {what} {view.id} was not granted", why=why, hint=f"grid job events {view.id}")


async def _settled(client: GridClient, job: str, states: Collection[State]) -> JobView:
    """The job, once it is in one of these states or has ended."""
    async with aclosing(client.follow(job)) as views:
        async for view in views:
            if view.state in states:
                break
    return view


async def known(client: GridClient, job: str | None, log: Logger, what: str) -> JobView | None:
    """Return the job with this id or name. None if there is none; the log then says so, and that there was nothing to
    do (`what`). Prefixes of ids and `last` are not accepted here: they are for people, and a program has the whole id.
    The result is None also for `job` None, which a request that was not granted returns."""
    if job is None:
        log.warning("nothing to %s: no id is given, as after a request that was not granted", what)
        return None
    try:
        view = await client.show(job)
    except RequestRefused as refused:
        if refused.code != "unknown-job":
            raise
        log.warning("nothing to %s: %s%s", what, refused.what, f" ({refused.hint})" if refused.hint else "")
        return None
    if job not in (view.id, view.spec.name):
        log.warning("nothing to %s: no job %r (an id or name in full is needed)", what, job)
        return None
    return view


async def given_back(
    client: GridClient, job: str | None, other: str, fits: Callable[[JobSpec], bool], log: Logger
) -> bool:
    """Give back what was borrowed, by its id or name. True once that is on the coordinator's disk; False if it has
    ended or is unknown: the log says which is unknown. Raises BadValue for what does not fit: `other` says what it is
    not."""
    view = await known(client, job, log, "release")
    if view is None:
        return False
    if view.id != job and (not fits(view.spec) or view.state is State.ENDED):  # an older hold of that name may live
        held = [one for one in await client.holds() if (one.spec.name, one.user) == (job, view.user)]
        view = next((one for one in held if fits(one.spec)), view)
    if not fits(view.spec):
        raise BadValue(f"{view.id} is {other}", why="it is a job", hint=f"grid cancel {view.id}")
    if view.state in (State.STOPPING, State.ENDED):
        return False
    await client.cancel(view.id, reason="released")
    return True
