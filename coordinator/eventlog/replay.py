"""Replay: hands the events of an event log to a ledger again, which has to make the same decisions under the same
policy (another policy: what_if.py); and text for events and decisions."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.checkpoint import Checkpoint
from distributed_grid.coordinator.core.commands import (
    BalancingConfigured,
    BalancingRequested,
    CancelRequested,
    Command,
    DemandReported,
    DrainRequested,
    Event,
    ExtensionRequested,
    ForecastsReported,
    HeartbeatReceived,
    JobsSubmitted,
    LabelsRequested,
    LossFound,
    MemoryAdvised,
    MessageReceived,
    NodeDeclared,
    NodeDoubted,
    NodeDown,
    NodeUp,
    RayAnswered,
    RayletJoined,
    RayletLeft,
    RayReported,
    RemovalRequested,
    Reserved,
    ReserveRefused,
    RightsSet,
    RunTimesPredicted,
    SettingsRequested,
    SignalRequested,
    StoreFailing,
    Tick,
    UndrainRequested,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.scaling.events import (
    MachineAnswered,
    MachineMismatched,
    MachinesListed,
    ScalingConfigured,
    ScalingRequested,
)
from distributed_grid.coordinator.eventlog.decisions import decisions
from distributed_grid.coordinator.eventlog.format import NAME, BadLog, Cut, Header, Turn, files, read
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages.rights import Whose
from distributed_grid.protocol.resources import MILLI, Grant, Resources, format_bytes, format_milli

NAMED = 3
"""Maximum number of names listed in a sentence."""


def names(of: Sequence[str]) -> str:
    """Format a few names: `a, b, c and 4 more`."""
    return ", ".join(of[:NAMED]) + (f" and {len(of) - NAMED} more" if len(of) > NAMED else "")


def event_words(event: Event) -> str:
    """Describe an event."""
    match event:
        case NodeUp(facts):
            return f"{facts.name} came"
        case NodeDown(node):
            return f"the connection of {node} closed"
        case HeartbeatReceived(node):
            return f"{node} sent a heartbeat"
        case MessageReceived(node, message):
            about = getattr(message, "allocation", "")
            return f"{node} sent {type(message).__name__.lower()}{f' of {about}' if about else ''}"
        case JobsSubmitted(_, jobs):
            return f"{jobs[0].user} submitted {names([job.id for job in jobs])}" if jobs else "no jobs were submitted"
        case CancelRequested(_, jobs, reason):
            return f"the end of {names(jobs)} was asked for{f': {reason}' if reason else ''}"
        case SignalRequested(_, job, number):
            return f"signal {number} for {job} was asked for"
        case StoreFailing(on):
            return "the disk refused, nothing new is to start" if on else "the disk works again"
        case Tick():
            return "time passed"
        case DrainRequested(_, nodes, by, reason):
            return f"{by} drained {names(nodes)}{f': {reason}' if reason else ''}"
        case UndrainRequested(_, nodes, by):
            return f"{by} undrained {names(nodes)}"
        case LabelsRequested(_, nodes, _, by):
            return f"{by} labelled {names(nodes)}"
        case SettingsRequested(_, nodes, values, unset, by):
            said = [f"{name} {value}" for name, value in values.given().items()] + [
                f"{name} as configured" for name in unset
            ]
            return f"{by} set for {names(nodes)}: {', '.join(said)}"
        case NodeDeclared(_, node, whole, free, by=by):
            return f"{by} declared {node}: {whole}, {free or 'nothing'} of it free"
        case RayletJoined(allocation, node):
            return f"Ray showed {allocation} as node {node[:12]}"
        case RayletLeft(allocation, why):
            return f"{allocation} was not in Ray any more: {why}"
        case RayAnswered(address):
            return f"Ray at {address} answered again"
        case ExtensionRequested(_, job, seconds):
            return f"{job} was to last {seconds:g} s longer"
        case RemovalRequested(_, nodes, by):
            return f"{by} had {names(nodes)} forgotten"
        case RayReported(nodes, trouble):
            return (
                f"Ray could not be asked: {trouble}" if trouble else f"Ray reported its nodes on {names(list(nodes))}"
            )
        case Reserved(allocation):
            return f"Ray reserved {allocation}"
        case ReserveRefused(allocation, why):
            return f"Ray did not reserve {allocation}: {why}"
        case LossFound(found):
            return f"the store showed to have lost commits: {found}"
        case NodeDoubted(node, found):
            return f"{node} said what it cannot prove: {found}"
        case DemandReported(look, _, trouble):
            waits = names([f"{one.count} × ({one.text})" for one in look.waiting]) if look is not None else ""
            unasked = f"Ray could not be asked: {trouble}" if trouble else "a pass of rebalancing was due"
            return f"in Ray waited: {waits or 'nothing'}" if look is not None else unasked
        case ForecastsReported(nodes):
            return f"how long {names(list(nodes))} stays idle was forecast"
        case BalancingRequested(_, mode, policy, unset, by):
            said = ["as configured"] * unset + [str(one) for one in (policy, mode) if one is not None]
            return f"{by} set rebalancing: {', '.join(said)}"
        case ScalingConfigured(scaling):
            return (
                f"scaling was configured: {scaling.mode}, pools {names([one.name for one in scaling.pools]) or 'none'}"
            )
        case ScalingRequested(_, order, pool, by):
            return f"{by} ordered: scale {order} {pool}".rstrip()
        case MachineAnswered(machine, call, number, answer, _, text):
            return f"call {number} to {call} {machine} was answered: {answer}{f', {text}' if text else ''}"
        case MachineMismatched(name, why):
            return f"an agent that says to be machine {name} is refused: {why}"
        case MachinesListed(provider, _, listed, trouble):
            there = f"has {names([one.name for one in listed]) or 'no machine'}" if listed is not None else trouble
            return f"provider {provider} {there}"
        case RunTimesPredicted(planned):
            return f"predicted how long {names([job for job, _ in planned])} will run"
        case MemoryAdvised(allocation, memory):
            return f"{allocation} would have needed {format_bytes(memory)}, by runs like it"
        case BalancingConfigured(balancing):
            return f"rebalancing was configured: {balancing.policy}, {balancing.mode}"
        case RightsSet(_, whose, name, rights, by):
            who = name if whose is Whose.USER else f"{whose} {name}".rstrip()
            return f"{by} gave {who} {rights.words()}" if rights is not None else f"{by} took back what {who} was given"


def event_concerns(event: Event, job: str) -> bool:
    """Whether the event is about this job."""
    match event:
        case MessageReceived(_, message):
            return str(getattr(message, "allocation", "")).rpartition(".")[0] == job
        case JobsSubmitted(_, jobs):
            return any(one.id == job for one in jobs)
        case CancelRequested(_, jobs):
            return job in jobs
        case RunTimesPredicted(planned):
            return job in dict(planned)
        case SignalRequested(_, name) | ExtensionRequested(_, name):
            return name == job
        case (
            RayletJoined(allocation)
            | RayletLeft(allocation)
            | Reserved(allocation)
            | ReserveRefused(allocation)
            | MemoryAdvised(allocation)
        ):
            return allocation.rpartition(".")[0] == job
        case _:
            return False


def decision_words(decision: Sequence[Any]) -> str:
    """Describe a decision; an unknown kind is shown as it is."""
    match decision:
        case ["start", allocation, node, grant]:
            return f"start {allocation} on {node} with {grant_words(grant)}"
        case ["job", job, State.WAITING.value, *_]:
            return f"{job} waits"
        case ["job", job, State.ENDED.value, _, cause]:
            return f"{job} has ended: {cause}"
        case ["job", job, state, node, _]:
            return f"{job} is {state} on {node}"
        case ["send", node, what, allocation]:
            return f"tell {node}: {what} {allocation}".rstrip()
        case ["accept", _, [*jobs]]:
            return f"take {names([str(job) for job in jobs])}"
        case ["refuse", _, code, what]:
            return f"refuse ({code}): {what}"
        case ["orders", node, orders]:
            return f"{node} is under these orders: {orders or 'none'}"
        case ["rights", key, rights]:
            return f"what operators have granted to {key} is: {rights or 'nothing'}"
        case ["move", kind, boost, source, amount, applied]:
            what = (
                f"{'lend' if kind == 'lend' else 'give back'} {boost or 'a boost'} of {source} ({amount_words(amount)})"
            )
            return what if applied else f"propose: {what}"
        case ["balancing", order]:
            return f"rebalance by these orders: {order or 'none'}"
        case ["machine", name, machine]:
            return f"machine {name} is {machine or 'forgotten'}"
        case ["call", what, whom]:
            return f"ask a provider to {what} {whom}"
        case ["audit", node, what]:
            return f"note of {node}: {what}"
        case ["loss", found]:
            return f"start nothing, since the store has lost commits: {found}"
        case ["reserve", allocation, node]:
            return f"have Ray reserve {allocation} on its node {node[:12]}"
        case ["unreserve", allocation]:
            return f"have Ray let go of {allocation}"
        case _:
            return str(decision)


def decision_concerns(decision: Sequence[Any], job: str) -> bool:
    """Whether the decision is about this job."""
    match decision:
        case ["start" | "reserve" | "unreserve", allocation, *_] | ["send", _, _, allocation]:
            return str(allocation).rpartition(".")[0] == job
        case ["job", name, *_]:
            return bool(name == job)
        case ["accept", _, [*jobs]]:
            return job in jobs
        case _:
            return False


def amount_words(amount: Any) -> str:
    """Describe an amount, from its plain form."""
    try:
        return str(msgspec.convert(amount, Resources))
    except msgspec.ValidationError:
        return str(amount)


def grant_words(grant: Any) -> str:
    """Describe a grant, from its plain form."""
    try:
        whole = msgspec.convert(grant, Grant)
    except msgspec.ValidationError:
        return str(grant)
    parts = [f"cores {','.join(map(str, whole.cores))}"] if whole.cores else []
    if whole.shared_core >= 0:
        parts.append(f"{format_milli(whole.shared_milli)} of core {whole.shared_core}")
    parts += [f"{format_milli(gpu.milli)} of {gpu.uuid}" if gpu.milli < MILLI else gpu.uuid for gpu in whole.gpus]
    if whole.memory:
        parts.append(f"{format_bytes(whole.memory)} memory")
    return ", ".join(parts) or "nothing"


Plain = list[Any]
"""A decision as read from a log."""
EVENTS_SHOWN = 10


class Moment(msgspec.Struct, frozen=True):
    """An event or decision, with its grid time."""

    at: float
    what: str


class Difference(msgspec.Struct, frozen=True):
    """The first turn that differs from the log: its events, and the logged and the new decisions as far as they differ.
    `state`: the decisions are equal, but this part of the ledger's state is not."""

    file: str
    at: float
    events: list[str]
    then: list[str]
    now: list[str]
    state: str = ""


