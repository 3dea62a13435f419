"""The figures of a run: utilisation, waits, slowdowns, fragmentation and lost work."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from distributed_grid.protocol.placement import same_model
from distributed_grid.protocol.resources import MILLI, Resources
from distributed_grid.simulator.lab.trace import JobKind, Machine, TraceJob, capacity
from distributed_grid.simulator.lab.world import Free, Point, World

BOUND = 10.0
"""Minimum run time in a slowdown (s); a shorter one counts as this."""
CLASSES = (("tiny", 1 / 64), ("small", 1 / 8), ("medium", 1 / 2), ("large", math.inf))
"""Size classes: the part of the cluster that a job asks for (the larger of its parts of cores and GPUs) is below."""
TYPICAL = 0.95
"""Part of all requests that the most frequent kinds cover, by which fragmentation is measured."""


class Waits(msgspec.Struct, frozen=True):
    """Waiting times in seconds, of so many jobs."""

    jobs: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    max: float = 0.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. Parts are 0 to 1; waits are seconds; work is core-seconds, of jobs with GPUs
    GPU-seconds. docs/policy-lab.md says what each means."""

    jobs: int
    use: float
    wait: Waits
    by_size: dict[str, Waits]
    wait_by_area: float
    slowdown: float
    fairness: float
    wasted: float
    gpus_allocated: float
    gpus_fragmented: float
    moves: int
    makespan: float
    owners_use: float = 0.0
    owners_pain: float = 0.0
    recalls: int = 0
    frozen: float = 0.0
    unfinished: int = 0


def waits(values: Iterable[float]) -> Waits:
    """Mean, median, 95th percentile and maximum."""
    ordered = sorted(values)
    if not ordered:
        return Waits()
    count = len(ordered)
    return Waits(count, sum(ordered) / count, quantile(ordered, 0.5), quantile(ordered, 0.95), ordered[-1])


def quantile(ordered: Sequence[float], part: float) -> float:
    """The quantile of sorted values, interpolated between neighbours."""
    at = part * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 where all are equal, 1/n where one has all."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def part_of(job: TraceJob, whole: Resources) -> float:
    """The larger of the parts of all cores and of all GPUs that a job asks for."""
    cpu = job.resources.cpu / whole.cpu if whole.cpu else 0.0
    return max(cpu, job.resources.gpu / whole.gpu if whole.gpu else 0.0)


def class_of(part: float) -> str:
    """The size class of a job that asks for this part."""
    return next(name for name, below in CLASSES if part < below)


def mean_over(points: Sequence[Point], column: str, begin: float, until: float) -> float:
    """The mean of a column over the time from `begin` to `until`; before the first point there is nothing."""
    total = 0.0
    for at, one in enumerate(points):
        end = min(until, points[at + 1].at) if at + 1 < len(points) else until
        total += getattr(one, column) * max(0.0, end - max(begin, one.at))
    return total / (until - begin) if until > begin else 0.0


def figures(world: World, skipped: int = 0, fragmented: float = 0.0, pain: float = 0.0) -> Figures:
    """The figures of a finished run, without the `skipped` first jobs. What is a mean over time is measured from the
    first submission that counts to the last; where all came at once, to the end of the run."""
    jobs, records, whole = world.jobs, world.records, capacity(world.machines)
    makespan = max((record.ended for record in records), default=0.0)
    begin, last = (jobs[skipped].submit, jobs[-1].submit) if jobs[skipped:] else (0.0, 0.0)
    until = last if last > begin else makespan
    slow: dict[str, list[float]] = {}
    sizes: dict[str, list[float]] = {name: [] for name, _ in CLASSES}
    waited, area, weighted = list[float](), 0.0, 0.0
    for job, record in zip(jobs[skipped:], records[skipped:], strict=True):
        if record.began < 0 or (record.ended < 0 and not world.at_once):
            continue
        wait = record.began - job.submit
        waited.append(wait)
        sizes[class_of(part_of(job, whole))].append(wait)
        if math.isfinite(job.duration):
            area += job.duration * job.size
            weighted += wait * job.duration * job.size
            slow.setdefault(job.user, []).append(max(1.0, (wait + job.duration) / max(BOUND, job.duration)))
    slowdowns = [one for found in slow.values() for one in found]
    return Figures(
        jobs=len(waited),
        use=(world.cpu if world.at_once else mean_over(world.points, "cpu", begin, until)) / whole.cpu,
        wait=waits(waited),
        by_size={name: waits(found) for name, found in sizes.items() if found},
        wait_by_area=weighted / area if area else 0.0,
        slowdown=sum(slowdowns) / len(slowdowns) if slowdowns else 0.0,
        fairness=jain([sum(found) / len(found) for found in slow.values()]),
        wasted=sum(record.lost for record in records[skipped:]),
        gpus_allocated=_gpus(world, begin, until) / whole.gpu if whole.gpu else 0.0,
        gpus_fragmented=fragmented,
        moves=sum(record.moves for record in records[skipped:]),
        makespan=makespan,
        owners_use=mean_over(world.points, "owned", begin, until) / whole.cpu,
        owners_pain=pain,
        recalls=sum(record.recalls for record in records[skipped:]),
        unfinished=0 if world.at_once else sum(record.ended < 0 for record in records[skipped:]),
        frozen=sum(record.paused for record in records[skipped:]),
    )


