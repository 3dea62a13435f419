"""An agent's end of its talk with the supervisor. Stands for agent/launch/launcher.py."""

from typing import Any

from distributed_grid.protocol.jobs import Outcome
from distributed_grid.protocol.messages import Exited, Started, Suspended
from distributed_grid.simulator.engine import Engine, Process
from distributed_grid.simulator.machine import Machine
from distributed_grid.simulator.supervisor import Supervisor


class Launcher(Process):
    """What every agent is as well. `report` takes what the supervisor tells. `last_word`: how much of what it said left
    it, once it is dead."""

    def __init__(self, engine: Engine, machine: Machine) -> None:
        super().__init__()
        self.engine, self.machine = engine, machine
        self.last_word = 0
        self.lease_from = 0.0
        """When the newest heartbeat, or hello, was sent that the coordinator is known to have heard."""
        self.known_over: dict[str, None] = {}
        self._unanswered: dict[str, list[dict[str, Any]]] = {}
        self._ops = 0
        self._heard_ops = 0

    def report(self, event: Started | Exited) -> None:
        """The supervisor told this."""
        raise NotImplementedError

    def supervisor(self) -> Supervisor:
        """The one that lives, or a new one."""
        machine = self.machine
        if machine.supervisor is None or machine.supervisor.dead:
            machine.supervisor = Supervisor(self.engine, machine)
            self.engine.note(f"a supervisor starts on {machine.name}")
        found: Supervisor = machine.supervisor
        return found

    def renew(self, at: float) -> None:
        """All leases run anew from then, also of what is on its way to a supervisor and still leased."""
        now = self.machine.clock()
        for ops in self._unanswered.values():
            for op in ops:
                if op["op"] == "launch" and op["lease_from"] + op["lease"] > now:
                    op["lease_from"] = max(op["lease_from"], at)
        self._send({"op": "renew", "at": at})

    def ask(self, op: dict[str, Any]) -> None:
        """Ask for this, and again until it is answered."""
        if "id" in op:
            self._unanswered.setdefault(op["id"], []).append(op)
        self._send(op)

    def _send(self, op: dict[str, Any]) -> None:
        self._ops += 1
        supervisor = self.machine.supervisor
        if not supervisor.dead and supervisor.agent is self:
            self.engine.later(0.0003, supervisor, self._hears, supervisor, self._ops, op)

    def _hears(self, supervisor: Supervisor, number: int, op: dict[str, Any]) -> None:
        self._heard_ops = number
        supervisor.hear(self, number, op)

    def supervisor_gone(self) -> None:
        """The supervisor was killed: another one takes over; what is not answered is asked again."""
        for job, outcome in self.supervisor().connect(self):
            if outcome is not None and job.id not in self.known_over:
                self._exited(job.id, outcome)
            elif outcome is None and job.id in self._unanswered:
                self.report(Started(allocation=job.id))
        if self.lease_from:
            self._send({"op": "renew", "at": self.lease_from})
        for ops in [*self._unanswered.values()]:
            for op in ops:
                self._send(op)

    def told(self, supervisor: Supervisor, key: str, outcome: Outcome | None) -> None:
        """The supervisor says that this runs, or is over."""
        if supervisor is not self.machine.supervisor or supervisor.agent is not self:
            return
        if outcome is not None:
            self._exited(key, outcome)
            return
        stops = [op for op in self._unanswered.pop(key, []) if op["op"] == "stop"]
        if stops:
            self._unanswered[key] = stops
        self.report(Started(allocation=key))

    def suspended(self, supervisor: Supervisor, told: Suspended) -> None:
        """The supervisor says that this is frozen, or goes on."""
        if supervisor is self.machine.supervisor and supervisor.agent is self:
            self.took(told)

    def took(self, told: Suspended) -> None:
        """That is so."""
        raise NotImplementedError

    def freeze(self, allocation: str, why: str, seconds: float) -> None:
        """Have it frozen for so long, unless asked again. Not waited for: it is said again with the next sample."""
        self._send({"op": "freeze", "id": allocation, "why": why, "for": seconds})

    def thaw(self, allocation: str) -> None:
        """Have it go on."""
        self._send({"op": "thaw", "id": allocation})

    def _exited(self, key: str, outcome: Outcome) -> None:
        self._unanswered.pop(key, None)
        self.known_over[key] = None
        self.report(Exited(allocation=key, outcome=outcome))
