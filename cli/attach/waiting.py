"""Waiting for jobs and groups to end. A group is watched as a whole, so a hundred thousand members cost no more than a
few numbers now and then. A lost connection is made again."""

import time
from typing import Any

from distributed_grid.cli.attach.progress import Count, Progress
from distributed_grid.cli.context import Invocation
from distributed_grid.protocol.groups import GroupView
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import Failed, GroupUpdate, Jobs, JobUpdate, ShowJobs, Watch

MEMBERS_TOLD = 1000
"""Of larger groups the members are not asked for one by one."""


class Waiting:
    """What these references mean, as it stands; `wait` returns when all of it has ended. `until`: at the latest."""

    def __init__(self, invocation: Invocation, refs: tuple[str, ...], until: float | None, progress: bool) -> None:
        self.jobs: dict[str, JobView] = {}
        self.groups: dict[str, GroupView] = {}
        self._invocation = invocation
        self._until = until
        self._progress = Progress(invocation) if progress else None
        self._connection = invocation.connect()
        answer: Jobs = self._connection.call(ShowJobs(id=self._connection.number(), jobs=refs))
        self.jobs = {view.id: view for view in answer.jobs}
        self.groups = {view.id: view for view in answer.groups}

    def wait(self) -> bool:
        """Wait for the end of all. False: the time is up."""
        from distributed_grid.cli.connection import ConnectionLost

        watched = False
        try:
            while not self._over():
                left = self._left()
                if left is not None and left <= 0:
                    return False
                try:
                    if not watched:
                        names = (*self.jobs, *self.groups)
                        self._connection.send(Watch(id=self._connection.number(), jobs=names, whole=True))
                        watched = True
                    for message in self._connection.receive(min(left, 1.0) if left is not None else 1.0):
                        self._heard(message)
                except ConnectionLost as lost:
                    watched = False
                    if not self._reconnect(lost.why):
                        return False
                self._show()
            self._show(over=True)
            return True
        finally:
            if self._progress is not None:
                self._progress.close()

    def members(self) -> list[JobView]:
        """The jobs, and the members of groups that are not too large, as they ended."""
        small = tuple(view.id for view in self.groups.values() if view.count <= MEMBERS_TOLD)
        found = list(self.jobs.values())
        for name in small:
            ask = ShowJobs(id=self._connection.number(), jobs=(name,), members=True)
            found += self._connection.call(ask).jobs
        return found

    def close(self) -> None:
        """Leave."""
        self._connection.close()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        ended = all(view.state is State.ENDED for view in self.jobs.values())
        return ended and all(view.ended for view in self.groups.values())

    def _left(self) -> float | None:
        return None if self._until is None else self._until - time.monotonic()

    def _heard(self, message: Any) -> None:
        match message:
            case JobUpdate(view) if view.id in self.jobs:
                self.jobs[view.id] = view
            case GroupUpdate(view):
                self.groups[view.id] = view
            case Failed():
                from distributed_grid.cli.connection import Denied

                raise Denied(message)

    def _show(self, over: bool = False) -> None:
        if self._progress is not None:
            count = Count()
            for job in self.jobs.values():
                count.add(job)
            for group in self.groups.values():
                count.add(group)
            self._progress.show(count, over)

    def _reconnect(self, why: str) -> bool:
        from distributed_grid.cli.connection import Unreachable

        self._invocation.say(f"connection lost ({why}), trying again")
        self._connection.close()
        pause = 0.05
        while True:
            left = self._left()
            if left is not None and left <= 0:
                return False
            time.sleep(pause if left is None else max(0.0, min(pause, left)))
            pause = min(2 * pause, 2.0)
            try:
                self._connection = self._invocation.connect()
                return True
            except Unreachable:
                continue
