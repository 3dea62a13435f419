"""What must be true at every moment, held against what really runs. The judge sees everything and changes nothing; at
the first thing that is not so it raises a Violation.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from distributed_grid.coordinator.core.lifecycle.retries import TAKEN_BACK
from distributed_grid.protocol.jobs import Cause, Outcome, Request, RetryOn, State
from distributed_grid.protocol.nodes import NodeOrders
from distributed_grid.protocol.resources import MILLI
from distributed_grid.simulator.disk import Disk, Row
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.judge import many
from distributed_grid.simulator.judge.truth import Run, Truth, index_of, number_of
from distributed_grid.simulator.plan import GPU_MEMORY, JobPlan

NEVER_RAN = (Cause.NOT_PLACED, Cause.RESTORED, Cause.DEPENDENCY_FAILED)
ENOUGH = {
    "user": ("user",),
    "namespace": ("user", "namespace"),
    "landlock": ("user", "namespace", "landlock"),
    "none": ("user", "namespace", "landlock", "none", ""),
}
"""The walls that are enough for those that are asked for."""
UNKNOWN = (Cause.NODE_LOST, Cause.REBOOTED, Cause.SUPERVISOR_LOST)
"""What is said where nobody can know how it ended, or whether it began."""


class Judge(Truth):
    """Keeps the truth: every process there ever was, every answer that a client ever got."""

    # --- what really runs ---------------------------------------------------------------------------------------------

    def spawned(self, run: Run, cores: int, gpus: int, memory: int) -> None:
        """A process begins on a node that has so much."""
        if run.allocation in self.runs:
            raise Violation(run.job, f"{run.allocation} is started twice, now on {run.node}")
        self.runs[run.allocation] = run
        number = number_of(run.job)
        plan = self.plans[number]
        before = self.of_key.setdefault((number, index_of(run.job) if plan.members else 0), [])
        for other in before:
            if other.alive and not (plan.request.gang and other.attempt == run.attempt):
                raise Violation(
                    run.job, f"{run.allocation} starts on {run.node}, {other.allocation} runs on {other.node}"
                )
        if plan.request.gang:
            self._as_one(run, before, plan.request)
        elif before and not self._may_be_followed(before[-1], plan):
            raise Violation(run.job, f"{run.allocation} starts after {before[-1].allocation} did not fail")
        before.append(run)
        used_up = sum(one.allocation not in self.taken_back for one in before)
        if not plan.request.gang and used_up > 1 + plan.request.retries:
            names = ", ".join(one.allocation for one in before)
            raise Violation(
                run.job, f"it is started {len(before)} times ({names}), {plan.request.retries} retries allowed"
            )
        self._not_after_its_end(run)
        many.not_before_others(self, run)
        many.not_too_many(self, run)
        self._where_it_may(run, plan)
        here = self.living.setdefault(run.node, {})
        here[run.allocation] = run
        self._nothing_twice(run.node, here, cores, gpus, memory)

    def _as_one(self, run: Run, before: list[Run], request: Request) -> None:
        """A gang's members begin on different nodes. It is whole again only as often as its owner said: an attempt in
        which one did not begin does not count."""
        if any(one.attempt == run.attempt and one.node == run.node for one in before):
            raise Violation(run.job, f"{run.allocation} starts on {run.node}, where another one of its gang did")
        whole = Counter(one.attempt for one in (*before, run))
        taken = len({one.attempt for one in before if one.allocation in self.taken_back})
        if sum(count == request.gang for count in whole.values()) > 1 + request.retries + taken:
            raise Violation(
                run.job, f"its gang is whole for the {len(whole)}th time, {request.retries} retries allowed"
            )

    def ends_as_one(self, disk: Disk, rows: Iterable[Row]) -> None:
        """After a commit: of a gang all members have ended, or none."""
        for row in rows:
            gang = row.id.rpartition("_")[0]
            if row.state is State.ENDED and row.outcome is not None:
                many.failed_rightly(self, row)
            if gang and row.state is State.ENDED:
                for other in range(self.plans[number_of(gang)].request.gang):
                    if disk.rows[f"{gang}_{other}"].state is not State.ENDED:
                        raise Violation(row.id, f"it has ended on disk, and {gang}_{other} of its gang has not")

    def _may_be_followed(self, run: Run, plan: JobPlan) -> bool:
        """Whether the job may be run again after this attempt: its place was taken back, or its owner wants that."""
        failed = bool(run.code) or run.signal > 0
        return failed or RetryOn.LOST in plan.request.retry_on or run.allocation in self.taken_back

    def told_to_stop(self, allocation: str, cause: str) -> None:
        """A node is told to end this."""
        if cause in TAKEN_BACK:
            self.taken_back.add(allocation)

    def _not_after_its_end(self, run: Run) -> None:
        """What was acknowledged as never started, never is. (A node that was given up may run what it was sent.)"""
        outcome = self.ended.get(run.job)
        if outcome is None:
            return
        if outcome.cause in NEVER_RAN or (outcome.cause is Cause.CANCELLED and not outcome.started):
            raise Violation(run.job, f"{run.allocation} starts on {run.node} after the job ended as {_words(outcome)}")

    def _where_it_may(self, run: Run, plan: JobPlan) -> None:
        """It runs on a node that is what was asked for, and that runs its user's jobs."""
        node = self.nodes.get(run.node)
        if node is None:
            return
        asked, labels = plan.request.constraints, node.labels
        if node.walls not in ENOUGH["namespace"] and node.trusts != "everyone" and plan.user not in node.owners:
            what = f"{run.allocation} of {plan.user} runs on {run.node}, which runs jobs of {node.owners} only"
            raise Violation(run.job, what)
        if asked is None:
            return
        if node.walls not in ENOUGH[asked.walls]:
            raise Violation(run.job, f"{run.allocation} runs behind walls {node.walls!r}, and asked for {asked.walls}")
        wrong = (asked.only and run.node not in asked.only) or run.node in asked.exclude
        if wrong or not all(rule.met(labels) for rule in asked.labels):
            raise Violation(run.job, f"{run.allocation} runs on {run.node} ({labels}), which is not what was asked for")
        if any(share.memory < asked.gpu_memory for share in run.grant.gpus):
            raise Violation(run.job, f"{run.allocation} was granted less GPU memory than it asked for")

    def _nothing_twice(self, node: str, here: dict[str, Run], cores: int, gpus: int, memory: int) -> None:
        cpu: dict[int, int] = {}
        gpu: dict[str, int] = {}
        on_gpu: dict[str, int] = {}
        held = 0
        for run in here.values():
            grant = run.grant
            for core in grant.cores:
                cpu[core] = cpu.get(core, 0) + MILLI
            if grant.shared_core >= 0:
                cpu[grant.shared_core] = cpu.get(grant.shared_core, 0) + grant.shared_milli
            for share in grant.gpus:
                gpu[share.uuid] = gpu.get(share.uuid, 0) + share.milli
                on_gpu[share.uuid] = on_gpu.get(share.uuid, 0) + share.memory
            held += grant.memory
        who = ", ".join(here)
        if any(milli > MILLI for milli in cpu.values()) or len(cpu) > cores:
            raise Violation(node, f"a core is used twice by {who}")
        if any(milli > MILLI for milli in gpu.values()) or len(gpu) > gpus:
            raise Violation(node, f"a GPU is used twice by {who}")
        if any(asked > GPU_MEMORY for asked in on_gpu.values()):
            raise Violation(node, f"more than the memory of a GPU is given to {who}")
        if held > memory:
            raise Violation(node, f"{held} bytes are given to {who}, there are {memory}")

    def over(self, run: Run, code: int | None, signal: int = 0) -> None:
        """Nothing of it is alive any more."""
        run.alive, run.code, run.signal = False, code, signal
        self.living[run.node].pop(run.allocation, None)

    # --- what the coordinator makes durable, and says -----------------------------------------------------------------

    def stored(self, row: Row) -> None:
        """The disk took this state of a job."""
        before = self.ended.get(row.id)
        if before is not None:
            if row.state is not State.ENDED or row.outcome != before:
                now = _words(row.outcome) if row.outcome is not None else row.state.value
                raise Violation(row.id, f"its result was {_words(before)} and becomes {now}")
            return
        if row.state is not State.ENDED:
            return
        if row.outcome is None:
            raise Violation(row.id, "it has ended without an outcome")
        self.ended[row.id] = row.outcome
        self._is_the_truth(row.id, row.allocation, row.outcome)

    def _is_the_truth(self, job: str, allocation: str, outcome: Outcome) -> None:
        run = self.runs.get(allocation)
        if outcome.cause is Cause.EXITED:
            if run is None or run.alive:
                raise Violation(job, f"it is told to have exited; {allocation} {'runs' if run else 'never ran'}")
            if run.code != outcome.code:
                raise Violation(job, f"it is told to have exited with {outcome.code}, it did with {run.code}")
        elif outcome.cause in (*NEVER_RAN, Cause.SPAWN_FAILED) or not outcome.started:
            if run is not None and outcome.cause not in UNKNOWN:
                raise Violation(
                    job, f"it is told never to have run ({_words(outcome)}), {allocation} did on {run.node}"
                )
        elif run is None:
            request = self.plans[number_of(job)].request
            retried = outcome.cause in (Cause.CANCELLED, Cause.GANG) and (request.retries or request.gang)
            before = outcome.cause is Cause.CANCELLED and any(
                one in self.taken_back and one.rpartition(".")[0] == job for one in self.runs
            )
            if not (retried or before) and outcome.cause not in (*UNKNOWN, Cause.LEASE_EXPIRED):
                raise Violation(job, f"it is told to have run ({_words(outcome)}), {allocation} never did")
        elif run.alive and outcome.cause is not Cause.NODE_LOST:
            raise Violation(job, f"it is told to be over ({_words(outcome)}), {allocation} runs on {run.node}")

    def acknowledged(self, allocation: str) -> None:
        """An agent is told that it may forget this end."""
        assert self.disk is not None
        job = allocation.rpartition(".")[0]
        row = self.disk.rows.get(job)
        if row is not None and row.allocation == allocation and row.state not in (State.ENDED, State.WAITING):
            raise Violation(job, f"the end of {allocation} is acknowledged and not on disk ({row.state.value} there)")

    def accepted(self, number: int, job: str) -> None:
        """A client hears that its job is taken."""
        assert self.disk is not None
        if job not in self.disk.rows and job not in self.disk.group_rows:
            raise Violation(job, "its submit is acknowledged and not on disk")
        if any(f"{job}_{index}" not in self.disk.rows for index in range(self.plans[number].members)):
            raise Violation(job, "its submit is acknowledged, and not all of its members are on disk")
        if self.promised.setdefault(number, job) != job:
            raise Violation(job, f"its key stood for {self.promised[number]} before")

    def ordered(self, node: str, orders: NodeOrders) -> None:
        """The disk took what is ordered for a node."""
        assert self.disk is not None
        if orders.open:
            self.closed.pop(node, None)
        else:
            self.closed.setdefault(node, frozenset(row.allocation for row in self.disk.rows.values()))

    def drain_acknowledged(self, node: str) -> None:
        """An operator hears that a node is drained."""
        assert self.disk is not None
        orders = self.disk.orders().get(node)
        if orders is None or orders.drain is None:
            raise Violation(node, "its drain is acknowledged and not on disk")

    def launched(self, allocation: str, node: str) -> None:
        """A launch leaves the coordinator."""
        assert self.disk is not None
        job = allocation.rpartition(".")[0]
        row = self.disk.rows.get(job)
        if row is None or row.allocation != allocation:
            raise Violation(job, f"{allocation} is launched before that is on disk")
        if allocation not in self.closed.get(node, (allocation,)):
            raise Violation(job, f"{allocation} is launched on {node}, which gets no new job")


def _words(outcome: Any) -> str:
    started = "" if outcome.started else ", never started"
    return f"{outcome.cause.value} {outcome.code or outcome.signal or ''}".strip() + started