class Report(msgspec.Struct):
    """Result of a replay. `cut`: bytes of an unfinished record at the end. `skipped`: missing or unreadable parts of
    the log. `broken`: an error of the ledger that occurred again; `mended`: one that did not."""

    files: int = 0
    events: int = 0
    decisions: int = 0
    began: float = 0.0
    ended: float = 0.0
    software: list[str] = []
    cut: int = 0
    skipped: list[str] = []
    broken: Moment | None = None
    mended: Moment | None = None
    difference: Difference | None = None
    story: list[Moment] = []

    def note(self, turn: Turn) -> None:
        """Count a turn."""
        if not self.events:
            self.began = turn.now
        self.events += len(turn.events)
        self.decisions += len(turn.decisions)
        self.ended = turn.now


class Start(msgspec.Struct, frozen=True):
    """A file begins, with this checkpoint. `follows` as in its Header."""

    path: Path
    follows: bool
    at: Checkpoint

    def ledger(self) -> Ledger:
        """A ledger restored from it. Raises BadLog."""
        try:
            return checkpoint.resume(self.at)
        except Exception as error:
            what = f"{self.path}: record 2, the ledger as it was, does not hold together"
            raise BadLog(what, f"{type(error).__name__}: {error}", "the file was changed or damaged") from None


