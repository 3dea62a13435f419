"""Clients: each submits one job under one key until it hears an answer, and may cancel it. Stands for
coordinator/client/session.py.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from distributed_grid.coordinator.core.model import Accepted, Job, Rejected
from distributed_grid.coordinator.core.records import Condition
from distributed_grid.protocol.jobs import JobSpec, Request
from distributed_grid.simulator.coordinator import Coordinator
from distributed_grid.simulator.engine import Engine
from distributed_grid.simulator.judge.always import Judge
from distributed_grid.simulator.plan import ENDLESS, JobPlan

PATIENCE = 5.0
"""Seconds after which an answer is not waited for any more."""


class Client:
    """Who submits one planned job. `at` gives the coordinator that can be reached now, if one can; `named` the id of
    another planned job: None where that is not known yet, empty where there is none and will be none."""

    def __init__(
        self, engine: Engine, judge: Judge, plan: JobPlan, at: Callable[[], Coordinator | None],
        named: Callable[[int], str | None],
    ) -> None:  # fmt: skip
        self.engine, self.judge, self.plan = engine, judge, plan
        self.job = ""
        self.refused = False
        self.cancelled = plan.cancel_at < 0
        self._at = at
        self._named = named
        self._tries = 0
        self._asked = 0
        engine.at(plan.at, None, self._submit)
        if not self.cancelled:
            engine.at(max(plan.cancel_at, plan.at), None, self.cancel)

    def _submit(self) -> None:
        if self.job or self.refused:
            return
        plan, coordinator = self.plan, self._at()
        names = [self._named(number) for number, _ in plan.after]
        if None in names:
            self.engine.later(0.5, None, self._submit)
            return
        if "" in names:
            self.engine.note(f"job {plan.number} has nobody to wait for")
            self.refused = True
            return
        self._tries += 1
        if coordinator is not None:
            spec = JobSpec(argv=("run", str(plan.number)), grace=plan.grace, time_limit=plan.time_limit, name=plan.name)
            request = self._request(coordinator)
            job = Job(
                id=f"j{plan.number}x{self._tries}", key=f"k{plan.number}", user=plan.user, spec=spec, request=request,
                submitted=coordinator.clock(),
                after=tuple(Condition(name or "", kind) for name, (_, kind) in zip(names, plan.after, strict=True)),
                begin=coordinator.clock() + plan.delay if plan.delay else 0.0,
            )  # fmt: skip
            self.engine.note(f"job {plan.number} is submitted as {job.id}")
            hearing = self._hearing(coordinator, self._submitted)
            self.engine.later(0.001, coordinator, coordinator.submit, job, plan, hearing)
        self._asked += 1
        self.engine.later(PATIENCE if coordinator else 0.5, None, self._submit_again, self._asked)

    def _request(self, coordinator: Coordinator) -> Request:
        """What is asked for, with the id of the job to be near to. Stands for coordinator/api/submitting.py."""
        request = self.plan.request
        newest = coordinator.ledger.state.index.homes.newest(f"u/{self.plan.name}") if self.plan.near else ""
        if not newest or request.constraints is None:
            return request
        return replace(request, constraints=replace(request.constraints, near=(newest,)))

    def _submit_again(self, asked: int) -> None:
        if asked == self._asked:
            self._submit()

    def _hearing(self, coordinator: Coordinator, then: Callable[[Any], None]) -> Callable[[Any], None]:
        """An answer takes a while; when the coordinator is killed it may be lost."""

        def answer(command: Any) -> None:
            self.engine.later(0.002, coordinator, then, command)

        return answer

    def _submitted(self, answer: Any) -> None:
        if isinstance(answer, Accepted):
            self.judge.accepted(self.plan.number, answer.jobs[0])
            if self._tries <= self.plan.unheard:
                self._submit()
                return
            self._asked += 1
            self.job = answer.jobs[0]
            self.engine.note(f"job {self.plan.number} is {self.job}")
        elif isinstance(answer, Rejected) and answer.code != "unavailable":
            self.engine.note(f"job {self.plan.number} is refused: {answer.what}")
            self.refused = True

    def cancel(self) -> None:
        """Ask that it ends, until that is heard."""
        if self.refused:
            self.cancelled = True
        coordinator = self._at()
        if self.job and coordinator is not None and not self.cancelled:
            self.engine.note(f"{self.job} is cancelled")
            coordinator.cancel(self.job, self._hearing(coordinator, self._cancel_heard))
        if not self.cancelled:
            self.engine.later(1.0, None, self.cancel)

    def make_peace(self) -> None:
        """What would run for ever is not wanted any more."""
        if self.plan.seconds >= ENDLESS and self.cancelled:
            self.cancelled = False
            self.cancel()

    def _cancel_heard(self, answer: Any) -> None:
        if not isinstance(answer, Rejected):
            self.cancelled = True
