"""Replay under another policy: where its decisions differ.

The logged events are answers to the logged decisions, so a ledger under another policy would soon get answers to
questions that it never asked. Therefore two ledgers process each turn, one under the logged policy, one under the
other. Each difference is noted, and the second ledger is reset to the state of the first: a difference is what the
other policy would have done *at that point*, not its consequences.

Decisions that the second ledger makes earlier are remembered until the first makes them too, to report how much
earlier.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import BalancingConfigured, BalancingRequested, JobsSubmitted
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import DEFAULT, Policy, Weights
from distributed_grid.coordinator.eventlog.format import Turn
from distributed_grid.coordinator.eventlog.replay import (
    Plain,
    Report,
    Start,
    follow,
    grant_words,
    logs,
    names,
    plain,
    play,
)
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import ServiceOrder, State, parse_order
from distributed_grid.protocol.placement import Strategy, parse_strategy
from distributed_grid.protocol.sharing.policies import OffloadingMode, PolicyName, parse_mode, parse_policy
from distributed_grid.protocol.text import format_duration, parse_duration

LATE = 5.0
"""Seconds that a coordinator on a busy machine comes too late to a deadline."""
KEPT = 10_000
"""Maximum number of differences kept; all are counted."""

Key = tuple[str, str]
Value = list[Any]


class PolicyDifference(msgspec.Struct):
    """A decision that differs: the allocation `name` starts (`what` is start), or the job `name` enters the state
    `what`; `was` under the logged policy, `would` under the other. `after`: seconds until the logged policy decided the
    same; below zero: never."""

    at: float
    kind: str
    what: str
    name: str
    was: Value = []
    would: Value = []
    after: float = -1.0

    @property
    def job(self) -> str:
        """The job concerned."""
        return self.name.rpartition(".")[0] if self.what == "start" else self.name


class Compared(msgspec.Struct):
    """Result of a comparison: counts by kind, and the first differences. `broken`: an error of the ledger under the
    other policy only."""

    report: Report
    counts: dict[str, int] = {}
    differences: list[PolicyDifference] = []
    broken: str = ""


# --- another policy -------------------------------------------------------------------------------------------------


WEIGHTS_OF = {"weight.": "weights", "gpu_weight.": "gpu_weights"}
"""Prefixes of the names of weights: of requests without GPUs, and of those with."""
NOT_PLAIN = (*WEIGHTS_OF.values(), "preempting", "gang_ports", "rights", "sharing", "unused", "balancing", "scaling")
"""Fields that cannot be set by name: weights are set one by one, and the ports decide nothing."""


def settings() -> dict[str, Any]:
    """Return all settings with their defaults."""
    found = {name: value for name, value in msgspec.structs.asdict(DEFAULT).items() if name not in NOT_PLAIN}
    found["order"] = DEFAULT.sharing.order
    for prefix, field in WEIGHTS_OF.items():
        found |= {prefix + name: value for name, value in msgspec.structs.asdict(getattr(DEFAULT, field)).items()}
    return found | {"mode": DEFAULT.balancing.mode, "policy": DEFAULT.balancing.policy}


def changed(policy: Policy, pairs: Sequence[str]) -> Policy:
    """The policy with these `NAME=VALUE`; weights are normalised to 1. Raises BadValue."""
    known = settings()
    given: dict[str, Any] = {}
    for pair in pairs:
        name, there, text = pair.partition("=")
        if not there:
            raise BadValue(f"{pair!r} sets nothing", hint="write NAME=VALUE, such as lost_after=30")
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else "use one of these"
            raise BadValue(f"there is no setting {name!r} to replay with", f"there are {', '.join(known)}", hint)
        given[name] = _value(name, text, known[name])
    if (strategy := given.get("strategy")) is not None:
        policy = policy.by_strategy(strategy)
    for prefix, field in WEIGHTS_OF.items():
        if chosen := {name.removeprefix(prefix): given.pop(name) for name in [*given] if name.startswith(prefix)}:
            weights = msgspec.structs.asdict(getattr(policy, field)) | chosen
            total = sum(weights.values())
            if not total:
                raise BadValue("all weights are zero", hint="leave one above zero")
            given[field] = Weights(**{name: value / total for name, value in weights.items()})
    if (order := given.pop("order", None)) is not None:
        given["sharing"] = msgspec.structs.replace(policy.sharing, order=order)
    balancing = {name: given.pop(name) for name in ("mode", "policy") if name in given}
    given["balancing"] = msgspec.structs.replace(policy.balancing, **balancing)
    return msgspec.structs.replace(policy, **given)


def _value(name: str, text: str, default: Any) -> Any:
    if isinstance(default, Strategy):
        return parse_strategy(text)
    if isinstance(default, ServiceOrder):
        return parse_order(text)
    if isinstance(default, PolicyName):
        return parse_policy(text)
    if isinstance(default, OffloadingMode):
        return parse_mode(text)
    if isinstance(default, int):
        if not text.isdigit() or not 0 < int(text) <= 10_000:
            raise BadValue(f"{name} cannot be {text!r}", hint="give a whole number from 1 to 10000")
        return int(text)
    if not name.startswith(tuple(WEIGHTS_OF)):
        return parse_duration(text)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1000:
        raise BadValue(f"{name} cannot be {text!r}", hint="give a number from 0 up, such as 0.5")
    return value


# --- the comparison -------------------------------------------------------------------------------------------------


class _Pair:
    """The ledger under the logged policy, and the one under the other."""

    def __init__(self, pairs: Sequence[str], job: str, compared: Compared) -> None:
        self.pairs = pairs
        self.job = job
        self.compared = compared
        self.first = self.second = Ledger()
        self.policy = DEFAULT
        self.early: dict[Key, PolicyDifference] = {}

    def start(self, one: Start) -> None:
        """Begin a file."""
        self.first = one.ledger()
        self.policy = changed(one.at.policy, self.pairs)
        self._reset()

    def _reset(self) -> None:
        self.second = checkpoint.fork(self.first, self.policy)

    def decide(self, turn: Turn) -> str:
        """Hand a turn to both; the second ledger's error, if the first has none (empty: none)."""
        self._run_ahead(turn.now)
        events = [
            _copy(event) if isinstance(event, JobsSubmitted) else event
            for event in turn.events
            if not isinstance(event, BalancingRequested | BalancingConfigured)
        ]
        said, broken = play(self.first, turn)
        other, refused = play(self.second, msgspec.structs.replace(turn, events=events))
        if refused and not broken:
            return refused
        differs = self._note(turn.now, _facts(said), _facts(other))
        if len(events) < len(turn.events):  # what was ordered of rebalancing holds for both, but for what is asked here
            self.policy, differs = changed(self.first.state.policy, self.pairs), True
        if differs:
            self._reset()
        return ""

    def _run_ahead(self, now: float) -> None:
        """Deadlines of the second ledger at times without events in the log. What is due for both was decided when the
        coordinator came to it, a moment late: so it is here."""
        differs, logged = False, self.first.next_deadline()
        while (due := self.second.next_deadline()) is not None and due < now:
            if logged is not None and logged <= due and now - due < LATE:
                break
            differs |= self._note(due, {}, _facts(plain(self.second.settle(due))))
        if differs:
            self._reset()

    def _note(self, at: float, first: dict[Key, Value], second: dict[Key, Value]) -> bool:
        """Record the differences; whether there are any."""
        for key, was in first.items():
            before = self.early.pop(key, None)
            if before is not None:
                before.was, before.after = was, at - before.at
            elif key not in second:
                self._keep(PolicyDifference(at, "later", *key, was=was))
            elif second[key] != was:
                self._keep(
                    PolicyDifference(at, "elsewhere" if key[0] == "start" else "otherwise", *key, was, second[key])
                )
        for key, would in second.items():
            if key not in first and key not in self.early:
                self.early[key] = PolicyDifference(at, "earlier", *key, would=would)
                self._keep(self.early[key])
        return first != second

    def _keep(self, one: PolicyDifference) -> None:
        if self.job and one.job != self.job:
            return
        counts = self.compared.counts
        counts[one.kind] = counts.get(one.kind, 0) + 1
        if len(self.compared.differences) < KEPT:
            self.compared.differences.append(one)


