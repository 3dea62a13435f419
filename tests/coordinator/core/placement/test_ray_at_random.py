"""Placement by Ray through anything that may come between: answers late, lost or refused, nodes that come and go,
cancels, restarts. Nothing is ever launched that Ray has not reserved, and in the end all
that is reserved is let go of."""

import copy
import random

import pytest

from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    Event,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    RayReported,
    Reserve,
    Reserved,
    ReserveRefused,
    Send,
    Tick,
    Unreserve,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import OnRay
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Stale, Started, Stop
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, offer
from tests.depth import tries

NODES = tuple(facts(name, gpus=1) for name in ("a", "b", "c"))
TOTAL = Resources(4000, 8 << 30, 1000)
STEPS = 200


class Play:
    """A ledger, a model of Ray, and nodes that do as they are told now and then."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ledger = Ledger(policy=Policy(by_ray=True))
        self.now = 1.0
        self.groups: dict[str, tuple[str, Resources]] = {}
        self.others: dict[str, int] = {node.name: 0 for node in NODES}
        self.pending: list[Reserve | Unreserve] = []
        self.sent: dict[str, str] = {}
        """What was launched, and where."""
        self.submitted = 0
        self.launches = 0
        for node in NODES:
            join(self.ledger, node, self.now, expires_in=1e6)
        self.look()

    # --- Ray ----------------------------------------------------------------------------------------------------------

    def left(self, node: str) -> Resources | None:
        """What Ray has free there; None: less than nothing."""
        held = [amount for where, amount in self.groups.values() if where == node]
        cpu = TOTAL.cpu - self.others[node] - sum(one.cpu for one in held)
        gpu = TOTAL.gpu - sum(one.gpu for one in held)
        return Resources(cpu, TOTAL.memory, gpu) if cpu >= 0 and gpu >= 0 else None

    def answer(self) -> None:
        """Ray does something that it was asked, not always in order; the answer may be lost with our connection."""
        if not self.pending:
            return
        asked = self.pending.pop(self.chance.randrange(min(3, len(self.pending))))
        if isinstance(asked, Unreserve):
            self.groups.pop(asked.allocation, None)
            return
        node, free = asked.node.removeprefix("ray-"), None
        if asked.allocation in self.groups:
            self.put(Reserved(asked.allocation))
            return
        if node in self.others:
            free = self.left(node)
        if free is not None and asked.resources.fits(free) and self.chance.random() < 0.8:
            self.groups[asked.allocation] = (node, asked.resources)
            lost = self.chance.random() < 0.1
            self.put(ReserveRefused(asked.allocation, "lost") if lost else Reserved(asked.allocation))
        else:
            self.put(ReserveRefused(asked.allocation, "no"))

    def look(self) -> None:
        if self.chance.random() < 0.1:
            self.put(RayReported({}, "down"))
        else:
            shown = {name: OnRay(f"ray-{name}", TOTAL, Resources(cpu=cpu)) for name, cpu in self.others.items()}
            self.put(RayReported(dict(shown)))

    def use(self) -> None:
        """Others take some of a node, or leave it."""
        name = self.chance.choice(list(self.others))
        free = self.left(name)
        assert free is not None
        self.others[name] = self.chance.choice((0, min(1000, free.cpu), min(2000, free.cpu)))

    # --- the ledger ---------------------------------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        out = self.ledger.handle(event, self.now)
        self.ledger.check()
        out += self.ledger.settle(self.now)
        self.ledger.check()
        self.perform(out)

    def perform(self, out: list[Command]) -> None:
        for command in out:
            if isinstance(command, Reserve | Unreserve):
                self.pending.append(command)
            elif isinstance(command, Send) and isinstance(command.message, Launch):
                name = command.message.allocation
                assert self.groups.get(name, ("", None))[0] == command.node, f"{name} is launched and not reserved"
                self.sent[name] = command.node
                self.launches += 1
            elif isinstance(command, Send) and isinstance(command.message, Stop):
                self.sent.setdefault(command.message.allocation, command.node)

    def submit(self) -> None:
        self.submitted += 1
        wanted = Resources(1000 * self.chance.randint(1, 3), 0, self.chance.choice((0, 0, 0, 1000)))
        priority = self.chance.choice((Priority.LOW, Priority.MEDIUM, Priority.URGENT))
        request = Request(wanted, priority, immediate=self.chance.random() < 0.1)
        self.put(JobsSubmitted(1, (job(f"j{self.submitted}", request, self.now),)))

    def cancel(self) -> None:
        if self.ledger.state.jobs:
            self.put(CancelRequested(2, (self.chance.choice(list(self.ledger.state.jobs)),)))

    def node_acts(self, ends: bool = False) -> None:
        """A node starts, refuses or ends something that it was sent."""
        live = [name for name in self.sent if name in self.ledger.state.allocations]
        if not live:
            return
        name = self.chance.choice(live)
        allocation, node = self.ledger.state.allocations[name], self.sent[name]
        if not self.ledger.state.nodes[node].synced:
            return
        if allocation.stop is not None or allocation.started or ends:
            cause = Cause(allocation.stop.cause) if allocation.stop is not None else Cause.EXITED
            self.put(MessageReceived(node, Exited(allocation=name, outcome=Outcome(cause), returned=True)))
        elif self.chance.random() < 0.2:
            self.put(MessageReceived(node, Stale(allocation=name, reason="busy", device="")))
        else:
            self.put(MessageReceived(node, Started(allocation=name, pid=1)))

    def away(self) -> None:
        """A node goes, and comes back after a while with what it had."""
        node = self.chance.choice(NODES)
        self.put(NodeDown(node.name, self.ledger.state.nodes[node.name].session))
        self.wait(self.chance.choice((1.0, 15.0)), but=node.name)
        self.back(node.name)

    def back(self, name: str) -> None:
        node = next(one for one in NODES if one.name == name)
        self.put(NodeUp(node, f"s{self.now}"))
        self.put(MessageReceived(name, Inventory(known=())))
        self.put(MessageReceived(name, offer(node, expires_in=1e6)))

    def wait(self, seconds: float, but: str = "") -> None:
        self.now += seconds
        for node in NODES:
            if node.name != but:
                self.put(HeartbeatReceived(node.name, Sample(at=self.now)))
        self.put(Tick())

    def restart(self) -> None:
        """A new coordinator, from what is on disk; what Ray was asked by the old one may be done still."""
        jobs = copy.deepcopy(list(self.ledger.state.jobs.values()))
        held = copy.deepcopy(list(self.ledger.state.allocations.values()))
        if self.chance.random() < 0.5:
            self.pending.clear()
        self.ledger = Ledger(policy=Policy(by_ray=True))
        out = self.ledger.restore(jobs, held, NODES, self.now)
        self.perform(out + self.ledger.settle(self.now))
        for node in NODES:
            self.back(node.name)
        self.look()
        for name in self.groups.keys() - self.ledger.state.allocations.keys():
            self.pending.append(Unreserve(name))  # as the shell does, which compares them

    def step(self) -> None:
        acts = (
            (self.submit, 6), (self.answer, 12), (self.node_acts, 10), (self.cancel, 2), (self.look, 4), (self.use, 3),
            (lambda: self.wait(0.5), 8), (self.away, 1), (self.restart, 1),
        )  # fmt: skip
        act = self.chance.choices([one for one, _ in acts], [weight for _, weight in acts])[0]
        act()

    def finish(self) -> None:
        """Everybody does what is left to do."""
        self.others = dict.fromkeys(self.others, 0)
        for _ in range(2000):
            if not (self.ledger.state.jobs or self.pending):
                return
            self.put(RayReported({name: OnRay(f"ray-{name}", TOTAL) for name in self.others}))
            self.wait(1.0)
            for _ in range(4):
                self.answer()
                self.node_acts(ends=True)


@pytest.mark.parametrize("seed", range(tries(8, 2)))
def test_nothing_runs_unreserved_and_all_is_let_go_of_in_the_end(seed: int) -> None:
    play = Play(seed)
    for _ in range(STEPS):
        play.step()
    play.finish()
    assert not play.ledger.state.jobs and not play.pending, "somebody waits for ever"
    assert not play.groups, "something stays reserved for nobody"
    assert play.launches > 5
