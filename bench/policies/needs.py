"""What jobs need, predicted online on the traces of six workflows (Sizey's, 14,249 tasks): memory wasted and how often
it was too little; run times within the nine of ten that were told; the confidence that was told, and as it came true;
what a prediction and a sample cost; how much 100,000 shapes take."""

import csv
import gc
import heapq
import json
import math
import random
import resource
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.policies import _traces
from distributed_grid.coordinator.predictor.predictor import SHAPES, Answer, How, Level, Predictor, Tier, Usage
from distributed_grid.coordinator.predictor.shape import Shape, shape

WORKFLOWS = ("mag", "chipseq", "rnaseq", "iwd", "eager", "methylseq")
GBH = 1e9 * 3600
AT_ONCE, RUN_ON = 100, 7
FLOOR = 32e6
"""Nothing is asked for with less memory (bytes)."""


class Task(NamedTuple):
    """A task that ran to its end: its shape, when it began (s), for how long it ran, its peak and what its user asked
    for (bytes)."""

    shape: Shape
    begin: float
    seconds: float
    peak: float
    asked: float


def read(path: Path) -> list[Task]:
    """The completed tasks of a trace of Nextflow, in the order of their begin."""
    found = []
    with path.open() as file:
        for row in csv.DictReader(file):
            try:
                peak, seconds, asked = float(row["peak_rss"]), float(row["realtime"]) / 1000, float(row["memory"])
                begin, size = float(row["start"]) / 1000, int(float(row["rchar"]))
            except ValueError:
                continue
            if row["status"] == "COMPLETED" and peak > 0 and seconds > 0 and asked > 0:
                workflow, _, process = row["process"].rpartition(":")
                found.append(Task(shape([process, workflow], path.stem, size), begin, seconds, peak, asked))
    return sorted(found, key=lambda task: task.begin)


class Told(NamedTuple):
    """The prediction for a task before it ran, and the memory that was requested until it was enough."""

    task: Task
    memory: Answer
    planned: Answer
    asked: list[float]


def replay(tasks: Iterable[Task]) -> Iterator[Told]:
    """Predict each task when it begins, from those that have ended by then; a miss costs its run, and is repeated.
    Where no more than the user's other tasks is known, what the user asked for is asked for."""
    predictor, running = Predictor(), list[tuple[float, int, Task]]()
    for number, task in enumerate(tasks):
        while running and running[0][0] <= task.begin:
            _, ended, done = heapq.heappop(running)
            predictor.learn(done.shape, Usage(done.seconds, done.peak, 0.0), str(ended))
        found = predictor.predict(task.shape, task.begin)
        known = found.memory.level in (Level.SHAPE, Level.PROGRAM)
        asked = [max(FLOOR, found.memory.value if known else task.asked)]
        while asked[-1] < task.peak:
            asked.append(predictor.next_memory(task.shape, asked[-1]) or max(2 * asked[-1], task.asked))
        yield Told(task, found.memory, found.planned, asked)
        predictor.started(task.shape, str(number), task.begin, found.planned)
        heapq.heappush(running, (task.begin + task.seconds, number, task))


def memory(told: list[Told]) -> dict[str, float]:
    """Return the wasted memory (GBh), and how often the first answer was too small."""
    wasted = asked = used = missed = 0.0
    for one in told:
        task = one.task
        *short, last = one.asked
        wasted += (sum(short) + last - task.peak) * task.seconds / GBH
        asked += max(0.0, task.asked - task.peak) * task.seconds / GBH
        used += task.peak * task.seconds / GBH
        missed += bool(short)
    return {
        "tasks": len(told),
        "wasted_gbh": round(wasted, 1),
        "wasted_as_asked_gbh": round(asked, 1),
        "used_gbh": round(used, 1),
        "slack_percent": round(100 * wasted / (wasted + used), 1),
        "too_small_percent": round(100 * missed / len(told), 2),
    }


def run_time(told: list[Told], least: int) -> dict[str, float]:
    """For shapes with 50 tasks and more, return how many runs, by number of samples, stayed within the prediction for
    nine in ten."""
    tasks = Counter(one.task.shape.text for one in told)
    found = [
        one
        for one in told
        if one.planned.level is Level.SHAPE and one.planned.samples >= least and tasks[one.task.shape.text] >= 50
    ]
    if not found:
        return {"answers": 0}
    covered = sum(one.task.seconds <= one.planned.value for one in found)
    over = statistics.median(one.planned.value / one.task.seconds for one in found)
    return {"answers": len(found), "covered": round(covered / len(found), 3), "p90_by_actual": round(over, 2)}