def _copy(event: JobsSubmitted) -> JobsSubmitted:
    """The ledger modifies the jobs it takes: each needs its own copy."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=JobsSubmitted)


def _facts(decided: Sequence[Plain]) -> dict[Key, Value]:
    """The compared decisions: placement of allocations, and states of jobs."""
    facts: dict[Key, Value] = {}
    for one in decided:
        match one:
            case ["start", allocation, *where]:
                facts[("start", allocation)] = where
            case ["job", job, state, *more] if state != State.STARTING.value:
                facts[(state, job)] = more
    return facts


def compare(path: Path, pairs: Sequence[str], until: float = float("inf"), job: str = "") -> Compared:
    """Replay a log by its own policy and by one with `pairs` changed. Raises BadLog, BadValue."""
    changed(DEFAULT, pairs)
    compared = Compared(Report())
    pair = _Pair(pairs, job, compared)
    for one in follow(logs(path), until, compared.report):
        if isinstance(one, Start):
            pair.start(one)
        elif refused := pair.decide(one):
            compared.broken = refused
            break
    return compared


# --- in words -------------------------------------------------------------------------------------------------------


class Line(msgspec.Struct):
    """Differences that are equal but for the job, in one sentence."""

    at: float
    text: str


def lines(differences: Sequence[PolicyDifference]) -> list[Line]:
    """Describe them, with those of one time and kind merged."""
    groups: dict[Any, list[PolicyDifference]] = {}
    for one in differences:
        alone = one.name if one.what == "start" else ""
        key = (one.at, one.kind, one.what, alone, str(one.was), str(one.would), one.after)
        groups.setdefault(key, []).append(one)
    return [Line(some[0].at, _sentence(some[0], [one.job for one in some])) for some in groups.values()]


def _sentence(one: PolicyDifference, jobs: list[str]) -> str:
    who, was = names(jobs), "was" if len(jobs) == 1 else "were"
    match one.kind:
        case "elsewhere":
            if one.was[0] == one.would[0]:
                would = f"would get {grant_words(one.would[1])}"
                return f"{who} {was} granted {grant_words(one.was[1])} of {one.was[0]}, {would}"
            return f"{who} {was} granted on {one.was[0]}, would go to {one.would[0]}"
        case "earlier":
            span = "" if one.after < 0 else f" {format_duration(one.after)} earlier"
            never = "" if one.after >= 0 else "; it never was"
            if one.would[1:] == ["node-lost"] and one.was in ([], one.would):
                return f"{one.would[0]} would have been taken for lost{span}, ending {who}{never}"
            instead = f", not {_result_words(one.what, one.was)}" if one.was and one.was != one.would else ""
            return f"{who} would have been {_result_words(one.what, one.would)}{span}{instead}{never}"
        case "later":
            return f"{who} {was} {_result_words(one.what, one.was)}, and would not have been yet"
        case _:
            return (
                f"{who} {was} {_result_words(one.what, one.was)}, would have been {_result_words(one.what, one.would)}"
            )


def _result_words(what: str, value: Value) -> str:
    """Describe the result of a job, after `was` or `would have been`."""
    match what, value:
        case "start", [node, _]:
            return f"granted on {node}"
        case State.ENDED.value, [node, cause]:
            return f"ended as {cause}{f' on {node}' if node else ''}"
        case State.WAITING.value, _:
            return "sent back to the queue"
        case State.LOST.value, [node, _]:
            return f"out of reach on {node}"
        case _:
            return f"{what} on {value[0]}"
