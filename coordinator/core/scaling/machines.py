"""The lives of machines: what follows from the answers and lists of their providers, from their nodes, and from time.

A machine is on disk before its provider is asked for it, and its name is the token of that call: if asked again, a
provider gives the same machine. A machine counts as gone only when a list says so that was requested after the last
call. A listed machine that has no record is adopted if its agent is connected, and otherwise ended.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Audit, DrainRequested, UndrainRequested
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.nodes import agents, operator
from distributed_grid.coordinator.core.scaling.events import (
    CreateMachine,
    EndMachine,
    ListMachines,
    MachineAnswered,
    MachineMismatched,
    MachineOver,
    RecordMachine,
    RecordPauses,
)
from distributed_grid.coordinator.core.scaling.state import (
    NEVER_JOINED_MOST,
    OVERDUE,
    REFUSED_MOST,
    Answer,
    AsJoined,
    CallKind,
    Paused,
    Provider,
    backoff_key,
)
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.nodes import NodeFacts, NodeState
from distributed_grid.protocol.scaling.machines import MACHINE_MOVES, OVER, Machine, MachineState
from distributed_grid.protocol.scaling.plans import Create, DrainCause, DrainMachine
from distributed_grid.protocol.scaling.pools import Scaling, machine_name
from distributed_grid.protocol.text import format_duration

THE_GRID = "the grid"
"""Who drains the nodes of machines."""
CALL_SECONDS = 120.0
"""Time after which a call without an answer is made again (s); the shell still asks once at a time."""
AGAIN_FIRST, AGAIN_MOST = 2.0, 60.0
"""Pause before a call is made again, doubled each time (s)."""
CALLS_MOST = 40
"""A machine that was asked for so often is given up."""
SOON = 1.0
S = MachineState


# --- the one mutator --------------------------------------------------------------------------------------------------


def move(state: GridState, machine: Machine, to: MachineState, text: str = "", **changes: object) -> Machine:
    """Change the state of a machine, or with the same state something else about it, and record it."""
    name = machine.name
    assert to is machine.state or to in MACHINE_MOVES[machine.state], f"{name} cannot go from {machine.state} to {to}"
    since = state.now if to is not machine.state else machine.since
    given = {"state": to, "since": since, "text": (text or machine.text)[:1000], **changes}
    if to in OVER and machine.live:
        given["over"] = state.now
    now = state.scaling.machines[name] = replace(machine, **given)
    if to is S.JOINED:
        state.scaling.joined[name] = None
    else:
        state.scaling.joined.pop(name, None)
    state.out.append(RecordMachine(name, now))
    return now


def restore(state: GridState, machines: Iterable[Machine], paused: Mapping[str, Paused]) -> None:
    """Load what was on disk. Providers are asked for all their machines before anything is created or ended."""
    known = state.scaling
    known.paused = dict(paused)
    for one in machines:
        known.machines[one.name] = one
        if one.joined:
            known.booted(one)
        if one.state is S.JOINED:
            known.joined[one.name] = None
        if one.state is S.DRAINING:
            known.draining[one.name] = None
        if one.live:
            state.deadlines.arm("machine", one.name, state.now + SOON)
    look_soon(state)


def look_soon(state: GridState) -> None:
    """Ask all needed providers for their machines, and plan."""
    scaling = state.policy.scaling
    for name in sorted(_needed(state)):
        state.deadlines.arm("look", name, state.now)
    if scaling.pools or state.scaling.machines:
        state.deadlines.arm("scaling", "", state.now + SOON)


def _needed(state: GridState) -> set[str]:
    """Providers of configured pools and of machines that are there."""
    live = {one.provider for one in state.scaling.machines.values() if one.live}
    return live | {pool.provider for pool in state.policy.scaling.pools}


def configure(state: GridState, scaling: Scaling) -> None:
    """The configuration was read again: what was refused before may be accepted now."""
    state.policy = replace(state.policy, scaling=scaling)
    state.feasible_nodes.clear()
    state.scaling.begin_anew()
    state.scaling.last = None
    for provider in state.scaling.providers.values():
        provider.halted, provider.trouble = False, ""
    for name, one in list(state.scaling.paused.items()):
        if not one.by:
            _resume(state, name)
    look_soon(state)


# --- creating ---------------------------------------------------------------------------------------------------------


def want(state: GridState, one: Create) -> Machine:
    """Record a machine that a plan creates, and have its provider asked for it."""
    known, pool = state.scaling, state.policy.scaling.pool(one.pool)
    assert pool is not None, f"there is no pool {one.pool}"
    name = ""
    while not name or name in known.machines or name in state.nodes:
        known.number += 1
        name = machine_name(one.pool, state.epoch, known.number)
    machine = Machine(
        name=name,
        pool=one.pool,
        provider=one.provider,
        type=one.type,
        zone=one.zone,
        spot=pool.spot,
        wanted=state.now,
        since=state.now,
        ends_by=state.now + one.life,
        join_within=pool.join_within,
        abandoned_after=pool.abandoned_after,
        queue_within=pool.queue_within,
        queued=pool.queue_within > 0,
        resources=one.resources,
        price=one.price,
        why=one.why[:1000],
        jobs=one.jobs,
    )
    known.machines[name] = machine
    return _ask(state, machine)


def _ask(state: GridState, machine: Machine) -> Machine:
    """Ask the provider of a machine to create it, for the first time or again."""
    calls = machine.calls + 1
    made = move(
        state, machine, S.CREATING,
        calls=calls, asked=state.now, born=machine.born or state.now, retry=state.now + CALL_SECONDS,
    )  # fmt: skip
    state.out.append(CreateMachine(made))
    state.deadlines.arm("machine", made.name, made.retry)
    return made


def answered(state: GridState, event: MachineAnswered) -> None:
    """A provider has answered a call for a machine."""
    machine = state.scaling.machines.get(event.machine)
    if machine is None:
        return
    if event.call is CallKind.CREATE:
        _answered_create(state, machine, event)
    elif machine.state is S.ENDING and event.number == machine.ends:
        _answered_end(state, machine, event)


def _answered_create(state: GridState, machine: Machine, event: MachineAnswered) -> None:
    sure = machine.answered | (1 << event.number - 1) if event.answer is not Answer.LOST else machine.answered
    if not 0 < event.number <= machine.calls:
        return
    if event.answer is Answer.DONE:
        handle = event.handle or machine.handle
        if machine.state is S.CREATING:
            state.scaling.refused.pop(machine.pool, None)
            state.scaling.backoffs.pop(backoff_key(machine.pool, machine.zone, machine.type), None)
            is_there(state, machine, handle, sure)
        elif machine.live:  # of two of its name, as its provider made them, the one that was listed before is it
            move(state, machine, machine.state, handle=machine.handle or handle, answered=sure)
        return
    if not machine.live:
        return
    machine = move(state, machine, machine.state, event.text, answered=sure)
    if machine.state is not S.CREATING or event.number != machine.calls:
        return
    if event.answer is Answer.LOST:
        pause = min(AGAIN_MOST, AGAIN_FIRST * 2 ** min(machine.calls, 10))
        state.deadlines.arm("look", machine.provider, state.now + SOON)
        move(state, machine, S.CREATING, retry=state.now + pause)
        state.deadlines.arm("machine", machine.name, state.now + pause)
        return
    _refused(state, machine, event)


def _refused(state: GridState, machine: Machine, event: MachineAnswered) -> None:
    """A provider does not create a machine: another type or zone is tried at once, this one after a while."""
    known = state.scaling
    text = event.text or f"{machine.provider} refuses it ({event.answer})"
    if event.answer is Answer.CREDENTIALS:
        halt(state, known.provider(machine.provider), machine.provider, text)
    else:
        known.back_off(machine, text, state.now)
    if machine.sure:
        move(state, machine, S.FAILED, text)
    else:
        end(state, machine, f"{text}; an earlier call was not answered")
    state.deadlines.arm("scaling", "", state.now)
    if event.answer is Answer.THROTTLED:
        return  # too many calls at once: the pool itself is not at fault
    count = known.refused[machine.pool] = known.refused.get(machine.pool, 0) + 1
    if count >= REFUSED_MOST:
        pause(state, machine.pool, "", f"{count} creations in a row were refused; the last one: {text}")


def halt(state: GridState, provider: Provider, name: str, text: str) -> None:
    if not provider.halted:
        provider.halted, provider.trouble = True, text[:500]
        state.out.append(Audit("", f"provider {name} is paused until the configuration changes: {text}"))


def is_there(state: GridState, machine: Machine, handle: str, sure: int = 0) -> None:
    """Handle the report that a requested machine exists."""
    known = {"handle": handle, "answered": sure or machine.answered}
    node = state.nodes.get(machine.name)
    made = move(state, machine, S.BOOTING, "it is there", **known)
    if node is not None and node.session:
        if why := mismatch(made, node.facts):
            state.out.append(Audit(made.name, why))
            end(state, made, why)
        else:
            joined(state, node.facts)
    else:
        await_join(state, made)


def await_join(state: GridState, machine: Machine) -> None:
    if machine.queued:
        state.deadlines.arm("machine", machine.name, machine.wanted + machine.queue_within)
    else:
        state.deadlines.arm("machine", machine.name, machine.born + machine.join_within)


def pause(state: GridState, pool: str, by: str, why: str) -> None:
    """Create nothing in a pool until it is resumed."""
    if pool not in state.scaling.paused or by:
        state.scaling.paused[pool] = Paused(state.now, why[:1000], by)
        state.out.append(RecordPauses(dict(state.scaling.paused)))
        if not by:
            state.out.append(Audit("", f"pool {pool} is paused: {why}"))


def _resume(state: GridState, pool: str) -> None:
    for counts in (state.scaling.refused, state.scaling.never_joined):
        counts.pop(pool, None)
    if state.scaling.paused.pop(pool, None) is not None:
        state.out.append(RecordPauses(dict(state.scaling.paused)))


def resume(state: GridState, pool: str) -> None:
    """Create machines in a pool again, and forget what was refused there."""
    _resume(state, pool)
    state.scaling.begin_anew(pool)
    state.deadlines.arm("scaling", "", state.now)


# --- its node ---------------------------------------------------------------------------------------------------------


def joined(state: GridState, facts: NodeFacts) -> None:
    """The agent of a machine has connected."""
    known = state.scaling
    machine = known.machines[facts.name]
    known.as_joined[f"{machine.pool}/{machine.type}"] = AsJoined(facts)
    if machine.state in (S.JOINED, S.DRAINING) and machine.boot != facts.boot_id:
        move(state, machine, machine.state, boot=facts.boot_id)  # the same machine has booted again
    if machine.state not in (S.CREATING, S.BOOTING):
        return
    began = {"queued": False, **begins(machine, state.now)} if machine.queued else {}
    made = move(state, machine, S.JOINED, "its agent has joined", joined=state.now, boot=facts.boot_id, **began)
    known.booted(made)
    known.never_joined.pop(made.pool, None)
    known.idle[made.name] = state.now
    state.deadlines.arm("machine", made.name, made.ends_by + OVERDUE)
    state.deadlines.arm("scaling", "", state.now + SOON)


def refusal(state: GridState, facts: NodeFacts) -> str:
    """Why the agent with these facts may not connect: the machine of its name is to end, or has ended, or is another
    one. Empty: it may."""
    machine = state.scaling.machines.get(facts.name)
    if machine is None:
        return ""
    if machine.state is S.ENDING or not machine.live:
        return f"machine {machine.name} of pool {machine.pool} is {machine.state}: {machine.text}"
    return mismatch(machine, facts)


def mismatch(machine: Machine, facts: NodeFacts) -> str:
    """Why a node with these facts is another machine than the one that is recorded by its name. Empty: it may be that
    one. A machine that proves by its provider's name for it that it is the same one may have booted again."""
    if facts.machine and machine.handle:
        if facts.machine == machine.handle:
            return ""
        return (
            f"machine {machine.name} is {machine.handle} of {machine.provider}, and its agent runs on {facts.machine}"
        )
    if machine.boot and facts.boot_id != machine.boot:
        return (
            f"machine {machine.name} joined with boot id {machine.boot}, and its agent now has {facts.boot_id}: "
            "another machine, or one that has booted again and does not say what its provider calls it"
        )
    return ""


