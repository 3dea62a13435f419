"""`IntelligentScheduler`: places tasks by the grid's own scheduler, over one client connection. A task with a command
is a job; one without is a hold, for work that its caller starts."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed_grid.config.settings import ClusterConfig
from distributed_grid.coordinator.client.aio import GridClient
from distributed_grid.coordinator.client.compat.connected import Connected, known
from distributed_grid.coordinator.client.compat.sharing import ResourceSharingManager, units
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.coordinator.client.submission import HOLD_DURATION, describe_job
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.history.summary import performance
from distributed_grid.protocol.jobs import JobView, Priority, State
from distributed_grid.protocol.placement import Strategy
from distributed_grid.protocol.text import suggestion

log = logging.getLogger("distributed_grid.sharing")


@dataclass(frozen=True, kw_only=True)
class TaskRequest:
    """A task: what it needs, and where it may go. `task_id` is its name. With a `command` it runs as a job (`directory`
    is shipped; None: nothing is); without one its place is held for `duration` (seconds, or `"30m"`), for the caller's
    own use. `affinity`: where these jobs are; `anti_affinity`: where they are not; `nodes` are preferred."""

    task_id: str | int = ""
    command: str | Sequence[str] | None = None
    cpu: float = 1.0
    memory_gb: float = 0.0
    gpu: float = 0.0
    priority: Priority | str = Priority.MEDIUM
    strategy: str | None = None
    nodes: str | Sequence[str] = ()
    affinity: str | Sequence[str] = ()
    anti_affinity: str | Sequence[str] = ()
    duration: float | str = HOLD_DURATION
    directory: str | Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)


class IntelligentScheduler(Connected):
    """Schedules tasks. It connects on first use; `async with` and `shutdown()` disconnect, and tasks go on. A given
    `client` is used as it is: its owner connects and closes it."""

    def __init__(self, cluster_config: ClusterConfig | None = None, client: GridClient | None = None) -> None:
        super().__init__(cluster_config, client)
        self._sharing = ResourceSharingManager(self.config, self.client)
        self._tasks: dict[str, None] = {}

    async def schedule_task(self, request: TaskRequest | Mapping[str, Any]) -> str | None:
        """Schedule a task (a TaskRequest, or its fields by name) and return its id, once that is on the coordinator's
        disk: a job waits for its place; of a task without a command None if no node has it now, and the log says why.
        Raises BadValue for an invalid request, RequestRefused for what no node could ever run."""
        self.config.require_sharing()
        task = _task(request)
        await self.initialize()
        if task.command is None:
            described = describe_job(("hold",), **_asked(task))
            found = await self._sharing.hold(
                described.request.resources,
                duration=task.duration,
                **{name: value for name, value in _asked(task).items() if name not in ("cpus", "memory", "gpus")},
            )
        else:
            bundle = ""
            if task.directory is not None:
                if not isinstance(task.directory, str | Path):
                    raise BadValue(f"{task.directory!r:.80} is no directory", hint="give its path")
                bundle = await self.client.ship(task.directory, ceiling=self.config.shipping.ceiling)
            found = await self.client.submit(task.command, env=task.env, bundle=bundle, **_asked(task))
        if found is not None:
            self._tasks[found] = None
        return found

    async def complete_task(self, task_id: str | None) -> bool:
        """The task (an id or name in full) is done: what it holds is given back, and its job, if that still runs, is
        ended. True once that is on the coordinator's disk; False if it had ended or is unknown."""
        await self.initialize()
        view = await known(self.client, task_id, log, "complete")
        if view is None:
            self._tasks.pop(task_id or "", None)
            return False
        self._tasks.pop(view.id, None)
        if view.state is State.ENDED:
            return False
        await self.client.cancel(view.id, reason="completed")
        return True

    async def get_scheduling_status(self) -> dict[str, Any]:
        """Plain values: the `tasks` of this scheduler that were not completed, by id, with state, node, what they ask
        and the `confidence` of their place (0 to 1; None: they wait, and `reason` says why); live `jobs` of the grid
        by state; the `strategies`; and the `performance`."""
        await self.initialize()
        status = await self.client.status()
        tasks: dict[str, Any] = {}
        for name in tuple(self._tasks):
            if (view := await self._known(name)) is not None:
                tasks[name] = await self._plain(view)
        return {
            "tasks": tasks,
            "jobs": dict(status.counts),
            "strategies": [one.value for one in Strategy],
            "performance": performance(status).plain(),
        }

    async def _known(self, task_id: str) -> JobView | None:
        try:
            return await self.client.show(task_id)
        except RequestRefused as refused:
            if refused.code != "unknown-job":
                raise
            self._tasks.pop(task_id, None)
            return None

    async def _plain(self, view: JobView) -> dict[str, Any]:
        confidence, reason = None, ""
        if view.state is not State.ENDED:
            why = await self.client.why(view.id)
            reason = why.reason.text
            if view.node:
                confidence = next((one.confidence for one in why.verdicts if one.node == view.node), None)
        return {
            "name": view.spec.name,
            "state": view.state.value,
            "node": view.node,
            **units(view.request.resources),
            "priority": view.request.priority.word,
            "confidence": confidence,
            "reason": reason,
        }


def _task(request: TaskRequest | Mapping[str, Any]) -> TaskRequest:
    """Raises BadValue."""
    if isinstance(request, TaskRequest):
        return request
    if not isinstance(request, Mapping):
        raise BadValue(f"{request!r:.80} is no task", hint="give a TaskRequest, or a dict of its fields")
    known = [one.name for one in dataclasses.fields(TaskRequest)]
    for name in request:
        if name not in known:
            raise BadValue(
                f"a task has no {name!r}", hint=f"{suggestion(str(name), known)}there are {', '.join(known)}"
            )
    return TaskRequest(**request)


def _asked(task: TaskRequest) -> dict[str, Any]:
    return {
        "cpus": task.cpu or None,
        "memory": task.memory_gb or None,
        "gpus": task.gpu or None,
        "priority": task.priority,
        "strategy": task.strategy,
        "nodes": task.nodes,
        "near": task.affinity,
        "apart": task.anti_affinity,
        "name": str(task.task_id),
    }
