"""Reconcile a provider's list of its machines with the records of the ledger."""

from distributed_grid.coordinator.core.commands import Audit
from distributed_grid.coordinator.core.scaling import machines
from distributed_grid.coordinator.core.scaling.events import EndMachine, MachinesListed
from distributed_grid.coordinator.core.scaling.machines import SOON
from distributed_grid.coordinator.core.scaling.state import Listed, Orphan, Provider
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.nodes import NodeFacts, NodeState
from distributed_grid.protocol.scaling.machines import STARTING, Machine, MachineState
from distributed_grid.protocol.scaling.pools import Orphans, is_machine_name

MISSED_MOST = 2
"""Number of lists in a row that a machine has to be missing in to count as gone."""
QUEUE_STEP = 60.0
"""Resolution of the recorded time since when a machine from its provider's queue may run (s)."""
SLACK = 5.0
"""Tolerated difference between our end of a machine's life and its provider's (s)."""
LIFE_MOST = 3.2e8
"""Longest life of a machine that is taken up (s): ten years, as no pool has a longer one."""
S = MachineState
ENDS_BY_ITSELF = (S.BOOTING, S.JOINED, S.DRAINING)


def listed(state: GridState, event: MachinesListed) -> None:
    """Compare a provider's list with the records. A list that failed changes nothing."""
    provider = state.scaling.provider(event.provider)
    if event.number != provider.listing:
        return  # an older list, or one of an earlier start
    if event.listed is None:
        provider.trouble = event.trouble[:500]
        if event.credentials:
            machines.halt(state, provider, event.provider, event.trouble)
        return
    provider.answered, provider.seen = event.number, state.now
    found: dict[str, list[Listed]] = {}
    over = {one.handle: one for one in event.listed if one.ended}
    for one in event.listed:
        if not one.ending and not one.ended:
            found.setdefault(one.name, []).append(one)
    doubts: list[str] = []
    handles = set[str]()
    for machine in [one for one in state.scaling.machines.values() if one.live and one.provider == event.provider]:
        handles.add(machine.handle)
        if (mine := found.pop(machine.name, None)) is not None:
            _is_listed(state, machine, mine)
        elif machine.state in ENDS_BY_ITSELF and (how := over.get(machine.handle)) is not None:
            _has_ended(state, machine, how)
        elif _is_connected(state, machine):
            doubts.append(f"it does not list {machine.name}, whose agent is connected")
        else:
            _is_missing(state, machine, provider)
    strange: list[Listed] = []
    unrecorded: list[Listed] = []
    for one in (one for many in found.values() for one in many):
        ours = is_machine_name(one.name, one.pool) and one.handle not in handles
        (unrecorded if ours else strange).append(one)
    if strange:
        such = f"{strange[0].name[:80]!r} ({strange[0].handle[:80]})"
        doubts.append(f"of what it lists {len(strange)} can be no machine of this grid, such as {such}")
    _unrecorded(state, event.provider, provider, unrecorded)
    if not provider.halted:
        provider.trouble = "; ".join(doubts)[:500]
    state.deadlines.arm("scaling", "", state.now)


def _is_connected(state: GridState, machine: Machine) -> bool:
    """Whether a machine certainly exists, whatever a list says: its agent is connected."""
    node = state.nodes.get(machine.name) if machine.state in (S.JOINED, S.DRAINING) else None
    return node is not None and bool(node.session) and node.state is NodeState.UP


def _is_listed(state: GridState, machine: Machine, mine: list[Listed]) -> None:
    """Handle a machine that is listed. If two have its name, one that is not in use is ended."""
    kept = next(
        (one for one in mine if one.handle == machine.handle), min(mine, key=lambda one: (one.born, one.handle))
    )
    for other in mine:
        if other.handle != kept.handle:
            state.out.append(EndMachine(machine.provider, other.name, other.handle))
    if machine.state in (S.WANTED, S.CREATING):
        if machine.state is S.WANTED:
            machine = machines.move(state, machine, S.CREATING, born=machine.born or state.now)
        machines.is_there(state, machine, kept.handle)
    elif machine.handle != kept.handle or machine.missed:
        machines.move(state, machine, machine.state, handle=kept.handle, missed=0)
    machine = state.scaling.machines[machine.name]
    if machine.state is S.BOOTING and (machine.queued or kept.queued):
        _is_queued(state, machine, kept)
    elif kept.failed and machine.state in ENDS_BY_ITSELF and not _is_connected(state, machine):
        _is_dead(state, machine, kept)
    elif machine.state in (S.JOINED, S.DRAINING) and 0 < (ends := kept.end(state.now)) < machine.ends_by - SLACK:
        machines.move(state, machine, machine.state, ends_by=ends)  # its provider itself ends it sooner