def mismatched(state: GridState, event: MachineMismatched) -> None:
    """An agent was refused because of a `mismatch`: tell it once, however often it comes."""
    machine = state.scaling.machines.get(event.machine)
    if machine is not None and machine.live and machine.text != event.why[:1000]:
        move(state, machine, machine.state, event.why)
        state.out.append(Audit(machine.name, event.why))


def begins(machine: Machine, now: float) -> dict[str, float]:
    """Return the new `born` and `ends_by` of a machine whose life is counted from now, since it was queued at its
    provider until now and may still be."""
    return {"born": now, "ends_by": now + machine.ends_by - (machine.born or machine.wanted)}


def drain(state: GridState, one: DrainMachine) -> None:
    """Let a machine get no more jobs, and end it when it has none. At the end of its life its jobs are taken back. A
    machine that has not joined ends at once."""
    machine = state.scaling.machines[one.machine]
    if machine.state in (S.CREATING, S.BOOTING):
        end(state, machine, one.why)
    if machine.state is not S.JOINED:
        return
    move(state, machine, S.DRAINING, one.why, cause=one.cause)
    state.scaling.draining[one.machine] = None
    if one.machine in state.nodes:
        left = max(0.0, machine.ends_by - OVERDUE - state.now)
        operator.drain(state, DrainRequested(0, (one.machine,), THE_GRID, one.why, left))