def logs(path: Path) -> list[Path]:
    """The files of a path: a file, a folder of them, or a coordinator's state directory. Raises BadLog."""
    try:
        if not path.is_dir():
            return [path]
        below = path / "events"
        found = files(below if below.is_dir() else path)
    except OSError as error:
        raise BadLog(f"{path} cannot be read", why=error.strerror or str(error)) from None
    if not found:
        raise BadLog(f"there is no event log in {path}", hint="give a file, or the coordinator's state directory")
    return found


def follow(paths: Sequence[Path], until: float, report: Report) -> Iterator[Start | Turn]:
    """Yield all records of these files up to a time, and count them. As each file can be replayed alone, unreadable
    ones are skipped and reported. Raises BadLog if none is readable."""
    whole, expected = True, 0
    for path in paths:
        number = int(match[1]) if (match := NAME.fullmatch(path.name)) else 0
        if expected and number > expected:
            gone = f"{expected:06}.log" + (f" to {number - 1:06}.log" if number - 1 > expected else "")
            report.skipped.append(
                f"{gone}: not there, so what happened between {expected - 1:06} and {number:06} is not"
            )
            whole = False
        expected = number + 1 if number else 0
        try:
            yield from _follow(path, until, report, whole)
            whole = not report.cut
            if report.cut and path != paths[-1]:
                gone = f"the last {report.cut} bytes are no whole record: the coordinator was killed, or it was cut"
                report.skipped.append(f"{path}: {gone}")
                report.cut = 0
        except (BadLog, OSError) as error:
            bad = error if isinstance(error, BadLog) else _unreadable(path, error)
            if len(paths) == 1 or (path == paths[-1] and not report.files):
                raise bad from None
            report.skipped.append(f"{bad.what}: {bad.why}")
            whole = False


