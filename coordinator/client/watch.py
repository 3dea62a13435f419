"""Jobs somebody waits for, kept in step with the coordinator across reconnects."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import JobUpdate, Watch


@dataclass(slots=True)
class _Watched:
    """A job with those who wait for its next change."""

    view: JobView
    change: "asyncio.Future[None]"
    followers: int = 0

    def fail(self, error: GridError) -> None:
        if not self.change.done():
            self.change.set_exception(error)
            self.change.exception()  # so that asyncio does not complain where nobody waits just now


class Watches:
    """`ask` asks the coordinator, `number` makes a number for that."""

    def __init__(self, ask: Callable[[Any], Awaitable[Any]], number: Callable[[], int]) -> None:
        self._ask = ask
        self._number = number
        self._jobs: dict[str, _Watched] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def follow(self, view: JobView) -> AsyncGenerator[JobView, None]:
        """The job as it stands and whenever it changes, until it has ended. Changes that follow each other faster than
        they are read are told as one."""
        if view.state is State.ENDED:
            yield view
            return
        watched = self._begin(view)
        try:
            while True:
                view, change = watched.view, watched.change
                yield view
                if view.state is State.ENDED:
                    return
                await asyncio.shield(change)
        finally:
            self._end(watched)

    def _begin(self, view: JobView) -> _Watched:
        watched = self._jobs.get(view.id)
        if watched is None:
            watched = self._jobs[view.id] = _Watched(view, asyncio.get_running_loop().create_future())
            self._subscribe(view.id)
        watched.followers += 1
        return watched

    def _end(self, watched: _Watched) -> None:
        watched.followers -= 1
        if not watched.followers:
            self._jobs.pop(watched.view.id, None)

    def update(self, message: JobUpdate) -> None:
        """The coordinator told how a job stands."""
        watched = self._jobs.get(message.job.id)
        if watched is not None:
            watched.view = message.job
            change, watched.change = watched.change, asyncio.get_running_loop().create_future()
            if not change.done():
                change.set_result(None)

    def renew(self) -> None:
        """There is a new connection: say again who is watched."""
        for job, watched in self._jobs.items():
            if watched.view.state is not State.ENDED:
                self._subscribe(job)

    def _subscribe(self, job: str) -> None:
        task = asyncio.create_task(self._watch(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, job: str) -> None:
        try:
            await self._ask(Watch(id=self._number(), jobs=(job,)))
        except GridError as error:
            if watched := self._jobs.get(job):
                watched.fail(error)

    def fail(self, error: GridError) -> None:
        """No update will ever come again: tell those who wait."""
        for watched in self._jobs.values():
            watched.fail(error)
