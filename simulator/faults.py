"""How the planned faults happen, and end."""

from collections.abc import Callable

from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import Hello
from distributed_grid.simulator.machine import Machine
from distributed_grid.simulator.network import DOWN, UP, Wire
from distributed_grid.simulator.plan import FaultPlan
from distributed_grid.simulator.world import World

DAY = 86400.0


def begin(world: World, fault: FaultPlan) -> None:
    """It happens now."""
    node = world.machines[fault.node].name
    where = "" if "coordinator" in fault.kind or "disk" in fault.kind else f" at {node}"
    world.engine.note(f"fault{fault.number}: {fault.kind}{where} for {fault.seconds:.2f} s")
    world.faults[fault.kind] = world.faults.get(fault.kind, 0) + 1
    _DO[fault.kind](world, fault)


def _partition(world: World, fault: FaultPlan) -> None:
    link = world.machines[fault.node].link
    for direction in {"deaf": (DOWN,), "mute": (UP,)}.get(fault.kind, (UP, DOWN)):
        link.cut[direction] = True
        world.until(fault, link.heal, direction)


def _slow_link(world: World, fault: FaultPlan) -> None:
    link = world.machines[fault.node].link
    link.slow = 4 * fault.how
    world.until(fault, setattr, link, "slow", 0.0)


def _cut(world: World, fault: FaultPlan) -> None:
    """Both ends learn of it, and what was on its way may be lost."""
    for wire in [*world.machines[fault.node].link.wires]:
        for side in (UP, DOWN):
            if not wire.closed[side]:
                wire.close(side, lose=True)
                wire.ends[side].hung_up(wire)


def _late_hello(world: World, fault: FaultPlan) -> None:
    machine, coordinator = world.machines[fault.node], world.reachable()
    if machine.agent.dead or coordinator is None:
        return
    wire = Wire(machine.link, f"{machine.name}-late", machine.agent, coordinator)
    wire.send(UP, Hello(protocol=PROTOCOL, software="sim", role="agent", name=machine.name, facts=machine.agent.facts))
    wire.close(UP)


def _kill_coordinator(world: World, fault: FaultPlan) -> None:
    world.kill_coordinator()
    world.until(fault, world.start_coordinator)


def _stop_coordinator(world: World, fault: FaultPlan) -> None:
    world.engine.freeze(world.coordinator)
    world.until(fault, world.engine.thaw, world.coordinator)


def _slow_disk(world: World, fault: FaultPlan) -> None:
    world.weather.slow = 3 * fault.how
    world.until(fault, setattr, world.weather, "slow", 0.0)


def _bad_disk(world: World, fault: FaultPlan) -> None:
    world.weather.bad = True
    world.until(fault, setattr, world.weather, "bad", False)


def _second_coordinator(world: World, fault: FaultPlan) -> None:
    world.start_second()
    world.until(fault, world.end_second)


def _kill_agent(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    if not machine.agent.dead:
        machine.agent.killed()
        world.until(fault, world.start_agent, machine)
        _not_both(world, machine)


def _stop_agent(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    world.engine.freeze(machine.agent)
    world.until(fault, world.engine.thaw, machine.agent)
    _not_both(world, machine)


def _slow_measure(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    machine.slow_measure = 8 * fault.how
    world.until(fault, setattr, machine, "slow_measure", 0.0)


def _owner(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    machine.use(0.2 + 0.8 * fault.how)
    world.until(fault, machine.use, 0.0)


def _kill_supervisor(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    supervisor, agent = machine.supervisor, machine.agent
    if supervisor is None or supervisor.dead:
        return
    supervisor.dead = True
    world.engine.later(0.05, agent, agent.supervisor_gone)
    _not_both(world, machine)


def _not_both(world: World, machine: Machine) -> None:
    """Leases rest on that: where no supervisor lives, an agent is there again soon (by systemd) and starts one."""
    if machine.supervisor is None or machine.supervisor.dead:
        world.engine.later(1.0, None, world.wake_agent, machine)


def _bad_journal(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    machine.journal_bad = True
    world.until(fault, setattr, machine, "journal_bad", False)


def _reboot(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    machine.power_cut()
    world.until(fault, world.start_agent, machine)


def _gone(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    machine.gone = True
    machine.power_cut()


def _drain(world: World, fault: FaultPlan) -> None:
    world.drain(fault)


def _wall_jump(world: World, fault: FaultPlan) -> None:
    world.wall += DAY if fault.how < 0.5 else -DAY


_DO: dict[str, Callable[[World, FaultPlan], None]] = {
    "partition": _partition,
    "deaf": _partition,
    "mute": _partition,
    "slow-link": _slow_link,
    "cut": _cut,
    "late-hello": _late_hello,
    "kill-coordinator": _kill_coordinator,
    "stop-coordinator": _stop_coordinator,
    "slow-disk": _slow_disk,
    "bad-disk": _bad_disk,
    "second-coordinator": _second_coordinator,
    "kill-agent": _kill_agent,
    "stop-agent": _stop_agent,
    "slow-measure": _slow_measure,
    "owner": _owner,
    "kill-supervisor": _kill_supervisor,
    "bad-journal": _bad_journal,
    "reboot": _reboot,
    "gone": _gone,
    "wall-jump": _wall_jump,
    "drain": _drain,
}
