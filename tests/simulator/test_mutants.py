"""The simulator is worth what it finds: here one promise after the other is broken, and some seed has to show it.

Each breach comes with a seed that showed it when this was written. Where a change of the cores, or of the plans, has
made another one the first to do so, it is looked for.
"""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from distributed_grid.agent.core import table
from distributed_grid.agent.core.spare.lender import Lender
from distributed_grid.agent.core.table import Table
from distributed_grid.agent.supervisor.allocations import Allocations
from distributed_grid.agent.supervisor.endings import Endings, Freezer
from distributed_grid.agent.supervisor.job import Job as NodeJob
from distributed_grid.agent.supervisor.job import Leases
from distributed_grid.coordinator.core import ledger
from distributed_grid.coordinator.core.commands import AckExits, Command, JobsSubmitted, Send
from distributed_grid.coordinator.core.data import Preemptions
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lifecycle import attempts, holds, outcomes, successors
from distributed_grid.coordinator.core.model import Allocation, EndKind, Job, MemberEnded, Node
from distributed_grid.coordinator.core.nodes import agents
from distributed_grid.coordinator.core.pipeline import Pipeline
from distributed_grid.coordinator.core.placement import constraints, matching
from distributed_grid.coordinator.core.placement.catalogue import Catalogue
from distributed_grid.coordinator.core.preemption import candidates, earmarks
from distributed_grid.coordinator.core.queue import (
    admission,
    dependencies,
    groups,
    ranking,
    reservations,
    rights,
)
from distributed_grid.coordinator.core.queue.queue import Members, Rank
from distributed_grid.coordinator.core.rebalancing import leaving, passes, rebalance, stays, view
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.jobs import State as JobState
from distributed_grid.protocol.messages import Ack, Exited, Stale
from distributed_grid.protocol.placement import LabelRule, Sign, Walls
from distributed_grid.simulator.coordinator import Coordinator
from distributed_grid.simulator.disk import Disk
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.judging import grant_order
from distributed_grid.simulator.judging.judge import Judge
from tests.simulator.shown import Patch, shown

MOST = 1500
"""Seeds that are looked through for one that shows it."""


def performed_before_commit(patch: Patch, kind: type[Command]) -> None:
    """The pipeline does not wait for the disk with commands of this kind."""
    take = Pipeline.take

    def hasty(self: Pipeline, commands: list[Command]) -> None:
        self._due += [one for one in commands if isinstance(one, kind)]
        take(self, [one for one in commands if not isinstance(one, kind)])

    patch(Pipeline, "take", hasty)


def launch_before_commit(patch: Patch) -> None:
    """The judge does not look at launches here: what comes of it has to show."""
    performed_before_commit(patch, Send)
    patch(Judge, "launched", lambda self, allocation, node: None)


def acknowledge_before_commit(patch: Patch) -> None:
    performed_before_commit(patch, AckExits)


def forget_what_waits_for_a_commit_that_failed(patch: Patch) -> None:
    refuse = Pipeline.refuse

    def forgetful(self: Pipeline, error: GridError, now: float) -> None:
        refuse(self, error, now)
        self._writing = []

    patch(Pipeline, "refuse", forgetful)


def run_again_before_it_is_known_to_be_over(patch: Patch) -> None:
    def lose(state: GridState, allocation: Allocation, text: str) -> None:
        state.move(allocation, JobState.LOST, text)
        outcomes.requeue(state, state.jobs[allocation.job], allocation, text)

    patch(agents, "_lose", lose)


def give_up_at_once(patch: Patch) -> None:
    def lose(state: GridState, allocation: Allocation, text: str) -> None:
        state.move(allocation, JobState.LOST, text)
        agents._end_lost(state, allocation, Cause.NODE_LOST, text, again=True)

    patch(agents, "_lose", lose)


def run_again_without_limit(patch: Patch) -> None:
    patch(attempts, "wants_retry", lambda job, allocation, outcome: outcome.cause is Cause.EXITED and outcome.code != 0)


def leases_are_not_kept(patch: Patch) -> None:
    patch(Leases, "hold", lambda self, key, lease, since: None)


def lose_what_was_never_ordered(patch: Patch) -> None:
    ended = NodeJob.ended

    def lost(self: NodeJob, now: float) -> dict[str, Any]:
        self.unsent = False
        return ended(self, now)

    patch(NodeJob, "ended", lost)


def say_nothing_again_to_a_node_that_is_back(patch: Patch) -> None:
    patch(agents, "_found", lambda state, node, allocation, running, started_for=0.0: None)


