"""A ledger on a stage: one line is one event, what it answers is printed in short lines, and its invariants are checked
after each. The vocabulary is in `Scene.say`."""

from itertools import count
from typing import Any

import msgpack

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import (
    Accepted,
    AckExits,
    Audit,
    CancelRequested,
    Command,
    Event,
    Granted,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    Publish,
    RecordAllocation,
    RecordJob,
    RecordNode,
    RecordReceipt,
    RecordShare,
    Rejected,
    Send,
    SignalRequested,
    Tick,
)
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Earmark, Earmarked, Job
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Request, State, parse_priority
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Signal, Stale, Started, Stop
from distributed_grid.protocol.nodes import GpuFacts, GpuOffer, Known, NodeFacts, Offer, Sample, Withheld
from distributed_grid.protocol.resources import GIB, Grant, Resources, format_milli, parse_cpu, parse_gpu, parse_memory

MANY = 1000
steps = count()


def facts(name: str, cores: int = 4, memory: int = 8 * GIB, gpus: int = 0, boot: str = "b1", **more: Any) -> NodeFacts:
    """A node that may lend all it has; its GPUs are called `<name>-gpu0` and so on."""
    return NodeFacts(
        name=name,
        hostname=name,
        boot_id=boot,
        incarnation=1,
        cores=tuple(range(cores)),
        memory=memory,
        lendable=Resources(cores * 1000, memory, gpus * 1000),
        gpus=tuple(GpuFacts(f"{name}-gpu{i}", i, "T4", 16 * GIB) for i in range(gpus)),
        **more,
    )


def offer(of: NodeFacts, number: int = 1, expires_in: float = 300.0, **parts: Any) -> Offer:
    """Return an offer of the whole node, or of the given parts."""
    gpus = tuple(GpuOffer(gpu.uuid, gpu.index, gpu.model, gpu.memory, gpu.memory) for gpu in of.gpus)
    whole: dict[str, object] = {"cores": of.cores, "memory": of.memory, "gpus": gpus}
    return Offer(number=number, expires_in=expires_in, **(whole | parts))  # type: ignore[arg-type]


def job(name: str, request: Request, at: float = 0.0, user: str = "ann", key: str = "", **spec: Any) -> Job:
    """A job as the shell makes it of a submission."""
    what = JobSpec(argv=("true",), **spec)
    return Job(id=name, key=key or f"key-{name}", user=user, spec=what, request=request, submitted=at)


def join(ledger: Ledger, of: NodeFacts, now: float = 0.0, **parts: Any) -> list[Command]:
    """A node comes with nothing running and offers."""
    out = ledger.handle(NodeUp(of, f"session-{of.name}"), now)
    out += ledger.handle(MessageReceived(of.name, Inventory(known=())), now)
    out += ledger.handle(MessageReceived(of.name, offer(of, **parts)), now)
    return out + ledger.settle(now)


def state_of(ledger: Ledger, name: str) -> State:
    """The state of a job. Asked by a call: mypy takes an attribute for unchanged after it was compared."""
    return ledger.state.jobs[name].state


def step(ledger: Ledger, event: Event, now: float) -> list[Command]:
    """Handle one event, and everything that follows from it. A check covers all jobs: with many it is made every tenth
    time."""
    checked = len(ledger.state.jobs) < MANY or next(steps) % 10 == 0
    out = ledger.handle(event, now)
    if checked:
        ledger.check()
    out += ledger.settle(now)
    if checked:
        ledger.check()
    check_records(out)
    return out


def check_records(out: list[Command]) -> None:
    """An allocation that has not ended is in the row of its job: the store refuses it without that."""
    jobs = {one.job.id: one.job for one in out if isinstance(one, RecordJob)}
    for one in out:
        if isinstance(one, RecordAllocation) and one.allocation.state is not State.ENDED:
            job = jobs.get(one.allocation.job)
            assert job is not None, f"{one.allocation.id} is recorded without its job"
            assert job.allocation == one.allocation.id