def take_back(state: GridState, name: str, why: str) -> None:
    """Let a drained machine take jobs again."""
    machine = state.scaling.machines[name]
    if machine.state is S.DRAINING:
        move(state, machine, S.JOINED, why, cause=None)
        state.scaling.draining.pop(name, None)
        if name in state.nodes:
            operator.undrain(state, UndrainRequested(0, (name,), THE_GRID))


def end_drained(state: GridState) -> None:
    """End the drained machines that have nothing left to do."""
    for name in list(state.scaling.draining):
        node, machine = state.nodes.get(name), state.scaling.machines[name]
        if machine.state is not S.DRAINING:
            del state.scaling.draining[name]
        elif node is None or not (node.known or node.earmarks or _may_end_there(node)):
            end(state, machine, machine.text)


def _may_end_there(node: Node) -> bool:
    """Whether jobs that were given up there are told to end now. On a node that is lost they end with the machine."""
    return bool(node.orphans) and node.state is not NodeState.LOST


# --- ending -----------------------------------------------------------------------------------------------------------


def end(state: GridState, machine: Machine, text: str) -> None:
    """Have the provider of a machine end it; its node is no member of the grid any more."""
    state.scaling.ends(machine.name)
    if machine.cause in (DrainCause.IDLE, DrainCause.LOST) and machine.jobs and not machine.ran:
        pool = state.policy.scaling.pool(machine.pool)
        state.scaling.idle_in_vain(machine, pool.zones if pool is not None else (), state.now)
    made = move(state, machine, S.ENDING, text)
    state.out.append(MachineOver(made.name))
    _ask_end(state, made)


