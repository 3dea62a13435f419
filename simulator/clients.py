"""Simulated people: clients, each of which submits one job under one key until it gets an answer and may cancel it; and
operators, who drain a node and undrain it later, or grant rights."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    Accepted,
    DrainRequested,
    Granted,
    LabelsRequested,
    Rejected,
    RightsSet,
    UndrainRequested,
)
from distributed_grid.coordinator.core.model import Condition, HeldBack, Job
from distributed_grid.protocol.jobs import JobSpec, Request
from distributed_grid.simulator.coordinator import Coordinator
from distributed_grid.simulator.engine import Engine, Violation
from distributed_grid.simulator.judging.judge import Judge
from distributed_grid.simulator.plan import FaultPlan, GrantPlan, LabelPlan
from distributed_grid.simulator.workload import ENDLESS, JobPlan

PATIENCE = 5.0
"""Seconds after which an answer is not waited for any more."""


class Client:
    """The submitter of one planned job. `at` returns the coordinator that can be reached now, if any; `named` the id of
    another planned job: None if that is not known yet, empty if there is none and will be none."""

    def __init__(
        self, engine: Engine, judge: Judge, plan: JobPlan, at: Callable[[], Coordinator | None],
        named: Callable[[int], str | None],
    ) -> None:  # fmt: skip
        self.engine, self.judge, self.plan = engine, judge, plan
        self.job = ""
        self.refused = False
        self.cancelled = plan.cancel_at < 0
        self._unwanted = False
        """It was to be cancelled when it counted as refused."""
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
        hold = self._named(plan.within) if plan.within >= 0 else None
        if None in names or (plan.within >= 0 and hold is None):
            self.engine.later(0.5, None, self._submit)
            return
        if "" in names or hold == "":
            self.engine.note(f"job {plan.number} has nobody to wait for")
            self.refused = True
            return
        self._tries += 1
        if coordinator is not None:
            spec = JobSpec(
                argv=("run", str(plan.number)), grace=plan.grace, time_limit=plan.time_limit, name=plan.name,
                bundle=plan.bundle, hold=plan.holds,
            )  # fmt: skip
            request = self._request(coordinator, hold or "")
            job = Job(
                id=f"j{plan.number}x{self._tries}", key=f"k{plan.number}", user=plan.user, spec=spec, request=request,
                submitted=coordinator.clock(),
                begin=coordinator.clock() + plan.delay if plan.delay else 0.0,
            )  # fmt: skip
            if names:
                conditions = (Condition(name or "", kind) for name, (_, kind) in zip(names, plan.after, strict=True))
                job.phase = HeldBack(after=tuple(conditions))
            self.engine.note(f"job {plan.number} is submitted as {job.id}")
            hearing = self._hearing(coordinator, self._submitted)
            self.engine.later(0.001, coordinator, coordinator.submit, job, plan, hearing)
        self._asked += 1
        self.engine.later(PATIENCE if coordinator else 0.5, None, self._submit_again, self._asked)

    def _request(self, coordinator: Coordinator, hold: str) -> Request:
        """Return the request, with the ids of the hold to run in and of the job to be near to. Stands for
        coordinator/api/submissions.py."""
        request = replace(self.plan.request, within=hold)
        newest = coordinator.ledger.state.index.affinity.newest(f"u/{self.plan.name}") if self.plan.near else ""
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
            if self.refused:  # an earlier try was, when too many jobs waited
                self.refused = False
                if self._unwanted:
                    self.cancelled = False
                    self.cancel()
            self.engine.note(f"job {self.plan.number} is {self.job}")
        elif isinstance(answer, Rejected) and answer.code != "unavailable":
            self.engine.note(f"job {self.plan.number} is refused: {answer.what}")
            self.refused = True

    def cancel(self) -> None:
        """Request the end of the job, until that is received."""
        if self.refused:
            self.cancelled = self._unwanted = True
        coordinator = self._at()
        if self.job and coordinator is not None and not self.cancelled:
            self.engine.note(f"{self.job} is cancelled")
            coordinator.cancel(self.job, self._hearing(coordinator, self._cancel_answered))
        if not self.cancelled:
            self.engine.later(1.0, None, self.cancel)

    def heal(self) -> None:
        """Cancel a job that would run for ever."""
        if self.plan.seconds >= ENDLESS and self.cancelled:
            self.cancelled = False
            self.cancel()

    def _cancel_answered(self, answer: Any) -> None:
        if not isinstance(answer, Rejected):
            self.cancelled = True


ORDER_PATIENCE = 2.0
"""Seconds after which an order is said again."""
LATE = 1.0
"""Seconds of work within which a coordinator has to see that a deadline is over."""
SLACK = 120.0
"""Seconds without faults after the deadline within which a drained node has to be empty: jobs have up to 5 s of grace,
nodes up to 70 s to be given up."""


class Operator:
    """The operator who drains the node of this plan. `at` returns the coordinator that can be reached now, if any."""

    def __init__(
        self, engine: Engine, judge: Judge, plan: FaultPlan, node: str, at: Callable[[], Coordinator | None]
    ) -> None:
        self.engine, self.judge, self.plan, self.node = engine, judge, plan, node
        self.done = False
        self._at = at
        self._drained = self._over = False
        self._seconds = -1.0 if plan.how < 0.3 else 0.0 if plan.how < 0.6 else 10 * plan.how
        self._due = 0.0
        self._drain()

    def _drain(self) -> None:
        if self._drained or self._over:
            return
        if (coordinator := self._at()) is not None:
            self.engine.note(f"{self.node} is to be drained, deadline {self._seconds:.1f} s")
            coordinator.order(
                lambda token: DrainRequested(token, (self.node,), "op", deadline=self._seconds), self._drain_answered
            )
        self.engine.later(ORDER_PATIENCE, None, self._drain)

    def _drain_answered(self, answer: Any) -> None:
        if isinstance(answer, Granted) and not self._over:
            self.judge.drain_acknowledged(self.node)
            if not self._drained:
                self._check()
            self._drained, self._due = True, self.engine.now + max(0.0, self._seconds)

    def _check(self) -> None:
        """Check from time to time whether the coordinator, if it is at work, does what it has said."""
        if self._over:
            return
        if (coordinator := self._at()) is not None:
            self.engine.later(LATE / 2, coordinator, self._awake, coordinator)
        self.engine.later(2 * LATE, None, self._check)

    def _awake(self, coordinator: Coordinator) -> None:
        self.engine.later(LATE / 2, coordinator, self._hold_it_to_its_word, coordinator, self.engine.now + LATE / 2)

    def _hold_it_to_its_word(self, coordinator: Coordinator, due: float) -> None:
        """Check that a coordinator that was at work for a while, and not suspended, has done what was `due` before now
        by its own clock."""
        if self._over or self.engine.now > due:
            return
        node = coordinator.ledger.state.nodes[self.node]
        if (drain := node.orders.drain) is None:
            raise Violation(self.node, "it was acknowledged to be drained, and is not any more")
        if drain.deadline and coordinator.clock() > drain.deadline + LATE:
            for allocation in node.allocations.values():
                if allocation.stop is None:
                    raise Violation(allocation.job, f"{allocation.id} is not told to end, {self.node} was to be empty")

    def end(self, healed: bool = False) -> None:
        """The node has served; it is given jobs again as soon as it may be."""
        if self._over:
            return
        if self._seconds >= 0 and self._drained and self.judge.living.get(self.node):
            if healed and self.engine.now > self._due + SLACK:
                who = ", ".join(self.judge.living[self.node])
                raise Violation(self.node, f"it was drained with a deadline, and {who} runs there for ever")
            return
        self._over = True
        self._undrain()

    def _undrain(self) -> None:
        if self.done:
            return
        if (coordinator := self._at()) is not None:
            self.engine.note(f"{self.node} is to be undrained")
            coordinator.order(lambda token: UndrainRequested(token, (self.node,), "op"), self._undrain_answered)
        self.engine.later(ORDER_PATIENCE, None, self._undrain)

    def _undrain_answered(self, answer: Any) -> None:
        self.done = self.done or isinstance(answer, Granted)


class Labeller:
    """The operator who sets the planned label, until that is received. `at` as for an Operator."""

    def __init__(self, engine: Engine, judge: Judge, plan: LabelPlan, at: Callable[[], Coordinator | None]) -> None:
        self.engine, self.judge, self.plan = engine, judge, plan
        self.node = f"n{plan.node}"
        self.done = False
        self._at = at
        engine.at(plan.at, None, self._label)

    def _label(self) -> None:
        if self.done:
            return
        if (coordinator := self._at()) is not None:
            self.engine.note(f"{self.node} is to be in zone {self.plan.zone}")
            labels = {"zone": self.plan.zone}
            coordinator.order(lambda token: LabelsRequested(token, (self.node,), labels, "op"), self._answered)
        self.engine.later(ORDER_PATIENCE, None, self._label)

    def _answered(self, answer: Any) -> None:
        self.done = self.done or isinstance(answer, Granted)


class Grantor:
    """The operator who grants the planned rights, until that is received. `at` as for an Operator."""

    def __init__(self, engine: Engine, judge: Judge, plan: GrantPlan, at: Callable[[], Coordinator | None]) -> None:
        self.engine, self.judge, self.plan = engine, judge, plan
        self.done = False
        self._at = at
        engine.at(plan.at, None, self._grant)

    def _grant(self) -> None:
        if self.done:
            return
        plan = self.plan
        if (coordinator := self._at()) is not None:
            self.engine.note(f"{plan.whose} {plan.name} is granted {plan.rights.words() if plan.rights else 'nothing'}")
            coordinator.order(lambda token: RightsSet(token, plan.whose, plan.name, plan.rights, "op"), self._answered)
        self.engine.later(ORDER_PATIENCE, None, self._grant)

    def _answered(self, answer: Any) -> None:
        if isinstance(answer, Granted):
            self.done = True
            self.judge.granted(self.plan.whose, self.plan.name, self.plan.rights)