def let_strangers_run(patch: Patch) -> None:
    patch(agents, "_unknown_allocation", lambda state, node, item: None)


def forget_keys(patch: Patch) -> None:
    def submit(state: GridState, event: JobsSubmitted) -> None:
        kept, state.keys = state.keys, {}
        admission.submit(state, event)
        state.keys = kept | state.keys

    patch(ledger, "ON", {**ledger.ON, JobsSubmitted: submit})


def take_a_result_for_another(patch: Patch) -> None:
    exited = agents._exited

    def wrong(state: GridState, node: Node, message: Exited) -> None:
        exited(state, node, msgspec.structs.replace(message, outcome=msgspec.structs.replace(message.outcome, code=0)))

    patch(agents, "_ON", {**agents._ON, Exited: wrong})


def count_offers_twice(patch: Patch) -> None:
    """And the node's own records, which would refuse it, are not asked."""
    rebuild = GridState.rebuild

    def blind(self: GridState, node: Node) -> None:
        if node.offer is not None:
            node.offer = msgspec.structs.replace(node.offer, counting=tuple(node.allocations))
        rebuild(self, node)

    patch(GridState, "rebuild", blind)
    patch(Table, "_refusal", lambda self, launch, before: ("", ""))
    patch(Lender, "verify", lambda self, grant, sample, holdings, allocation: None)


def start_what_was_declined(patch: Patch) -> None:
    """And the coordinator lets out what was given up while its launch waited."""
    decline = Table._decline

    def forgetful(self: Table, stale: Stale, freed: Any = None) -> Any:
        report = decline(self, stale, freed)
        self._declined.clear()
        return report

    patch(Table, "_decline", forgetful)
    patch(Coordinator, "_overtaken", lambda self, launch, node: False)
    patch(Judge, "launched", lambda self, allocation, node: None)


def start_in_spite_of_an_intent(patch: Patch) -> None:
    launch = Allocations.launch

    def again(self: Allocations, order: dict[str, Any]) -> None:
        self._journaled.jobs.pop(order["id"], None)
        self._journaled.forgotten.pop(order["id"], None)
        launch(self, order)

    patch(Allocations, "launch", again)


def obey_two_coordinators(patch: Patch) -> None:
    """Both work with the one store that they think is theirs."""
    patch(Table, "refuses", lambda self, grid, epoch, instance: "")


def drop_all_ends_at_one_acknowledgement(patch: Patch) -> None:
    ack = Table._ack

    def all_of_them(self: Table, message: Ack) -> Any:
        return ack(self, Ack(allocations=tuple(key for key, one in self.entries.items() if one.over)))

    patch(Table, "_ack", all_of_them)


def begin_without_what_is_held(patch: Patch) -> None:
    """A coordinator that starts does not know what runs."""
    patch(Disk, "allocations", lambda self: iter(()))


def decide_about_a_gang_before_all_of_it_is_over(patch: Patch) -> None:
    """And the ledger does not look."""
    part_over = outcomes.part_over

    def early(state: GridState, job: Job, allocation: Allocation, *rest: Any, **more: Any) -> None:
        part_over(state, job, allocation, *rest, **more)
        if (part := outcomes.end_of_member(job)) is not None and part.kind is EndKind.TO_RETRY:
            for one in outcomes.gang_members(state, job):
                if one.allocation in state.allocations:
                    state.move(state.allocations[one.allocation], JobState.ENDED)
                    state.become(one, MemberEnded(end=part, attempt=one.active.attempt), "too early")
            outcomes._decide_gang(state, outcomes.gang_members(state, job))

    patch(outcomes, "part_over", early)
    patch(Ledger, "check", lambda self: None)


def let_the_others_of_a_gang_go_on(patch: Patch) -> None:
    patch(attempts, "request_gang_stop", lambda *of, **more: None)


def end_the_members_of_a_gang_one_by_one(patch: Patch) -> None:
    """And the ledger does not look."""

    def alone(state: GridState, job: Job, allocation: Allocation, outcome: Any, text: str, again: bool = True) -> None:
        job.index, state.groups[job.group].live = 0, {job.id: None}
        gangs_part_over(state, job, allocation, outcome, text, again)

    gangs_part_over = outcomes.part_over
    patch(outcomes, "part_over", alone)
    patch(Ledger, "check", lambda self: None)