def _gpus(world: World, begin: float, until: float) -> float:
    return world.gpu if world.at_once else mean_over(world.points, "gpu", begin, until)


# --- fragmentation ----------------------------------------------------------------------------------------------------


class Fragmentation:
    """Free GPUs that a typical request cannot use where they are (the measure of FGD, ATC'23): the mean over the kinds
    of request by their frequency, as a part of all GPUs. With `every`, over moments of a run at that distance."""

    def __init__(self, jobs: Sequence[TraceJob], machines: Sequence[Machine], every: float = 0.0) -> None:
        counted = Counter(job.kind for job in jobs if job.resources.gpu)
        self._total = sum(machine.gpus for machine in machines) * MILLI
        self._kinds: list[tuple[JobKind, float]] = []
        sought, found = TYPICAL * counted.total(), 0
        for kind, count in counted.most_common():
            if found >= sought:
                break
            self._kinds.append((kind, float(count)))
            found += count
        self._kinds = [(kind, count / found) for kind, count in self._kinds]
        self._every, self._next, self._sum, self._count = every, 0.0, 0.0, 0

    def see(self, world: World) -> None:
        """Measure, if it is time."""
        if self._total and self._kinds and world.now >= self._next and world.now <= world.jobs[-1].submit:
            self._next = world.now + self._every
            self._sum += self.now(world.free)
            self._count += 1

    @property
    def mean(self) -> float:
        """Over the moments that were measured."""
        return self._sum / self._count if self._count else 0.0

    def now(self, free: Sequence[Free]) -> float:
        """At this moment."""
        if not self._total or not self._kinds:
            return 0.0
        seen: dict[tuple[int, int, str, tuple[int, ...]], float] = {}
        total = 0.0
        for one in free:
            idle = sum(one.gpus)
            if idle:
                key = (one.cpu, one.memory, one.model, tuple(sorted(one.gpus)))
                if key not in seen:
                    seen[key] = sum(share * unusable(one, kind) for kind, share in self._kinds)
                total += seen[key]
        return total / self._total


def unusable(free: Free, job: JobKind) -> int:
    """Free milli-GPUs of a machine that such a request cannot use: all of them if it does not fit there, else those on
    devices with too little."""
    kind, model = job
    idle = sum(free.gpus)
    least = min(kind.gpu, MILLI)
    usable = [left for left in free.gpus if left >= least]
    fits = len(usable) * MILLI >= kind.gpu if kind.gpu >= MILLI else bool(usable)
    if not fits or not same_model(model, free.model) or kind.cpu > free.cpu or kind.memory > free.memory:
        return idle
    return idle - sum(usable)


# --- several seeds ----------------------------------------------------------------------------------------------------

# Student's t for 1, 2, … degrees of freedom; beyond them 1.96 + 2.4 ÷ degrees is right to 0.01.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)


def interval(values: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the mean (Student's t); 0 for a single value."""
    count = len(values)
    if count < 2:
        return 0.0
    mean = sum(values) / count
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    factor = _T95[count - 2] if count - 2 < len(_T95) else 1.96 + 2.4 / (count - 1)
    return factor * deviation / math.sqrt(count)


Plain = dict[str, "float | int | Plain"]


def plain(found: Figures) -> Plain:
    """The figures as numbers by name."""
    data: Plain = msgspec.to_builtins(found)
    return data


def over_seeds(runs: Sequence[Figures]) -> tuple[Plain, Plain]:
    """The mean of each figure over the runs, and half the width of its confidence interval."""
    every = [plain(one) for one in runs]
    return _merged(every, lambda values: sum(values) / len(values)), _merged(every, interval)


def _merged(every: Sequence[Plain], how: Callable[[Sequence[float]], float]) -> Plain:
    found: Plain = {}
    for name in dict.fromkeys(name for one in every for name in one):
        there = [one[name] for one in every if name in one]  # of a size class that a seed did not draw there is none
        below = [one for one in there if isinstance(one, dict)]
        found[name] = _merged(below, how) if below else _rounded(how([float(one) for one in there]))  # type: ignore[arg-type]
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.10g}")
