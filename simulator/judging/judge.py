"""The judge of a simulated grid: it records what really happened, compares that with what the coordinator stores and
says, changes nothing, and raises a Violation at the first contradiction."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from distributed_grid.coordinator.core.lifecycle.attempts import EVICTION_CAUSES
from distributed_grid.coordinator.core.model import Allocation
from distributed_grid.protocol.jobs import After, Cause, Outcome, Request, RetryOn, State
from distributed_grid.protocol.messages.operator import Receipt
from distributed_grid.protocol.messages.rights import Rights, Whose, key_of
from distributed_grid.protocol.nodes import NodeOrders
from distributed_grid.protocol.resources import MILLI
from distributed_grid.simulator.disk import Disk, Row
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.judging import holds
from distributed_grid.simulator.judging.truth import Run, Truth, index_of, number_of
from distributed_grid.simulator.plan import GPU_MEMORY
from distributed_grid.simulator.workload import JobPlan


def not_before_others(truth: Truth, run: Run) -> None:
    """A job with dependencies begins only when they are met; ends that it depends on are on disk."""
    for number, kind in truth.plans[number_of(run.job)].after:
        for name, row in _rows(truth, number):
            ended = row.outcome if row.state is State.ENDED else None
            # A job of which nobody can know whether it began counts as begun.
            began = any(other.job == name for other in truth.runs.values()) or (ended is not None and ended.started)
            if kind is After.STARTED and not began:
                raise Violation(run.job, f"it starts before {name}, after whose start it was to run")
            if kind is After.ENDED and ended is None:
                raise Violation(run.job, f"it starts before the end of {name} is on disk")
            if kind is After.OK and not _ok(ended):
                raise Violation(run.job, f"it starts, and it is not on disk that {name} exited with 0")


def not_too_many(truth: Truth, run: Run) -> None:
    """No more members of an array run at once than its limit, not counting attempts that were given up."""
    most = truth.plans[number_of(run.job)].most
    array = run.job.partition("_")[0]
    together = [
        one.job for one in truth.runs.values()
        if one.alive and one.job.partition("_")[0] == array and one.job not in truth.ended
    ]  # fmt: skip
    if most and len(set(together) | {run.job}) > most:
        raise Violation(run.job, f"{', '.join(together)} run at once, and {most} may")


def failed_rightly(truth: Truth, row: Row) -> None:
    """After a commit: a job that ended by its dependencies waited for something that can never happen."""
    assert row.outcome is not None
    if row.outcome.cause is not Cause.DEPENDENCY_FAILED:
        return
    for number, kind in truth.plans[number_of(row.id)].after:
        for _, other in _rows(truth, number):
            ended = other.outcome if other.state is State.ENDED else None
            if kind is After.OK and ended is not None and not _ok(ended):
                return
            if kind is After.STARTED and ended is not None and not ended.started:
                return
    raise Violation(row.id, f"it ended by its dependencies ({row.outcome.text}), and none of them has failed")


def _ok(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.cause is Cause.EXITED and outcome.code == 0


def _rows(truth: Truth, number: int) -> list[tuple[str, Row]]:
    """A planned job as it is on disk, or all of its members."""
    assert truth.disk is not None
    plan, name = truth.plans[number], truth.promised[number]
    count = plan.members or plan.request.gang
    names = [f"{name}_{index}" for index in range(count)] if count else [name]
    return [(one, truth.disk.rows[one]) for one in names]


NEVER_RAN = (Cause.NOT_PLACED, Cause.RESTORED, Cause.DEPENDENCY_FAILED)
ENOUGH = {
    "user": ("user",),
    "namespace": ("user", "namespace"),
    "landlock": ("user", "namespace", "landlock"),
    "none": ("user", "namespace", "landlock", "none", ""),
}
"""By the walls that are asked for, all that are at least as strong."""
LOST = (Cause.NODE_LOST, Cause.REBOOTED)
UNKNOWN = (*LOST, Cause.SUPERVISOR_LOST)
"""Causes of outcomes that say nothing about how an attempt ended, or whether it began."""


class Judge(Truth):
    """Records every process there ever was and every answer that a client ever got, and judges what is on disk."""

    # --- what really runs ---------------------------------------------------------------------------------------------

    def spawned(self, run: Run, cores: int, gpus: int, memory: int) -> None:
        """A process begins on a node with these resources."""
        if run.allocation in self.runs:
            raise Violation(run.job, f"{run.allocation} is started twice, now on {run.node}")
        if run.allocation in self.never and not self._still_recorded(run):
            raise Violation(run.job, f"{run.allocation} starts on {run.node}, which said that it never would")
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
        used_up = sum(one.allocation not in self.evicted for one in before)
        if not plan.request.gang and used_up > 1 + plan.request.retries:
            names = ", ".join(one.allocation for one in before)
            raise Violation(
                run.job, f"it is started {len(before)} times ({names}), {plan.request.retries} retries allowed"
            )
        self._not_after_its_end(run)
        not_before_others(self, run)
        not_too_many(self, run)
        self._where_it_may(run, plan)
        here = self.living.setdefault(run.node, {})
        here[run.allocation] = run
        self._nothing_twice(run.node, here, cores, gpus, memory)

    def _as_one(self, run: Run, before: list[Run], request: Request) -> None:
        """A gang's members begin on different nodes, and all of them at most as often as its retries allow: an attempt
        in which one did not begin does not count."""
        if any(one.attempt == run.attempt and one.node == run.node for one in before):
            raise Violation(run.job, f"{run.allocation} starts on {run.node}, where another one of its gang did")
        whole = Counter(one.attempt for one in (*before, run))
        taken = len({one.attempt for one in before if one.allocation in self.evicted})
        if sum(count == request.gang for count in whole.values()) > 1 + request.retries + taken:
            raise Violation(
                run.job, f"its gang is whole for the {len(whole)}th time, {request.retries} retries allowed"
            )

    def ends_as_one(self, disk: Disk, rows: Iterable[Row]) -> None:
        """After a commit: either all members of a gang have ended, or none."""
        for row in rows:
            gang = row.id.rpartition("_")[0]
            if row.state is State.ENDED and row.outcome is not None:
                failed_rightly(self, row)
            if gang and row.state is State.ENDED:
                for other in range(self.plans[number_of(gang)].request.gang):
                    if disk.rows[f"{gang}_{other}"].state is not State.ENDED:
                        raise Violation(row.id, f"it has ended on disk, and {gang}_{other} of its gang has not")

    def _may_be_followed(self, run: Run, plan: JobPlan) -> bool:
        """Whether the job may run again after this attempt: it was evicted, or its submitter asked for retries."""
        failed = bool(run.code) or run.signal > 0
        requeued = run.allocation in self.evicted and plan.request.requeue
        return failed or RetryOn.LOST in plan.request.retry_on or requeued

    def told_to_stop(self, allocation: str, cause: str) -> None:
        """A node is told to end this allocation."""
        if cause in EVICTION_CAUSES:
            self.evicted.add(allocation)

    def never_runs(self, allocation: str) -> None:
        """A node says that this allocation never ran: it was withdrawn or refused, or has ended and is acknowledged."""
        self.never.add(allocation)

    def _still_recorded(self, run: Run) -> bool:
        """Whether a coordinator that never took the node's answer may send this attempt again: it is what the job has
        on disk."""
        row = None if self.disk is None else self.disk.rows.get(run.job)
        return row is not None and row.state is not State.ENDED and row.allocation == run.allocation

    def _not_after_its_end(self, run: Run) -> None:
        """Check that a job that was acknowledged as never started does not start. (A node that was given up may run
        what it was sent.)"""
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
        if wrong or not (run.node in self.relabelled or all(rule.met(labels) for rule in asked.labels)):
            raise Violation(run.job, f"{run.allocation} runs on {run.node} ({labels}), which is not what was asked for")
        if any(share.memory < asked.gpu_memory for share in run.grant.gpus):
            raise Violation(run.job, f"{run.allocation} was granted less GPU memory than it asked for")

    def _nothing_twice(self, node: str, here: dict[str, Run], cores: int, gpus: int, memory: int) -> None:
        cpu: dict[int, int] = {}
        lent_on: set[int] = set()
        gpu: dict[str, int] = {}
        on_gpu: dict[str, int] = {}
        held = 0
        for run in here.values():
            grant = run.grant
            for core in grant.cores:
                cpu[core] = cpu.get(core, 0) + MILLI
            if grant.shared_core >= 0:
                cpu[grant.shared_core] = cpu.get(grant.shared_core, 0) + grant.shared_milli
            if not lent_on.isdisjoint(grant.slack):
                raise Violation(node, f"two run on the slack of a core: {', '.join(here)}")
            lent_on |= {*grant.slack}
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
        """Note that nothing of this run is alive any more."""
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
        if self.plans[number_of(row.id)].holds:
            holds.ended_rightly(self, row.id, row.outcome)
        else:
            self._is_the_truth(row.id, row.allocation, row.outcome)

    def receipt_stored(self, receipt: Receipt, last_of: Callable[[str], Allocation | None]) -> None:
        """The disk took the receipt of a preemption, or of a move."""
        self.preemptions.stored(receipt, last_of)
        if receipt.result == "moved" and self.moves is not None:
            known = list(self.preemptions.known.values())
            runs = [run for one in known if one.victims and (run := self.runs.get(one.victims[0].allocation))]
            leaves = {one.allocation for one in receipt.victims}
            self.ended_before |= {run.allocation for run in runs if run.allocation in leaves and not run.alive}
            stayed = {run.allocation for run in runs if run.code is not None} | self.ended_before
            self.moves.stored(receipt, known, self.plans[number_of(receipt.job)], self.nodes, stayed)

    def _is_the_truth(self, job: str, allocation: str, outcome: Outcome) -> None:
        run = self.runs.get(allocation)
        if outcome.cause is Cause.EXITED:
            if run is None or run.alive:
                raise Violation(job, f"it is told to have exited; {allocation} {'runs' if run else 'never ran'}")
            if run.code != outcome.code:
                raise Violation(job, f"it is told to have exited with {outcome.code}, it did with {run.code}")
        elif outcome.cause is Cause.NOT_PLACED and outcome.started and self.plans[number_of(job)].within >= 0:
            if not any(one.job == job for one in self.runs.values()) or (run is not None and run.alive):
                raise Violation(job, f"its hold has ended after it began, it is told; {allocation} has not ended")
        elif outcome.cause in (*NEVER_RAN, Cause.SPAWN_FAILED) or not outcome.started:
            if run is not None and outcome.cause not in UNKNOWN:
                raise Violation(
                    job, f"it is told never to have run ({_words(outcome)}), {allocation} did on {run.node}"
                )
        elif run is None:
            request = self.plans[number_of(job)].request
            retried = outcome.cause in (Cause.CANCELLED, Cause.GANG) and (request.retries or request.gang)
            before = outcome.cause is Cause.CANCELLED and any(
                one in self.evicted and one.rpartition(".")[0] == job for one in self.runs
            )
            if not (retried or before) and outcome.cause not in (*LOST, Cause.LEASE_EXPIRED):
                raise Violation(job, f"it is told to have run ({_words(outcome)}), {allocation} never did")
        elif run.alive and outcome.cause is not Cause.NODE_LOST:
            raise Violation(job, f"it is told to be over ({_words(outcome)}), {allocation} runs on {run.node}")

    def acknowledged(self, allocation: str) -> None:
        """The end of this allocation is acknowledged to its agent, which may forget it."""
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
        """The disk took what is ordered for a node: of several orders in one commit the last, so that it may have been
        open in between."""
        assert self.disk is not None
        by = orders.drain, orders.aside
        if orders.open:
            self.closed.pop(node, None)
            self.closed_by.pop(node, None)
        elif self.closed_by.get(node) != by:
            self.closed[node] = frozenset(row.allocation for row in self.disk.rows.values())
            self.closed_by[node] = by

    def drain_acknowledged(self, node: str) -> None:
        """An operator hears that a node is drained."""
        assert self.disk is not None
        orders = self.disk.orders().get(node)
        if orders is None or orders.drain is None:
            raise Violation(node, "its drain is acknowledged and not on disk")

    def rights_stored(self, key: str) -> None:
        """The disk took these rights, or that they are taken back: of several changes in one commit it has the last."""
        self.entitled.add(key)

    def granted(self, whose: Whose, name: str, rights: Rights | None) -> None:
        """An operator hears that rights are granted, or taken back. Another one may have changed them since."""
        if rights is not None and key_of(whose, name) not in self.entitled:
            raise Violation(name or "default", "its rights are acknowledged and not on disk")

    def launched(self, allocation: str, node: str) -> None:
        """A launch leaves the coordinator."""
        assert self.disk is not None
        job = allocation.rpartition(".")[0]
        row = self.disk.rows.get(job)
        if row is None or row.allocation != allocation:
            raise Violation(job, f"{allocation} is launched before that is on disk")
        if allocation not in self.closed.get(node, (allocation,)):
            raise Violation(job, f"{allocation} is launched on {node}, which gets no new job")
        holds.launched_in_its_place(self, job, node)


def _words(outcome: Any) -> str:
    started = "" if outcome.started else ", never started"
    return f"{outcome.cause.value} {outcome.code or outcome.signal or ''}".strip() + started
