"""What becomes of jobs when a node's owner is back: the real judgement between models of the shell around it. Stands
for agent/owner_policy.py.
"""

from typing import Any

from distributed_grid.agent.core.owner import Freeze, Owner, Thaw
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import Recalled, Stop, Suspended
from distributed_grid.protocol.nodes import Sample
from distributed_grid.simulator.machine import Machine

HOLDS = 30.0


class Owning:
    """The owner of an agent's node and its jobs."""

    def __init__(self, agent: Any, machine: Machine, cores: int) -> None:
        self._agent, self._machine = agent, machine
        self._owner = Owner(machine.limits, cores)
        self._recalled: dict[str, Recalled] = {}

    @property
    def closed(self) -> str:
        """Why nothing more is lent now."""
        return self._owner.presence()

    @property
    def stirs(self) -> bool:
        """Whether the next sample may change something for a job."""
        return any(case.since is not None or case.frozen is not None for case in self._owner.cases.values())

    def measured(self, sample: Sample, clock: float) -> None:
        """There is a new sample."""
        agent = self._agent
        self._recalled = {key: told for key, told in self._recalled.items() if agent.table.runs(key)}
        for order in self._owner.observe(sample, agent.table.running(), clock):
            if isinstance(order, Freeze):
                agent.freeze(order.allocation, order.why, HOLDS)
            elif isinstance(order, Thaw):
                agent.thaw(order.allocation)
            else:
                self._recall(order.allocation, order.why)

    def _recall(self, key: str, why: str) -> None:
        agent, launch = self._agent, self._machine.specs.get(key)
        self._machine.judge.told_to_stop(key, Cause.RECALLED)
        agent.engine.note(f"{key} is recalled from {self._machine.name}: {why}")
        grace = launch.spec.grace if launch is not None else 0.0
        told = self._recalled[key] = Recalled(allocation=key, why=why, grace=grace)
        agent.feed(Stop(allocation=key, grace=-1.0, cause=Cause.RECALLED, text=f"the owner is back ({why})"))
        agent.say(told)

    def took(self, told: Suspended, clock: float) -> None:
        """The supervisor has frozen it, or let it go on."""
        self._owner.took(told.allocation, told.why, told.lasted, told.in_all, clock)
        self._agent.say(told)

    def introduction(self, clock: float) -> list[Suspended | Recalled]:
        """What a coordinator that has just come has to know."""
        told: list[Suspended | Recalled] = [*self._owner.suspended(clock), *self._recalled.values()]
        return [one for one in told if self._agent.table.runs(one.allocation)]
