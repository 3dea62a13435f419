"""The invariants of the ledger, checked by tests after every event. Read-only."""

import math
from collections import Counter

from distributed_grid.coordinator.core.lifecycle import outcomes
from distributed_grid.coordinator.core.model import Allocation, AwaitsHold, Earmarked, HeldBack, Node, Queued
from distributed_grid.coordinator.core.queue import rights
from distributed_grid.coordinator.core.queue.queue import Line, Members, Standing
from distributed_grid.coordinator.core.queue.quotas import Quotas
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.groups import GroupKind
from distributed_grid.protocol.jobs import HOLDING, Request, State
from distributed_grid.protocol.messages.rights import Rules
from distributed_grid.protocol.resources import MILLI, Grant, Resources

NO_RULES = Rules()


def check(state: GridState) -> None:
    """Raise AssertionError at the first invariant that does not hold."""
    awaiting = _check_jobs(state)
    grouped = sum(_check_group(state, members) for members in state.groups.values())
    keyed = len(state.jobs) - grouped + len(state.groups)
    assert len(state.keys) == keyed, "a key is left of a job that is gone"
    assert len(state.turns) == len(state.jobs), "a turn is left of a job that is gone"
    assert not state.facts, "an end was not followed"
    _check_held(state)
    _check_holds(state, awaiting)
    _check_chains(state)
    _check_quotas(state)
    _check_loans(state)
    assert state.queue.turns.keys() <= state.jobs.keys(), "the queue holds a job that is gone"
    by_node = {name: {**node.allocations, **node.not_holding, **node.inside} for name, node in state.nodes.items()}
    for allocation in state.allocations.values():
        job_of = state.jobs.get(allocation.job)
        assert job_of is not None and job_of.allocation == allocation.id, f"{allocation.id} is nobody's"
        assert by_node[allocation.node].pop(allocation.id, None) is allocation, f"{allocation.id} is not on its node"
    assert not any(by_node.values()), f"nodes hold what the ledger does not know: {by_node}"
    for node in state.nodes.values():
        _check_node(state, node)
        if node.not_holding or state.chains.predecessors:
            _check_chains_of(state, node)
        for name in node.earmarks:
            waiting = state.jobs[name].phase
            assert isinstance(waiting, Earmarked), f"{node.facts.name} keeps a set for {name}"
            here = node.facts.name in {place.node for place in waiting.earmark.places}
            assert here, f"{node.facts.name} keeps a set for {name}, which has its own elsewhere"


def _check_jobs(state: GridState) -> dict[str, str]:
    """Check each job; returns those that wait for room in a hold, with that hold."""
    awaiting = dict[str, str]()
    allocations, queued, keys = state.allocations, state.queue.turns, state.keys
    for name, job in state.jobs.items():
        phase, allocation = job.phase, allocations.get(job.allocation)
        kind, at = type(phase), phase.state
        if at is State.WAITING:
            assert allocation is None, f"{name} waits and holds {job.allocation}"
            if not job.request.gang:
                kept_back = name in (state.groups[job.group].pending if job.group else state.dependencies.unmet)
                assert kept_back is (kind is HeldBack), f"{name} is {phase}, held back: {kept_back}"
            assert (name in queued) is (kind is Queued), f"{name} is {phase}, in the queue: {kind is not Queued}"
            if kind is AwaitsHold:
                awaiting[name] = job.request.within
            elif isinstance(phase, Earmarked):
                for place in phase.earmark.places:
                    there = state.nodes[place.node].earmarks.get(name)
                    assert there == place.grant, f"{place.node} does not keep what is kept for {name}"
        else:
            assert at in HOLDING, f"{name} is {at.value} and still in the ledger"
            assert allocation is not None, f"{name} is {at.value} without an allocation"
            assert allocation.state is at, f"{name} is {at.value}, its allocation {allocation.state}"
            assert name not in queued, f"{name} is {at.value} and in the queue"
        if not job.group:
            assert keys[(job.user, job.key)] == name, f"the key of {name} stands for another job"
    return awaiting