def _ask_end(state: GridState, machine: Machine) -> None:
    pause = min(AGAIN_MOST, AGAIN_FIRST * 2 ** min(machine.ends, 10))
    made = move(state, machine, S.ENDING, ends=machine.ends + 1, retry=state.now + CALL_SECONDS + pause)
    state.out.append(EndMachine(made.provider, made.name, made.handle, made.ends))
    state.deadlines.arm("machine", made.name, made.retry)


def _answered_end(state: GridState, machine: Machine, event: MachineAnswered) -> None:
    if event.answer in (Answer.DONE, Answer.GONE):
        if event.answer is Answer.GONE and machine.sure:
            gone(state, machine, "it is gone")
        else:
            state.deadlines.arm("look", machine.provider, state.now + SOON)
        return
    if event.answer is Answer.CREDENTIALS:
        provider = state.scaling.provider(machine.provider)
        halt(state, provider, machine.provider, event.text)
    pause = min(AGAIN_MOST, AGAIN_FIRST * 2 ** min(machine.ends, 10))
    move(state, machine, S.ENDING, event.text, retry=state.now + pause)
    state.deadlines.arm("machine", machine.name, state.now + pause)


def gone(state: GridState, machine: Machine, text: str) -> None:
    """A machine is not there any more: its node is forgotten, what ran there is lost."""
    state.scaling.ends(machine.name)
    ended = move(state, machine, S.GONE, text, missed=0)
    state.out.append(MachineOver(ended.name))
    if (node := state.nodes.get(machine.name)) is not None:
        agents.machine_gone(state, node, f"machine {machine.name} {text}")
        operator.drop(state, node)
    state.deadlines.arm("scaling", "", state.now + SOON)