def _is_queued(state: GridState, machine: Machine, listed: Listed) -> None:
    """Take in a machine that waits in its provider's queue, or has just left it."""
    text = f"it waits in the queue of {machine.provider}{f': {listed.why}' if listed.why else ''}"
    if listed.queued and listed.failed:
        why = f"{text}, so that it never begins"
        machines.end(state, machine, why)
        machines.count_never_joined(state, machine, why)
    elif not listed.queued:
        machines.await_join(
            state,
            machines.move(state, machine, S.BOOTING, "it runs", queued=False, **machines.begins(machine, state.now)),
        )
    elif not machine.queued or state.now >= machine.born + QUEUE_STEP or machine.text != text[:1000]:
        machines.await_join(
            state, machines.move(state, machine, S.BOOTING, text, queued=True, **machines.begins(machine, state.now))
        )


def _is_dead(state: GridState, machine: Machine, how: Listed) -> None:
    """End a machine of which something is left, but nothing that could bring it back: its node is not waited for."""
    text = f"has failed{f': {how.why}' if how.why else ''}"
    machines.end(state, machine, text)
    if machine.state is S.BOOTING:
        machines.count_never_joined(state, machine, f"it {text}")


def _has_ended(state: GridState, machine: Machine, how: Listed) -> None:
    """Take in a machine that has ended by itself or was taken back by its provider, or that failed to start."""
    text = f"has ended{f': {how.why}' if how.why else ''}"
    machines.gone(state, machine, text)
    if machine.state is S.BOOTING and how.failed:
        machines.count_never_joined(state, machine, f"it {text}")


def _is_missing(state: GridState, machine: Machine, provider: Provider) -> None:
    """Take in that a machine is missing in a list that was asked for at `listing_since`."""
    since = provider.listing_since
    if machine.state in STARTING and machine.state is not S.BOOTING:
        return  # it is asked for again
    if machine.state is S.ENDING:
        late = machine.asked + state.policy.scaling.orphan_after
        if since > machine.since and (machine.sure or since >= late):
            machines.gone(state, machine, machine.text)
        return
    if since <= machine.since:
        return
    missed = machine.missed + 1
    if missed >= MISSED_MOST:
        machines.gone(state, machine, "is not there any more")
        # One that cannot be set up shuts itself down, and many providers list it no more; they also do so with what
        # they take back, and a batch system with what it has preempted: those are no failures.
        if machine.state is S.BOOTING and not machine.spot and not machine.queue_within:
            machines.count_never_joined(state, machine, "it is not there any more")
    else:
        machines.move(state, machine, machine.state, missed=missed)
        state.deadlines.arm("look", machine.provider, state.now + SOON)


def _unrecorded(state: GridState, name: str, provider: Provider, found: list[Listed]) -> None:
    """Adopt or end machines of this grid that are in no record."""
    scaling, seen = state.policy.scaling, dict[str, Orphan]()
    left: list[Listed] = []
    for one in found:
        node, known = state.nodes.get(one.name), state.scaling.machines.get(one.name)
        if known is None and node is not None and node.session:
            _adopt(state, name, one, node.facts)
            continue
        left.append(one)
        before = provider.unrecorded.get(one.handle)
        orphan = before or Orphan(state.now)
        # After the restore of a backup its agent may not be connected yet, however old it is; and however young it is
        # by what the list says, it was there when it was listed first.
        old = known is not None or state.now >= orphan.first + scaling.orphan_after
        if before is not None and old and scaling.orphans is Orphans.END:
            if not orphan.ended:
                state.out.append(
                    Audit("", f"machine {one.name} ({one.handle}) of {name} is in no record, and is ended")
                )
            state.out.append(EndMachine(name, one.name, one.handle))
            orphan = Orphan(orphan.first, True)
        seen[one.handle] = orphan
    if left and any(one.handle not in provider.unrecorded for one in left):
        state.deadlines.arm("look", name, state.now + min(scaling.look, 5.0))
    provider.unrecorded, provider.unknown = seen, left


def _adopt(state: GridState, provider: str, one: Listed, facts: NodeFacts) -> None:
    """Adopt a running machine that is in no record, as after the restore of a backup."""
    pool = state.policy.scaling.pool(one.pool)
    life = pool.life if pool is not None else 0.0
    shape = pool.shape(one.type) if pool is not None else None
    born = min(one.born, state.now) if one.born > 0 else state.now
    if not 0 < (ends_by := one.end(state.now)) <= state.now + LIFE_MOST:  # as where it is told in milliseconds
        ends_by = born + life
    machine = Machine(
        name=one.name,
        pool=one.pool,
        provider=provider,
        type=one.type,
        zone=one.zone,
        state=S.BOOTING,
        wanted=born,
        since=state.now,
        born=born,
        ends_by=ends_by,
        handle=one.handle,
        resources=facts.lendable,
        price=shape.price if shape is not None else None,
        why="it was found running",
    )
    state.scaling.machines[one.name] = machine
    state.out.append(Audit(one.name, f"machine {one.handle} of {provider} was in no record, and is taken up"))
    machines.joined(state, facts)
