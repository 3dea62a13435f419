"""Runs a seed; if it shows a violation, tells the last steps and reduces its plan."""

import re
from collections.abc import Collection

import msgspec

from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.plan import KINDS, make
from distributed_grid.simulator.workload import Shape
from distributed_grid.simulator.world import World, begin_fault

STORY_LINES = 40


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a seed: the hash of all that happened in order, the number of events and of simulated seconds,
    faults by kind, and the number of processes that ran. `about` and `what` say what was violated, if so."""

    seed: int
    trace: str
    events: int
    seconds: float
    faults: dict[str, int]
    started: int
    about: str = ""
    what: str = ""


def run(seed: int, shape: Shape | None = None, without: Collection[str] = ()) -> Run:
    """Run the world of a seed to its end."""
    return _run(seed, shape or Shape(), without, recording=False)[0]


def _run(seed: int, shape: Shape, without: Collection[str], recording: bool) -> tuple[Run, list[tuple[float, str]]]:
    world = World(make(seed, shape, without), begin_fault, recording)
    about = what = ""
    try:
        world.go()
    except Violation as violation:
        about, what = violation.about, violation.what
    except Exception as error:  # a finding of this seed, as a violation is: the other seeds are still to be run
        about, what = "the run", f"{type(error).__name__} {error} ({_where(error)})"
    engine = world.engine
    found = Run(
        seed=seed,
        trace=engine.digest(),
        events=engine.events,
        seconds=engine.now,
        faults=world.faults,
        started=len(world.judge.runs),
        about=about,
        what=what,
    )
    return found, engine.story


def _where(error: Exception) -> str:
    """The file and line that raised it."""
    at = error.__traceback__
    assert at is not None, "it was raised"  # noqa: S101
    while at.tb_next is not None:
        at = at.tb_next
    return f"{at.tb_frame.f_code.co_filename.rpartition('/')[2]}, line {at.tb_lineno}"


def story(seed: int, shape: Shape, without: Collection[str] = ()) -> list[str]:
    """The last steps that concern what was violated, in plain words."""
    found, lines = _run(seed, shape, without, recording=True)
    names = {found.about, *re.findall(r"\b(?:n\d+|j\d+x\d+)\b", f"{found.about} {found.what}")}
    jobs = {name.partition("x")[0] for name in names if re.fullmatch(r"j\d+x\d+", name)}
    names |= {node for _, text in lines for node in re.findall(r"\bn\d+\b", text) if _concerns(text, names, jobs)}
    kept = [f"{at:9.3f}  {text}" for at, text in lines if _concerns(text, names, jobs)]
    return [*kept[-STORY_LINES:], f"           {found.about}: {found.what}"]


def _concerns(text: str, names: set[str], jobs: set[str]) -> bool:
    """Whether a line is about one of these, or about no node and no job in particular."""
    words = re.findall(r"\b(?:n\d+|j\d+)(?=\b|x)", re.sub(r"\bjob (\d+)\b", r"j\1", text))
    return not words or any(word in names or word in jobs for word in words)


def shrink(seed: int, shape: Shape, without: Collection[str] = ()) -> tuple[str, ...]:
    """Return what can be left out, kinds of faults and single faults and jobs, so that something is still violated."""
    out = [*without]

    def shows(out: Collection[str]) -> bool:
        return bool(run(seed, shape, out).what)

    for kind in KINDS:
        if kind not in out and shows([*out, kind]):
            out.append(kind)
    plan = make(seed, shape, out)
    for name in (*(f"fault{one.number}" for one in plan.faults), *(f"job{one.number}" for one in plan.jobs)):
        if shows([*out, name]):
            out.append(name)
    met = {one.kind for one in make(seed, shape).faults}
    return tuple(name for name in out if name not in KINDS or name in met or name in without)