def let_go_who_waits_for_others(patch: Patch) -> None:
    patch(dependencies, "_judge", lambda state, condition: True)


def take_every_end_for_a_good_one(patch: Patch) -> None:
    patch(dependencies, "_meets", lambda kind, end: True)


def end_who_waits_for_others_at_any_end(patch: Patch) -> None:
    patch(dependencies, "_meets", lambda kind, end: False)


def let_all_of_an_array_go_at_once(patch: Patch) -> None:
    """And the ledger does not look."""

    def all_of_it(state: GridState, members: Members) -> None:
        while members.group.id not in state.dependencies.unmet and members.pending:
            if (job := state.jobs.get(members.pending.popleft())) is not None:
                state.enqueue(job)

    patch(groups, "release", all_of_it)
    patch(Ledger, "check", lambda self: None)


def do_not_ask_for_labels(patch: Patch) -> None:
    patch(LabelRule, "met", lambda self, labels: True)
    patch(Judge, "_where_it_may", _with_labels(Judge._where_it_may))


def _with_labels(look: Callable[..., None]) -> Callable[..., None]:
    """The judge looks by himself."""

    def where(self: Judge, run: Any, plan: Any) -> None:
        look(self, run, plan)
        for rule in plan.request.constraints.labels if plan.request.constraints is not None else ():
            value = self.nodes[run.node].labels.get(rule.key)
            if value is None if rule.sign is Sign.THERE else (value == rule.value) is not (rule.sign is Sign.IS):
                raise Violation(run.job, "it runs where it may not")

    return where


def run_jobs_of_everyone_everywhere(patch: Patch) -> None:
    patch(Catalogue, "whose", lambda self, user: None)
    patch(table, "unfit", lambda *told: "")
    for module in (constraints, matching, candidates):
        patch(module, "admitted", lambda facts, request: True)


def do_not_ask_for_walls(patch: Patch) -> None:
    patch(Walls, "meets", lambda self, least: True)


def forget_who_is_to_be_excluded(patch: Patch) -> None:
    accept = matching._accept

    def lax(nodes: Any, request: Any, capacities: Any, apart: Any) -> Any:
        asked = request.constraints and msgspec.structs.replace(request.constraints, exclude=())
        return accept(nodes, msgspec.structs.replace(request, constraints=asked), capacities, apart)

    patch(matching, "_accept", lax)


def do_not_wake_who_is_to_end(patch: Patch) -> None:
    end = Endings.end

    def deaf(self: Endings, job: Any, grace: float) -> None:
        thaw = Freezer.thaw
        Freezer.thaw = lambda self, job, *causes: False  # type: ignore[method-assign]
        try:
            end(self, job, grace)
        finally:
            Freezer.thaw = thaw  # type: ignore[method-assign]

    patch(Endings, "end", deaf)


def serve_whoever_came_first_whatever_he_holds(patch: Patch) -> None:
    patch(ranking, "_rank_of", lambda state, standing, line, at, shares: Rank(0.0, state.queue.head(line)[1]))


def let_anybody_start_where_a_node_is_kept(patch: Patch) -> None:
    patch(reservations, "in_the_way", lambda *of: None)


def let_anybody_start_where_a_node_is_kept_for_who_is_overdue(patch: Patch) -> None:
    """And the judge does not look at who is delayed by a grant: how long the first waits has to show."""
    let_anybody_start_where_a_node_is_kept(patch)
    patch(grant_order, "_nobody_is_delayed", lambda *of: None)


def serve_nobody_first_for_being_overdue(patch: Patch) -> None:
    rank_of = ranking._rank_of
    patch(ranking, "_rank_of", lambda *of: msgspec.structs.replace(rank_of(*of), overdue=-1))


def start_the_members_of_a_gang_elsewhere_than_others_gave_way_for_them(patch: Patch) -> None:
    whole = earmarks.whole

    def turned(state: GridState, job: Job, kept: Any) -> Any:
        places = whole(state, job, kept)
        return places[::-1] if places is not None else None

    patch(earmarks, "whole", turned)
    patch(earmarks, "close", _without_words(earmarks.close))


def _without_words(close: Callable[..., None]) -> Callable[..., None]:
    return lambda state, receipt, result, text: close(state, receipt, result, "")