def _check_chains(state: GridState) -> None:
    """Check that what is known of the chains of successors is of chains that there are."""
    chains = state.chains
    if not (chains.successors or chains.predecessors or chains.members or chains.overdue or chains.kinds):
        return
    assert chains.successors.keys() <= state.allocations.keys(), "what has ended has a successor"
    assert {*chains.predecessors} == {*chains.successors.values()}, "successors are not where they are to be"
    assert chains.members.keys() == chains.successors.keys() | chains.predecessors.keys(), "members of no chain"
    for name, chain in chains.members.items():
        assert [*chain] == [chain[0], *chains.successors_of(chain[0])] and name in chain, f"{name} is in another chain"
    assert chains.overdue.keys() <= state.allocations.keys(), "what has ended may be taken back"
    assert chains.kinds.keys() <= state.allocations.keys(), "what has ended may get a successor"


def _check_chains_of(state: GridState, node: Node) -> None:
    """Check that the chains of successors on a node are whole."""
    chains = state.chains
    for name, allocation in node.not_holding.items():
        assert name not in node.allocations, f"{name} holds something and nothing"
        before = chains.predecessors.get(name)
        if before is None:
            assert name not in chains.successors, f"{name} was taken over from, and has a successor"
            continue
        assert chains.successors.get(before) == name, f"{name} waits for {before}, which has another successor"
        assert before in node.allocations or before in node.not_holding, (
            f"{name} waits for {before}, which is not there"
        )
        assert allocation.predecessor == before and state.jobs[allocation.job].active.predecessor == before, (
            f"{name} says otherwise"
        )
        assert allocation.grant == state.allocations[before].grant, f"{name} is to hold what {before} does not"
    for name in node.allocations:
        assert name not in chains.predecessors, f"{name} holds something, and waits"


def _check_holds(state: GridState, awaiting: dict[str, str]) -> None:
    """Check that `awaiting` is exactly the set of jobs that wait for holds, and that the jobs inside of each hold stay
    within its grant."""
    known = {name: hold for hold, inside in state.holds.waiting.items() for name in inside.jobs}
    assert awaiting == known, f"{awaiting} wait for holds, and {known} are known"
    for there in state.holds.waiting.values():
        assert there.jobs and there.new.keys() <= there.jobs.keys(), "a hold is kept for whom nobody waits"
        for name, (request, turn) in there.jobs.items():
            assert (request, turn) == (state.jobs[name].request, state.turns[name]), f"{name} waits with another turn"
            assert (turn, name) in there.lines[request], f"{name} is not in its line"
    for node in state.nodes.values():
        grants = dict[str, list[Grant]]()
        for name, allocation in node.inside.items():
            hold = node.allocations.get(allocation.within)
            assert hold is not None and hold.hold, f"{name} is inside of {allocation.within}, which is no hold there"
            assert state.jobs[allocation.job].user == state.jobs[hold.job].user, f"{name} is in a hold of another user"
            grants.setdefault(hold.id, []).append(allocation.grant)
        for name, inside in grants.items():
            hold = node.allocations[name]
            whole = [core for grant in inside for core in grant.cores]
            shared: Counter[int] = Counter()
            for grant in inside:
                shared[grant.shared_core] += grant.shared_milli
            assert len({*whole}) == len(whole) and not {*whole} & {*shared}, f"a core of {hold.id} is granted twice"
            for core in {*whole, *(one for one, milli in shared.items() if milli)}:
                most = MILLI if core in hold.grant.cores else hold.grant.shared_milli * (core == hold.grant.shared_core)
                assert max(MILLI * (core in whole), shared[core]) <= most, f"core {core} is not of {hold.id}"
            assert sum(grant.memory for grant in inside) <= hold.grant.memory, f"{hold.id} has too little memory"
            gpus: Counter[str] = Counter()
            for grant in inside:
                gpus.update({gpu.uuid: gpu.milli for gpu in grant.gpus})
            has = {gpu.uuid: gpu.milli for gpu in hold.grant.gpus}
            assert all(milli <= has.get(uuid, 0) for uuid, milli in gpus.items()), f"{hold.id} has not these GPUs"