def words(grant: Grant) -> str:
    """A grant in short."""
    parts = []
    if grant.cores:
        parts.append("cores " + ",".join(map(str, grant.cores)))
    if grant.shared_core >= 0:
        parts.append(f"{format_milli(grant.shared_milli)} of core {grant.shared_core}")
    if grant.memory:
        parts.append(f"{grant.memory // (1 << 20)}M")
    parts += [f"{gpu.uuid}" + (f"*{format_milli(gpu.milli)}" if gpu.milli < 1000 else "") for gpu in grant.gpus]
    return " ".join(parts)


def line(command: Command) -> str:
    """A command in one line."""
    match command:
        case RecordJob(job, new):
            return f"save {'new ' if new else ''}{job.id}: {job.state.value}"
        case RecordAllocation(allocation):
            return f"save {allocation.id}: {allocation.state.value} on {allocation.node}, {words(allocation.grant)}"
        case RecordShare(user):
            return f"save share of {user}"
        case RecordNode(of):
            return f"save node {of.name}"
        case RecordReceipt(receipt):
            return f"save receipt {receipt.id}: {receipt.result or 'under way'}"
        case Audit(node, what):
            return f"audit {node}: {what}"
        case Send(node, Launch() as launch):
            return f"{node} <- launch {launch.allocation} (epoch {launch.epoch}) {words(launch.grant)}"
        case Send(node, Stop() as stop):
            return f"{node} <- stop {stop.allocation} after {stop.grace:g} s: {stop.cause}, {stop.text}"
        case Send(node, Signal() as signal):
            return f"{node} <- signal {signal.signal} to {signal.allocation}"
        case AckExits(node, allocations):
            return f"{node} <- ack {' '.join(allocations)}"
        case Publish(view) if view.state is State.WAITING and view.reason:
            return f"tell {view.id}: waiting, {view.reason.code}: {view.reason.text}"
        case Publish(view):
            return f"tell {view.id}: {view.state.value}, {view.story[-1].text}"
        case Accepted(_, jobs, fit, nodes):
            return f"answer accepted {' '.join(jobs)} ({fit} of {nodes} nodes could run it)"
        case Rejected(_, code, what, why, hint):
            return f"answer {code}: {what}; {why}; {hint}"
        case Granted(_, text):
            return f"answer done {text}".rstrip()
    raise AssertionError(f"no words for {command}")