def start_an_urgent_gang_with_one_member_less(patch: Patch) -> None:
    """And the ledger does not look."""
    start = outcomes.start_gang

    def short(state: GridState, leader: Job, found: Any, met: Any) -> None:
        live = state.groups[leader.group].live
        if leader.plans and len(live) > 1:
            last = live.popitem()
            start(state, leader, found[:-1], met[:-1])
            live[last[0]] = None
        else:
            start(state, leader, found, met)

    patch(outcomes, "start_gang", short)
    patch(Ledger, "check", lambda self: None)


def let_everybody_pass_quotas(patch: Patch) -> None:
    patch(rights, "admits", lambda state, job: True)


def look_at_one_member_of_a_gang_alone(patch: Patch) -> None:
    over_held = rights._over_held

    def alone(state: GridState, pool: Any, ask: Any, own: Any, line: Any) -> Any:
        one = msgspec.structs.replace(ask, request=msgspec.structs.replace(ask.request, gang=0))
        return over_held(state, pool, one, own, line)

    patch(rights, "_over_held", alone)


def forget_who_waits_for_a_quota(patch: Patch) -> None:
    patch(rights, "has_changed", lambda state: False)


def let_who_can_never_start_keep_others_of_the_pool_waiting(patch: Patch) -> None:
    patch(rights, "_never", lambda pool, ask: iter(()))


def lose_what_operators_have_granted(patch: Patch) -> None:
    apply = Disk.apply

    def forgetful(self: Disk, snapshot: Any) -> None:
        snapshot.rights.clear()
        apply(self, snapshot)

    patch(Disk, "apply", forgetful)


def give_successors_what_others_wait_for(patch: Patch) -> None:
    patch(successors, "_is_wanted", lambda *_: False)


def give_back_what_a_successor_takes_over(patch: Patch) -> None:
    promote = GridState._promote

    def generous(self: GridState, node: Node, ended: Allocation, allocation: Allocation) -> None:
        promote(self, node, ended, allocation)
        if node.capacity is not None and allocation.id not in node.counting:
            node.capacity.give(allocation.grant)
            self.refresh(node)

    patch(GridState, "_promote", generous)


def requeue_before_the_node_has_given_a_successor_up(patch: Patch) -> None:
    take_back = successors.take_back

    def at_once(state: GridState, allocation: Allocation, why: str) -> None:
        take_back(state, allocation, why)
        if allocation.id in state.allocations:
            outcomes.requeue(state, state.jobs[allocation.job], allocation, why)

    patch(successors, "take_back", at_once)


def move_whoever_runs(patch: Patch) -> None:
    patch(stays, "may_leave", lambda job, allocation: allocation.state is JobState.RUNNING)


def move_before_the_min_hold_is_over(patch: Patch) -> None:
    obstacle = leaving.obstacle

    def hasty(one: Any, moved: Any, values: Any, now: float) -> str:
        return obstacle(msgspec.structs.replace(one, protected=0.0), moved, values, now)

    patch(leaving, "obstacle", hasty)


def move_from_anywhere(patch: Patch) -> None:
    patch(leaving, "obstacle", lambda one, moved, values, now: "" if one.target else "nowhere to go")


def forget_what_moves_have_lost(patch: Patch) -> None:
    patch(Preemptions, "lose", lambda self, lost, now: None)


def lend_beyond_the_headroom(patch: Patch) -> None:
    excess = view.Source.excess
    patch(view.Source, "excess", lambda self, headroom: excess(self, 0.0))


def take_a_boost_back_before_its_min_hold(patch: Patch) -> None:
    patch(rebalance, "_barred_back", lambda loan, moved, values, now: not loan.joined)


def lend_without_rest(patch: Patch) -> None:
    patch(rebalance, "lends_from", lambda moved, values: 0.0)


def lend_again_what_was_lent_in_vain(patch: Patch) -> None:
    made = passes.view_of
    patch(passes, "view_of", lambda *known: msgspec.structs.replace(made(*known), vain={}))


def forget_what_runs_inside_of_a_hold(patch: Patch) -> None:
    free = holds.free

    def empty(state: GridState, hold: Allocation) -> Any:
        node = state.nodes[hold.node]
        inside, node.inside = node.inside, {}
        found = free(state, hold)
        node.inside = inside
        return found

    patch(holds, "free", empty)


def wake_nobody_when_a_hold_begins(patch: Patch) -> None:
    begin = attempts._begin_hold

    def silently(state: GridState, job: Job, allocation: Allocation) -> None:
        changed = dict(state.holds.changed)
        begin(state, job, allocation)
        state.holds.changed = changed

    patch(attempts, "_begin_hold", silently)


