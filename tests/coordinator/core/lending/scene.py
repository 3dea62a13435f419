"""A node of eight cores whose job holds all of them, under a policy that lends slack."""

from typing import Any

import msgspec

from distributed_grid.coordinator.core.commands import CancelRequested, Command, JobsSubmitted, MessageReceived, Tick
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lending import slack
from distributed_grid.coordinator.core.model import Allocation
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.protocol.jobs import Cause, Outcome, Request, Use
from distributed_grid.protocol.messages import Exited, InUse, Started, Suspended
from distributed_grid.protocol.resources import GIB, Grant, Resources
from distributed_grid.protocol.sharing.policies import Balancing, PolicyName
from distributed_grid.protocol.sharing.slack import Threads
from tests.coordinator.core.scene import facts, job, join, step

PATIENT = Policy(suspect_after=1e9, disconnected_after=1e9, lost_after=1e9)


class Scene:
    """`holder` holds the node's eight cores and half of its memory (8 GiB)."""

    def __init__(self, name: PolicyName = PolicyName.AGGRESSIVE, smt: Threads = (), **spec: Any) -> None:
        self.now = 1.0
        self.ledger = Ledger(policy=msgspec.structs.replace(PATIENT, balancing=Balancing(policy=name)))
        self.state = self.ledger.state
        join(self.ledger, msgspec.structs.replace(facts("n1", 8), smt=smt), expires_in=1e9)
        step(self.ledger, self._submit("holder", Request(Resources(8000, 4 * GIB)), "ann", **spec), self.now)
        self.begin("holder")

    def _submit(self, name: str, request: Request, user: str, **spec: Any) -> JobsSubmitted:
        return JobsSubmitted(1, (job(name, request, self.now, user, **spec),))

    def say(self, message: Any) -> list[Command]:
        return step(self.ledger, MessageReceived("n1", message), self.now)

    def begin(self, name: str) -> None:
        self.say(Started(allocation=self.state.jobs[name].allocation))

    def uses(self, name: str, cores: float, measured: float = 600.0) -> list[Command]:
        """Let its node report its usual use; a second later the jobs that wait for slack are tried."""
        use = Use(allocation=self.state.jobs[name].allocation, seconds=10.0, usual=cores, usual_for=measured)
        out = self.say(InUse(uses=(use,)))
        self.now += 1.5
        return out + step(self.ledger, Tick(), self.now)

    def ask(self, name: str, cpu: int, memory: int = 0, revocable: bool = True, **more: Any) -> list[Command]:
        request = Request(Resources(cpu, memory), revocable=revocable, **more)
        return step(self.ledger, self._submit(name, request, "ben"), self.now)

    def suspend(self, name: str, why: str = "the owner", **more: Any) -> None:
        self.say(Suspended(allocation=self.state.jobs[name].allocation, why=why, **more))

    def cancel(self, name: str) -> list[Command]:
        return step(self.ledger, CancelRequested(2, (name,)), self.now)

    def end(self, name: str, cause: Cause = Cause.EXITED) -> list[Command]:
        return self.say(Exited(self.state.jobs[name].allocation, Outcome(cause=cause), True))

    def allocation(self, name: str) -> Allocation:
        return self.state.allocations[self.state.jobs[name].allocation]

    def left(self, name: str) -> tuple[int, tuple[int, ...]]:
        return slack.left(self.state, self.allocation(name), self.now)

    def slack(self, name: str) -> int:
        return self.left(name)[0]

    def cores_lent(self, name: str) -> tuple[int, ...]:
        """The cores of others that a job runs on."""
        return self.allocation(name).grant.slack

    def grant(self, name: str) -> Grant | None:
        """Return the grant of a job; None: it waits, or has ended."""
        one = self.state.jobs.get(name)
        return one.grant if one is not None and one.allocation in self.state.allocations else None