def _unreadable(path: Path, error: OSError) -> BadLog:
    return BadLog(f"{path} cannot be read", why=error.strerror or str(error))


def _follow(path: Path, until: float, report: Report, whole: bool) -> Iterator[Start | Turn]:
    follows = False
    for record in read(path):
        match record:
            case Header(software=software):
                follows = record.follows
                if software not in report.software:
                    report.software.append(software)
            case Checkpoint():
                if record.now > until:
                    return
                report.files += 1
                yield Start(path, follows and whole, record)
            case Cut(missing):
                report.cut = missing
            case Turn():
                if record.now > until:
                    return
                report.note(record)
                yield record


def play(ledger: Ledger, turn: Turn) -> tuple[list[Plain], str]:
    """Hand a turn to a ledger: its decisions, and its error (empty: none)."""
    commands: list[Command] = []
    broken = ""
    ledger.next_deadline()  # as the driver asked
    try:
        for event in turn.events:
            commands += ledger.handle(event, turn.now)
        commands += ledger.settle(turn.now)
    except Exception as error:
        broken = f"{type(error).__name__}: {error}"
    return plain(commands), broken


def plain(commands: Sequence[Command]) -> list[Plain]:
    """The decisions in the form of a log."""
    made: list[Plain] = msgspec.msgpack.decode(msgspec.msgpack.encode(decisions(commands)))
    return made


def replay(path: Path, until: float = float("inf"), job: str = "") -> Report:
    """Replay up to a time or to the first difference; with the events of a job, if one is named. Raises BadLog."""
    report = Report()
    ledger, file, last = Ledger(), "", Turn(0.0, [], [])
    for one in follow(logs(path), until, report):
        if isinstance(one, Start):
            # If nothing happened in between, the ledger has to equal the checkpoint.
            state = checkpoint.differs(checkpoint.take(ledger), one.at) if one.follows and file else ""
            if state:
                report.difference = Difference(file, last.now, _events(last), [], [], state)
            file, ledger = str(one.path), one.ledger()
        else:
            last = one
            if job:
                _tell(report.story, one, job)
            _compare(file, one, *play(ledger, one), report)
        if report.difference is not None:
            break
    return report


def _compare(file: str, turn: Turn, decided: list[Plain], broken: str, report: Report) -> None:
    if decided == turn.decisions and (turn.broken or not broken):
        if turn.broken and broken:
            report.broken = Moment(turn.now, broken)
        elif turn.broken:
            report.mended = Moment(turn.now, turn.broken)
        return
    then = [decision_words(one) for one in turn.decisions if one not in decided]
    now = [decision_words(one) for one in decided if one not in turn.decisions]
    if broken:
        now.append(f"the ledger refuses: {broken}")
    elif not then and not now:  # equal in another order
        then, now = ([decision_words(one) for one in some] for some in (turn.decisions, decided))
    report.difference = Difference(file, turn.now, _events(turn), then, now)


def _events(turn: Turn) -> list[str]:
    said = [event_words(event) for event in turn.events[-EVENTS_SHOWN:]]
    more = len(turn.events) - len(said)
    return [f"{more} events before these"] * bool(more) + said


def _tell(story: list[Moment], turn: Turn, job: str) -> None:
    story += [Moment(turn.now, event_words(event)) for event in turn.events if event_concerns(event, job)]
    story += [Moment(turn.now, decision_words(one)) for one in turn.decisions if decision_concerns(one, job)]