def _check_quotas(state: GridState) -> None:
    """Check that pools hold what a count from scratch finds, and that lines are excluded as is noted."""
    quotas = state.quotas
    if quotas.granted or state.policy.rights != NO_RULES:
        again = Quotas(state.policy.rights)
        again.granted = quotas.granted
        again.rebuild(state.jobs, state.holders(), state.inside_holds())
        for pool in again.all_pools():
            mine = quotas.pool(pool.id)
            assert mine is not None, f"{pool.name} is not counted"
            counts = (mine.held, mine.jobs, mine.inside, mine.limits), (pool.held, pool.jobs, pool.inside, pool.limits)
            assert counts[0] == counts[1], f"{pool.name} is miscounted"
            assert mine.allocations == pool.allocations, f"{pool.name} holds other allocations than its jobs"
    rights.check_used(state)
    needs, lines_of = dict[Resources | None, int](), dict[Standing, list[Line]]()
    for key, line in state.queue.lines.items():
        assert not line.excluded or key in quotas.excluded, f"a line of {key[0]} is excluded and would not be reviewed"
        needs[line.need] = needs.get(line.need, 0) + 1
        lines_of.setdefault(line.standing, []).append(line)
    assert state.queue.needs == needs, "the queue miscounts what its lines need"
    for standing in state.queue.standings.values():
        _check_standing(state, standing, lines_of.get(standing, []))


def _check_standing(state: GridState, standing: Standing, lines: list[Line]) -> None:
    """Check what a standing knows of its lines."""
    needs, excluded, included, first = dict[Resources | None, int](), list[Line](), 0, math.inf
    for line in lines:
        needs[line.need] = needs.get(line.need, 0) + 1
        if line.excluded:
            excluded.append(line)
        else:
            included, first = included + 1, min(first, _first_turn(state, line))
    assert standing.needs == needs, f"the queue miscounts what the lines of {standing.user} need"
    assert standing.included == included, f"{standing.user} has {included} lines to serve"
    assert not included or standing.place[1] <= first, f"{standing.user} is served by a later job than the first"
    if not excluded:
        return
    firsts = dict[Line, int]()
    for turn, line in standing.excluded:
        firsts[line] = min(turn, firsts.get(line, turn))
    for line in excluded:
        known = firsts.get(line, math.inf) <= _first_turn(state, line)
        assert known, f"{standing.user} is not ranked by all that wait for a quota"


def _first_turn(state: GridState, line: Line) -> int:
    """The turn of the first that waits in a line, without removing from its heap what does not."""
    turn, job = line.heap[0]
    if state.queue.turns.get(job) == turn and state.queue.line(job) is line:
        return turn
    return min(turn for turn, _ in state.queue.waiting(line))


def _check_loans(state: GridState) -> None:
    """Check that what is held on nodes of others is lent, and that all have lent what all have borrowed."""
    loans, owners, part = state.loans, state.policy.sharing.owners, sum(one.part for one in state.loans.live.values())
    for held in state.holders() if owners or loans.live else ():
        lender, user = owners.get(held.node, ""), state.jobs[held.job].user
        loan = loans.live.get(held.id)
        if loan is None:
            assert lender in ("", user) or not held.grant.charged, f"{held.id} is lent to {user}, and is no loan"
        else:
            assert (loan.lender, loan.borrower, loan.node) == (lender, user, held.node), f"{held.id} is another's loan"
    assert loans.live.keys() <= state.allocations.keys(), "what has ended is still lent"
    for kind in (loans.pairs, loans.lent, loans.borrowed):
        assert abs(sum(one.held for one in kind.values()) - part) < 1e-9, "the balances have other loans"
        assert sum(one.loans for one in kind.values()) == len(loans.live), "the balances count other loans"


def _check_held(state: GridState) -> None:
    dependencies = state.dependencies
    assert not dependencies.roots, f"the ends of {list(dependencies.roots)} were not followed"
    for name, unmet in dependencies.unmet.items():
        waiter = state.groups[name].group if name in state.groups else state.jobs[name]
        assert waiter.after == tuple(unmet), f"{name} waits for {list(unmet)}, and {waiter.after} is recorded"
        for one in unmet:
            assert dependencies.on[one.kind][one.on][name] == one, f"{name} would not be told of {one.on}"
            assert one.on in state.jobs or one.on in state.groups, f"{name} waits for {one.on}, which is over"
        assert unmet or ("begin", name) in state.deadlines.armed, f"{name} waits for nothing"
    told = sum(sum(map(len, kind.values())) for kind in dependencies.on.values() if kind)
    assert told == sum(map(len, dependencies.unmet.values())), "somebody would be told who does not wait"