def confidence(told: list[Told]) -> Iterator[dict[str, object]]:
    """The confidence as it was told, and as it came true, by what was told of and how."""
    for name in ("memory", "planned"):
        for tier in (Tier.STATISTICS, Tier.ML):
            given, held = [], []
            for one in told:
                answer: Answer = getattr(one, name)
                if answer.tier is tier and answer.level is not Level.USER and answer.confidence is not None:
                    needed = max(one.task.peak, FLOOR) if name == "memory" else one.task.seconds
                    given.append(answer.confidence)
                    held.append(max(answer.value, FLOOR if name == "memory" else 0.0) >= needed)
            if given:
                said, true = statistics.fmean(given), statistics.fmean(held)
                yield {"of": name, "tier": tier, "answers": len(given), "told": round(said, 3), "true": round(true, 3)}


def cost(tasks: list[Task]) -> dict[str, float]:
    """CPU time of a prediction and of a sample (µs), in the mean of a hundred: median and largest."""
    predictor, predicted, learned = Predictor(), list[float](), list[float]()
    for first in range(0, len(tasks), AT_ONCE):
        some = tasks[first : first + AT_ONCE]
        began = time.process_time()
        for task in some:
            predictor.predict(task.shape, task.begin)
        told = time.process_time()
        for number, task in enumerate(some):
            predictor.started(task.shape, f"{first}.{number}", task.begin)
        begun = time.process_time()
        for task in some:
            predictor.learn(task.shape, Usage(task.seconds, task.peak, 1.0))
        ended = time.process_time()
        for number, task in enumerate(some[first % RUN_ON :]):  # the others run on
            predictor.ended(task.shape, f"{first}.{number}")
        predicted.append((told - began) / len(some) * 1e6)
        learned.append((ended - begun) / len(some) * 1e6)
    figures: dict[str, float] = {}
    for name, found in (("predict", predicted), ("learn", learned)):
        figures |= {f"{name}_us": round(statistics.median(found), 1), f"{name}_most_us": round(max(found), 1)}
    began = time.process_time()
    for _ in range(1_000_000):
        pass
    return figures | {"empty_loop_ns": round((time.process_time() - began) * 1000, 1)}


def size() -> dict[str, float]:
    """Resident memory of 100,000 shapes, each with several samples (MiB)."""
    gc.collect()
    before = resident()
    predictor = Predictor()
    for turn in range(6):
        for number in range(SHAPES - 1000):  # so that none is forgotten
            xs = (math.log1p(number + turn), 1.0, 2.0, 3.0)
            one = Shape(number * 7919 + 3, 1, 2, "", "", (), xs)
            predictor.learn(one, Usage(10.0 + number % 100, 1e9, 1.0))
    return {"shapes": len(predictor), "mib": round((resident() - before) / (1 << 20), 1)}


def poisoned() -> dict[str, float]:
    """CPU time of a shape and its prediction (µs), after samples of no sense of commands with huge words."""
    rng, predictor, took = random.Random(5), Predictor(), list[float]()
    amounts = (math.nan, math.inf, -1.0, 0.0, 1e300, 5e-324, 1e15, 1.0)

    def some(number: int) -> Shape:
        words = [rng.choice("abcd") * rng.randint(1, 9), f"--x{number % 700}", rng.choice(("0", "1e308", "9" * 40))]
        return shape([*words, "y" * rng.choice((1, 5000))], f"u{number % 40}", rng.choice((0, 1 << 62, 5)))

    for number in range(60_000):
        seconds, memory, cores, gpu_memory, held = rng.choices(amounts, k=5)
        usage = Usage(seconds, memory, cores, gpu_memory, held, rng.choice(list(How)))
        predictor.learn(some(number), usage, str(number))
    for number in range(20_000):
        began = time.process_time_ns()
        found = predictor.predict(some(number), 1e9)
        took.append((time.process_time_ns() - began) / 1000)
        if not all(math.isfinite(one.value) for one in found):
            raise ArithmeticError(f"no number was predicted: {found}")
    took.sort()
    return {"shapes": len(predictor), "p50_us": took[len(took) // 2], "p99_us": took[len(took) * 99 // 100]}


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def show(what: str, **figures: object) -> None:
    print(json.dumps({"bench": "needs", "what": what, **figures}), flush=True)


def main() -> None:
    """Print one JSON line a figure."""
    traces = _traces.folder("needs", __doc__)
    paths = [] if traces is None else [traces / f"trace_{name}.csv" for name in WORKFLOWS]
    tasks = {path.stem.removeprefix("trace_"): read(path) for path in paths if path.is_file()}
    every: list[Told] = []
    for name, found in tasks.items():
        told = list(replay(found))
        every += told
        show("memory", trace=name, **memory(told))
        show("run time", trace=name, **run_time(told, 5))
    if every:
        show("memory", trace="all", **memory(every))
        show("run time", trace="all", **run_time(every, 5))
        show("run time", trace="all, from 50 samples on", **run_time(every, 50))
        for row in confidence(every):
            show("confidence", **row)
        show("cost", **cost([one.task for one in every]))
    elif traces is not None:
        print("needs: the traces of the workflows are not here: dos-group/sizey, data/trace_*.csv")
    show("poisoned", **poisoned())
    show("size", **size())


if __name__ == "__main__":
    main()