# --- time -------------------------------------------------------------------------------------------------------------


def due(state: GridState, name: str) -> None:
    """Time has come to do something about a machine."""
    machine, now = state.scaling.machines.get(name), state.now
    if machine is None or not machine.live:
        return
    halted = state.scaling.provider(machine.provider).halted
    match machine.state:
        case S.WANTED | S.CREATING:
            if machine.born and now >= machine.born + machine.join_within or machine.calls >= CALLS_MOST:
                _never_joined(state, machine, "was not created")
            elif now >= machine.retry and not halted:
                _ask(state, machine)
            else:
                state.deadlines.arm("machine", name, max(machine.retry, now + AGAIN_FIRST))
        case S.BOOTING:
            if machine.queued and now >= machine.wanted + machine.queue_within:
                waited = format_duration(machine.queue_within)
                end(state, machine, f"it has waited in the queue of {machine.provider} for {waited} (queue_within)")
            elif not machine.queued and now >= machine.born + machine.join_within:
                _never_joined(state, machine, "has not joined")
            else:
                await_join(state, machine)
        case S.JOINED | S.DRAINING:
            if now >= machine.ends_by + OVERDUE:
                end(state, machine, "its life is over, and it has not ended itself")
            else:
                state.deadlines.arm("machine", name, machine.ends_by + OVERDUE)
        case S.ENDING:
            if now >= machine.retry:
                _ask_end(state, machine)
            else:
                state.deadlines.arm("machine", name, machine.retry)


def _never_joined(state: GridState, machine: Machine, what: str) -> None:
    text = f"it {what} within {format_duration(machine.join_within)}{f': {machine.text}' if machine.text else ''}"
    end(state, machine, text)
    if machine.state is S.BOOTING or state.scaling.provider(machine.provider).seen >= machine.born:
        count_never_joined(state, machine, text)
    else:  # nothing was heard of its provider all the time, so that the pool is not at fault
        state.scaling.back_off(machine, text, state.now)


def count_never_joined(state: GridState, machine: Machine, text: str) -> None:
    known = state.scaling
    count = known.never_joined[machine.pool] = known.never_joined.get(machine.pool, 0) + 1
    known.back_off(machine, text, state.now)
    if count >= NEVER_JOINED_MOST:
        pause(state, machine.pool, "", f"{count} machines in a row have never joined; of the last one: {text}")


def look_due(state: GridState, name: str) -> None:
    """Ask a provider for all machines of this grid."""
    if name not in _needed(state):
        return
    provider = state.scaling.provider(name)
    state.deadlines.arm("look", name, state.now + state.policy.scaling.look)
    if not provider.halted:
        provider.listing += 1
        provider.listing_since = state.now
        state.out.append(ListMachines(name, provider.listing))


def forget(state: GridState, name: str) -> None:
    """Forget a machine that is gone, and with the last that joined of its pool and type what those have."""
    known = state.scaling
    known.as_joined = {key: one for key, one in known.as_joined.items() if one.facts.name != name}
    del state.scaling.machines[name]
    state.out.append(RecordMachine(name, None))