def _check_group(state: GridState, members: Members) -> int:
    """Check a group; returns the number of its live members."""
    name = members.group.id
    jobs = [state.jobs[job] for job in members.live]
    assert jobs, f"{name} is over and still in the ledger"
    assert all(job.group == name for job in jobs), f"{name} holds a job of others"
    states = Counter(job.state for job in jobs)
    kept = {state: count for state, count in members.states.items() if count and state is not State.ENDED}
    assert states == kept, f"{name} counts {kept}, its members are {states}"
    if members.group.kind is GroupKind.GANG:
        outcomes.check_gang(state, jobs, members.group.count)
        return len(jobs)
    active = sum(not state.is_held_back(job) for job in jobs)
    assert active == members.active, f"{name} counts {members.active} at work, {active} are"
    assert not members.most or active <= members.most, f"{active} of {name} are at work, {members.most} may be"
    held = len(jobs) - active
    if name in state.dependencies.unmet:
        assert not active, f"{active} of {name} are at work, and it waits"
    else:
        assert not held or (members.most and active == members.most), f"{held} of {name} are held for nothing"
    return len(jobs)


def _check_slack(state: GridState, node: Node, allocation: Allocation, taken: set[int]) -> None:
    """Check that a revocable allocation runs on cores of a holder, each with one such user, or is being ended."""
    name, grant = allocation.id, allocation.grant
    assert not grant.cores and not grant.gpus and grant.shared_core < 0, f"{name} is on slack, and holds {grant}"
    assert 0 < grant.slack_milli <= len(grant.slack) * MILLI, f"{name} gets {grant.slack_milli} of {grant.slack}"
    assert name in state.on_slack.get(grant.holder, ()), f"{name} is on slack, and not known as that"
    holder = node.allocations.get(grant.holder)
    ends = allocation.stop is not None or name in state.recalls or allocation.state is State.LOST
    if holder is None:
        assert ends, f"{name} runs on cores of {grant.holder}, which does not hold them any more"
        return
    assert {*grant.slack} <= {*holder.grant.cores}, f"{name} runs on cores that {grant.holder} does not hold"
    assert taken.isdisjoint(grant.slack), f"{name} runs on cores of {grant.holder} that another one runs on"
    taken.update(grant.slack)


def _check_node(state: GridState, node: Node) -> None:
    name, facts = node.facts.name, node.facts
    cores: dict[int, int] = {}
    gpus: dict[str, int] = {}
    memory = 0
    on_slack: set[int] = set()
    for allocation in node.allocations.values():
        grant = allocation.grant
        for core in grant.cores:
            cores[core] = cores.get(core, 0) + MILLI
        if grant.slack:
            _check_slack(state, node, allocation, on_slack)
        if grant.shared_core >= 0:
            cores[grant.shared_core] = cores.get(grant.shared_core, 0) + grant.shared_milli
        for gpu in grant.gpus:
            gpus[gpu.uuid] = gpus.get(gpu.uuid, 0) + gpu.milli
        memory += grant.memory
    for core, milli in cores.items():
        assert milli <= MILLI, f"core {core} of {name} is held {milli} times a thousandth"
    for uuid, milli in gpus.items():
        assert milli <= MILLI, f"{uuid} of {name} is held {milli} times a thousandth"
    assert memory <= facts.memory, f"{memory} bytes of {name} are held, it has {facts.memory}"
    assert (name in state.index) == node.usable, f"the index is wrong on whether {name} is usable"
    capacity = node.capacity
    if capacity is None:
        return
    if node.counting:
        known = node.allocations.keys() | node.orphans.keys() | node.inside.keys()
        assert node.counting.keys() <= known, f"{name} counts what it does not hold: {list(node.counting)}"
    # A node that came back with fewer devices may have jobs on those that are gone.
    has_cores, has_gpus = {*facts.cores}, {gpu.uuid for gpu in facts.gpus}
    for core, milli in capacity.cores.items():
        held = cores.get(core, 0)
        most = MILLI if core in has_cores else 0
        assert milli <= most - held, f"{milli} of core {core} of {name} is room, {held} is held, it has {most}"
    for uuid, milli in capacity.gpus.items():
        held = gpus.get(uuid, 0)
        most = MILLI if uuid in has_gpus else 0
        assert milli <= most - held, f"{milli} of {uuid} of {name} is room, {held} is held, it has {most}"
    assert capacity.counts == capacity.counted(), f"the counts of {name} are off"
    for wanted, lost in state.index.mix.known(name).items():
        assert lost == state.index.mix.loss(capacity, Request(wanted)), f"what {name} loses to {wanted} is out of date"