def end_holds_before_their_time(patch: Patch) -> None:
    patch(holds, "expires", lambda hold: hold.started + hold.spec.time_limit - 2.0)


def requeue_who_is_to_end(patch: Patch) -> None:
    patch(attempts, "was_evicted", lambda job, allocation, outcome: outcome.cause in attempts.EVICTION_CAUSES)


def let_who_is_predicted_to_be_short_delay_anybody(patch: Patch) -> None:
    patch(reservations, "_likely_over", lambda state, ask, one, begins, now: begins < math.inf)


BREACHES: dict[Callable[[Patch], None], int] = {
    launch_before_commit: 3007,
    acknowledge_before_commit: 0,
    forget_what_waits_for_a_commit_that_failed: 53,
    run_again_before_it_is_known_to_be_over: 2,
    give_up_at_once: 0,
    run_again_without_limit: 1,
    leases_are_not_kept: 1639,
    lose_what_was_never_ordered: 56,
    say_nothing_again_to_a_node_that_is_back: 22,
    let_strangers_run: 26,
    forget_keys: 76,
    take_a_result_for_another: 1,
    count_offers_twice: 280,
    start_what_was_declined: 678,
    start_in_spite_of_an_intent: 93,
    obey_two_coordinators: 4,
    drop_all_ends_at_one_acknowledgement: 1893,
    begin_without_what_is_held: 3,
    decide_about_a_gang_before_all_of_it_is_over: 72,
    let_the_others_of_a_gang_go_on: 59,
    end_the_members_of_a_gang_one_by_one: 6,
    let_go_who_waits_for_others: 1,
    take_every_end_for_a_good_one: 6,
    end_who_waits_for_others_at_any_end: 1,
    let_all_of_an_array_go_at_once: 3003,
    do_not_ask_for_labels: 26,
    run_jobs_of_everyone_everywhere: 13,
    do_not_ask_for_walls: 13,
    forget_who_is_to_be_excluded: 7,
    do_not_wake_who_is_to_end: 119,
    serve_whoever_came_first_whatever_he_holds: 3003,
    let_anybody_start_where_a_node_is_kept: 6,
    let_anybody_start_where_a_node_is_kept_for_who_is_overdue: 445,
    serve_nobody_first_for_being_overdue: 28,
    start_the_members_of_a_gang_elsewhere_than_others_gave_way_for_them: 3011,
    start_an_urgent_gang_with_one_member_less: 17,
    let_everybody_pass_quotas: 11,
    look_at_one_member_of_a_gang_alone: 125,
    forget_who_waits_for_a_quota: 3031,
    let_who_can_never_start_keep_others_of_the_pool_waiting: 42,
    lose_what_operators_have_granted: 7,
    give_successors_what_others_wait_for: 14,
    give_back_what_a_successor_takes_over: 28,
    requeue_before_the_node_has_given_a_successor_up: 57,
    move_whoever_runs: 75,
    move_before_the_min_hold_is_over: 1116,
    move_from_anywhere: 56,
    forget_what_moves_have_lost: 999,
    lend_beyond_the_headroom: 12,
    take_a_boost_back_before_its_min_hold: 35,
    lend_without_rest: 35,
    lend_again_what_was_lent_in_vain: 35,
    forget_what_runs_inside_of_a_hold: 35,
    wake_nobody_when_a_hold_begins: 25,
    end_holds_before_their_time: 222,
    requeue_who_is_to_end: 43,
    let_who_is_predicted_to_be_short_delay_anybody: 3035,
}
WITHOUT: dict[Callable[[Patch], None], tuple[str, ...]] = {
    start_what_was_declined: ("lending",),
    move_from_anywhere: ("rights",),
}
"""What is left out of the worlds of some seeds, which are of a time when it was not drawn yet."""


@pytest.mark.parametrize("breach", BREACHES, ids=[one.__name__ for one in BREACHES])
def test_it_shows(breach: Callable[[Patch], None]) -> None:
    # Some seeds are of a time when no world had rights, or moved jobs, or lent by itself.
    seeds: list[tuple[int, tuple[str, ...]]] = [
        (BREACHES[breach], WITHOUT.get(breach, ())),
        (BREACHES[breach], ()),
        (BREACHES[breach], ("rights",)),
        (BREACHES[breach], ("lending",)),
        (BREACHES[breach], ("rebalancing", "lending")),
        *((seed, ()) for seed in range(MOST)),
    ]
    what = shown(breach, seeds)
    print(what)
    assert what, f"{MOST} seeds show nothing"