class Scene:
    """Plays lines of `TIME VERB NAME [KEY=VALUE …]` on a ledger."""

    def __init__(self) -> None:
        self.ledger = Ledger(epoch=7)
        self.facts: dict[str, NodeFacts] = {}
        self.sessions = 0

    def say(self, text: str) -> list[str]:
        """Play one line and print what came of it."""
        at, verb, *rest = text.split()
        now = float(at)
        name = rest.pop(0) if rest else ""
        values = dict(part.split("=", 1) for part in rest if "=" in part)
        flags = [part for part in rest if "=" not in part]
        if verb == "why":
            return self._why(name, now)
        if verb == "story":
            story = self.ledger.state.jobs[name].story
            return [f"{entry.at:g} {entry.state.value}: {entry.text}" for entry in story]
        out: list[str] = []
        for event in self._events(verb, name, values, flags, now):
            out += map(line, self.ledger.handle(event, now))
            self.ledger.check()
        out += map(line, self.ledger.settle(now))
        self.ledger.check()
        return out

    def _events(self, verb: str, name: str, values: dict[str, str], flags: list[str], now: float) -> list[Event]:
        match verb:
            case "up" | "join":
                return self._arrival(verb, name, values)
            case "down":
                return [NodeDown(name, values.get("session", self.ledger.state.nodes[name].session))]
            case "beat":
                return [HeartbeatReceived(name, Sample(at=now))]
            case "tick":
                return [Tick()]
            case "inventory":
                known = (self._known(key, value) for key, value in values.items())
                return [MessageReceived(name, Inventory(known=tuple(known)))]
            case "offer":
                return [MessageReceived(name, self._offer(name, values))]
            case "ask":
                return [JobsSubmitted(1, (self._job(name, values, flags, now),))]
            case "started":
                return [MessageReceived(self._node(name, values), Started(allocation=name, pid=1))]
            case "stale":
                message = Stale(allocation=name, reason=values.get("why", "busy"), device=values.get("device", ""))
                return [MessageReceived(self._node(name, values), message)]
            case "exited":
                outcome = Outcome(cause=Cause(values.get("cause", "exited")), code=int(values.get("code", "0")))
                message_ = Exited(allocation=name, outcome=outcome, returned="returned" in flags)
                return [MessageReceived(self._node(name, values), message_)]
            case "cancel":
                return [CancelRequested(2, (name, *flags))]
            case "signal":
                return [SignalRequested(3, name, int(flags[0]))]
        raise ValueError(f"unknown verb {verb}")

    def _node(self, allocation: str, values: dict[str, str]) -> str:
        found = self.ledger.state.allocations.get(allocation)
        return values.get("on") or (found.node if found else next(iter(self.facts)))

    def _arrival(self, verb: str, name: str, values: dict[str, str]) -> list[Event]:
        if name not in self.facts or "boot" in values or "cores" in values:
            self.facts[name] = facts(
                name,
                int(values.get("cores", "4")),
                parse_memory(values.get("mem", "8G")),
                int(values.get("gpus", "0")),
                values.get("boot", "b1"),
            )
        self.sessions += 1
        up = NodeUp(self.facts[name], f"s{self.sessions}")
        if verb == "up":
            return [up]
        return [up, MessageReceived(name, Inventory(known=())), MessageReceived(name, self._offer(name, {}))]

    @staticmethod
    def _known(allocation: str, state: str) -> Known:
        if state.startswith("exited"):
            return Known(
                allocation, State.ENDED, Outcome(cause=Cause.EXITED, code=int(state.removeprefix("exited") or 0))
            )
        return Known(allocation, State(state))

    def _offer(self, name: str, values: dict[str, str]) -> Offer:
        parts: dict[str, Any] = {}
        if "cores" in values:
            parts["cores"] = tuple(int(core) for core in values["cores"].split(",") if core)
        if "shares" in values:
            parts["shares"] = {int(c): int(m) for c, m in (item.split(":") for item in values["shares"].split(","))}
        if "mem" in values:
            parts["memory"] = parse_memory(values["mem"])
        if "gpus" in values:
            wanted = values["gpus"].split(",")
            parts["gpus"] = tuple(gpu for gpu in offer(self.facts[name]).gpus if gpu.uuid[-1] in wanted)
        if "counting" in values:
            parts["counting"] = tuple(values["counting"].split(","))
        if "withheld" in values:
            what, why = values["withheld"].split(":", 1)
            parts["withheld"] = (Withheld(what, why.replace("_", " ")),)
        return offer(self.facts[name], expires_in=float(values.get("for", "300")), **parts)

    @staticmethod
    def _job(name: str, values: dict[str, str], flags: list[str], now: float) -> Job:
        request = Request(
            Resources(
                parse_cpu(values["cpu"]) if "cpu" in values else 0,
                parse_memory(values["mem"]) if "mem" in values else 0,
                parse_gpu(values["gpu"]) if "gpu" in values else 0,
            ),
            parse_priority(values.get("prio", "medium")),
            tuple(values["on"].split(",")) if "on" in values else (),
            "immediate" in flags,
        )
        return job(name, request, now, key=values.get("key", ""), time_limit=float(values.get("time", "0")))

    def _why(self, name: str, now: float) -> list[str]:
        said = explain.why(self.ledger.state, name, None, now)
        out = [f"{said.reason.code}: {said.reason.text}"]
        out += [
            f"  {entry.left} {entry.what}" + (f" (not {entry.lost})" if entry.lost else "") for entry in said.funnel
        ]
        out += [f"  {v.node}: {'yes, ' + format(v.confidence, '.2f') if v.ok else v.why}" for v in said.verdicts]
        return out + ([f"  try: {said.hint}"] if said.hint else [])


def kept_for(job: Job) -> Earmark | None:
    """Return the earmark of a job, if it waits for one."""
    return job.phase.earmark if isinstance(job.phase, Earmarked) else None


def decoded(at: checkpoint.Checkpoint) -> checkpoint.Checkpoint:
    """A checkpoint that was written down and read again."""
    return checkpoint.convert(msgpack.unpackb(checkpoint.encode(at), strict_map_key=False))


def resumed(ledger: Ledger) -> Ledger:
    """A ledger made of the bytes of a checkpoint of this one."""
    return checkpoint.resume(decoded(checkpoint.take(ledger)))
