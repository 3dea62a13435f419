"""Replay: the events of an event log handed to a ledger again, which by the same policy has to come to the same
decisions (what_if.py: by another policy); and events and decisions in words.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.checkpoint import Checkpoint
from distributed_grid.coordinator.core.commands import (
    CancelAsked,
    Command,
    DrainAsked,
    Event,
    ExtendAsked,
    ForgetAsked,
    Heard,
    Hold,
    JobsSubmitted,
    Joined,
    LabelAsked,
    Left,
    LossFound,
    NodeDoubted,
    NodeDown,
    NodeUp,
    RayLooked,
    Reserved,
    ReserveRefused,
    SignalAsked,
    Tick,
    Told,
    UndrainAsked,
    decisions,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.eventlog.format import NAME, BadLog, Cut, Header, Turn, files, read
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.resources import MILLI, Grant, format_bytes, format_milli

NAMED = 3
"""So many of a kind are named in a sentence."""


def names(of: Sequence[str]) -> str:
    """A few names: `a, b, c and 4 more`."""
    return ", ".join(of[:NAMED]) + (f" and {len(of) - NAMED} more" if len(of) > NAMED else "")


def event_words(event: Event) -> str:
    """What happened."""
    match event:
        case NodeUp(facts):
            return f"{facts.name} came"
        case NodeDown(node):
            return f"the connection of {node} closed"
        case Heard(node):
            return f"{node} was heard"
        case Told(node, message):
            about = getattr(message, "allocation", "")
            return f"{node} told {type(message).__name__.lower()}{f' of {about}' if about else ''}"
        case JobsSubmitted(_, jobs):
            return f"{jobs[0].user} submitted {names([job.id for job in jobs])}" if jobs else "no jobs were submitted"
        case CancelAsked(_, jobs, reason):
            return f"the end of {names(jobs)} was asked for{f': {reason}' if reason else ''}"
        case SignalAsked(_, job, number):
            return f"signal {number} for {job} was asked for"
        case Hold(on):
            return "the disk refused, nothing new is to start" if on else "the disk is well again"
        case Tick():
            return "time passed"
        case DrainAsked(_, nodes, by, reason):
            return f"{by} drained {names(nodes)}{f': {reason}' if reason else ''}"
        case UndrainAsked(_, nodes, by):
            return f"{by} undrained {names(nodes)}"
        case LabelAsked(_, nodes, _, by):
            return f"{by} labelled {names(nodes)}"
        case Joined(allocation, node):
            return f"Ray showed {allocation} as node {node[:12]}"
        case Left(allocation, why):
            return f"{allocation} was not in Ray any more: {why}"
        case ExtendAsked(_, job, seconds):
            return f"{job} was to last {seconds:g} s longer"
        case ForgetAsked(_, nodes, by):
            return f"{by} had {names(nodes)} forgotten"
        case RayLooked(nodes, trouble):
            return f"Ray could not be asked: {trouble}" if trouble else f"Ray told of its nodes on {names(list(nodes))}"
        case Reserved(allocation):
            return f"Ray reserved {allocation}"
        case ReserveRefused(allocation, why):
            return f"Ray did not reserve {allocation}: {why}"
        case LossFound(found):
            return f"the store showed to have lost commits: {found}"
        case NodeDoubted(node, found):
            return f"{node} said what it cannot prove: {found}"


def event_concerns(event: Event, job: str) -> bool:
    """Whether it is about this job."""
    match event:
        case Told(_, message):
            return str(getattr(message, "allocation", "")).rpartition(".")[0] == job
        case JobsSubmitted(_, jobs):
            return any(one.id == job for one in jobs)
        case CancelAsked(_, jobs):
            return job in jobs
        case SignalAsked(_, name) | ExtendAsked(_, name):
            return name == job
        case Joined(allocation) | Left(allocation) | Reserved(allocation) | ReserveRefused(allocation):
            return allocation.rpartition(".")[0] == job
        case _:
            return False


def decision_words(decision: Sequence[Any]) -> str:
    """What was decided; one of a kind that is not known here as it stands."""
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
    """Whether it is about this job."""
    match decision:
        case ["start" | "reserve" | "unreserve", allocation, *_] | ["send", _, _, allocation]:
            return str(allocation).rpartition(".")[0] == job
        case ["job", name, *_]:
            return bool(name == job)
        case ["accept", _, [*jobs]]:
            return job in jobs
        case _:
            return False


def grant_words(grant: Any) -> str:
    """What is granted, from its plain form."""
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
"""A decision as it is read from a log."""
EVENTS_SHOWN = 10


class Moment(msgspec.Struct, frozen=True):
    """Something that happened or was decided, and when, in grid time."""

    at: float
    what: str


class Difference(msgspec.Struct, frozen=True):
    """The first turn that does not come out as it is written: its events, what was decided then and is decided now, as
    far as it differs. `state`: the decisions are the same, but not this part of the ledger as it was written down."""

    file: str
    at: float
    events: list[str]
    then: list[str]
    now: list[str]
    state: str = ""


class Report(msgspec.Struct):
    """What came of a replay. `cut`: bytes of an unfinished record at the end. `skipped`: what of the log is not there
    or cannot be read, in words. `broken`: what the ledger refused, then as now; `mended`: what it refused then, and
    does not now."""

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
    """A file begins here, with this ledger. `follows` as in its Header."""

    path: Path
    follows: bool
    at: Checkpoint

    def ledger(self) -> Ledger:
        """It, to go on with. Raises BadLog."""
        try:
            return checkpoint.resume(self.at)
        except Exception as error:
            what = f"{self.path}: record 2, the ledger as it was, does not hold together"
            raise BadLog(what, f"{type(error).__name__}: {error}", "the file was changed or damaged") from None


def logs(path: Path) -> list[Path]:
    """The files that a name stands for: a file, a folder of them, or a coordinator's state directory. Raises BadLog."""
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
    """All that these files say up to a moment, counted. Each can be replayed alone, so of several those that cannot be
    read are left out, and that is told. Raises BadLog where nothing of it can be read."""
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
            whole = True
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
    """Have a ledger take a turn: what it decides, and what it refuses (empty: nothing)."""
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
    """Their decisions, as a log has them."""
    made: list[Plain] = msgspec.msgpack.decode(msgspec.msgpack.encode(decisions(commands)))
    return made


def replay(path: Path, until: float = float("inf"), job: str = "") -> Report:
    """Decide all again, up to a moment or to the first difference; with the story of a job, where one is named. Raises
    BadLog."""
    report = Report()
    ledger, file, last = Ledger(), "", Turn(0.0, [], [])
    for one in follow(logs(path), until, report):
        if isinstance(one, Start):
            # Where nothing happened in between, the ledger has to be now as it was written down then.
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
    elif not then and not now:  # the same in another order
        then, now = ([decision_words(one) for one in some] for some in (turn.decisions, decided))
    report.difference = Difference(file, turn.now, _events(turn), then, now)


def _events(turn: Turn) -> list[str]:
    said = [event_words(event) for event in turn.events[-EVENTS_SHOWN:]]
    more = len(turn.events) - len(said)
    return [f"{more} events before these"] * bool(more) + said


def _tell(story: list[Moment], turn: Turn, job: str) -> None:
    story += [Moment(turn.now, event_words(event)) for event in turn.events if event_concerns(event, job)]
    story += [Moment(turn.now, decision_words(one)) for one in turn.decisions if decision_concerns(one, job)]
