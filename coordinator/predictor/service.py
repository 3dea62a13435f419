"""The coordinator's service for predictions: learns from ended attempts in small slices on the loop, behind a bounded
queue, and answers questions. No submission and no job waits for it; if it fails, nothing is predicted."""

import asyncio
import math
import secrets
import sqlite3
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from distributed_grid.coordinator.core.commands import Event, MemoryAdvised, RunTimesPredicted
from distributed_grid.coordinator.core.model import Allocation, Job
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.predictor.database import UsageDatabase, UsageRow
from distributed_grid.coordinator.predictor.estimate import MIN_SAMPLES_FOR_STATS
from distributed_grid.coordinator.predictor.predictor import How, Level, Predictor, Tier, Usage
from distributed_grid.coordinator.predictor.shape import Shape, from_features, shape
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, RetryOn, State, Used
from distributed_grid.protocol.messages import Exited, Inventory, Need, Needs, Predict, RecordUse, Started
from distributed_grid.protocol.resources import MOST_COUNT, MOST_FINITE, Resources
from distributed_grid.protocol.text import clock, format_duration
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.service import to_next_second

WAITING = 10_000
"""Maximum number of starts and ends that wait to be learned; more are dropped, oldest first."""
AT_ONCE, PAUSE = 20, 0.05
"""So many are learned, then there is a pause (s): 4 % of a core at the most."""
WRITE_EVERY = 2.0
PRUNE_EVERY = 3600.0
REFILL = 20_000
"""Number of newest rows that the models are trained with when the coordinator starts."""
PATIENCE = 1.0
"""Maximum time that an answer waits for a hanging disk (s)."""
LINES, FIRST, LOOK_EVERY = 500, 64, 0.9
"""Lines of the queue, and jobs of each, whose run time is predicted; looked for at the next whole second after so many
seconds."""
RECORDED = "recorded"
"""The cause of a run that somebody recorded, and the first part of its id."""
SIZES = 1000
"""Maximum number of bundles whose size is cached."""

log = get_logger("needs")


class _Began(NamedTuple):
    allocation: str
    job: Job
    at: float


class _Ended(NamedTuple):
    allocation: str
    job: Job
    held: int
    used: Used | None
    outcome: Outcome
    at: float


class _Recorded(NamedTuple):
    user: str
    of: Shape
    usage: Usage
    at: float


class NeedsService:
    """`clock`: grid time. `size_of`: bytes of what a bundle ships, which may take a while. `retention`: for how long
    rows are kept (s)."""

    def __init__(
        self,
        path: Path | None,
        retention: float,
        clock: Callable[[], float],
        size_of: Callable[[str], int] = lambda bundle: 0,
    ) -> None:
        self.predictor = Predictor()
        self.trouble = ""
        self._database = UsageDatabase(path) if path is not None else None
        self._retention = retention
        self._clock = clock
        self._size_of = size_of
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._waiting: deque[_Began | _Ended | _Recorded] = deque(maxlen=WAITING)
        self._rows: deque[UsageRow] = deque(maxlen=WAITING)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="usage")
        self._last: tuple[tuple[Any, ...], Shape] | None = None
        """The command whose shape was found last: jobs often come in lines of equal ones."""
        self._shapes: dict[str, Shape] = {}
        """Of attempts that run."""
        self._ended: OrderedDict[str, None] = OrderedDict()
        """Attempts whose end was noted, since it may be reported again."""
        self._unpruned = 0
        self._predicted: OrderedDict[str, None] = OrderedDict()
        """Jobs whose run time was predicted while they waited."""
        self._lines: Iterator[str] = iter(())
        self._look_again = 0.0
        self._more = False
        """Whether some of those lines were not examined yet."""
        self._stirred = asyncio.Event()
        self._unmeasured: dict[str, None] = {}

    # --- from nodes ---------------------------------------------------------------------------------------------------

    def heard(self, state: GridState, node: str, message: object) -> list[MemoryAdvised]:
        """Note what an agent tells, before the ledger hears it: the start or the end of an attempt, also of one that
        ended while the node was away. Returns how much memory the next attempts had better ask for, where the ledger
        is to decide about one."""
        match message:
            case Started(allocation):
                if (found := self._at_work(state, node, allocation)) is not None:
                    self._note(_Began(allocation, state.jobs[found.job], self._clock()))
            case Exited(allocation, outcome):
                return self._over(state, node, allocation, outcome)
            case Inventory(items):
                ended = [one for one in items if one.outcome is not None]
                return [hint for one in ended for hint in self._over(state, node, one.allocation, one.outcome)]
        return []

    def _note(self, one: _Began | _Ended | _Recorded) -> None:
        self._waiting.append(one)
        self._stirred.set()

    def _at_work(self, state: GridState, node: str, allocation: str) -> Allocation | None:
        known = state.nodes.get(node)
        found = known.at_work(allocation) if known is not None else None
        return found if found is not None and state.jobs[found.job].spec.boost is None else None

    def _over(self, state: GridState, node: str, name: str, outcome: Outcome | None) -> list[MemoryAdvised]:
        allocation = self._at_work(state, node, name)
        if allocation is None or outcome is None or not outcome.started or name in self._ended:
            return []
        self._ended[name] = None
        if len(self._ended) > WAITING:
            self._ended.popitem(last=False)
        job = state.jobs[allocation.job]
        used = job.used if job.used is not None and job.used.allocation == name else None
        held = allocation.grant.resources.memory
        self._note(_Ended(name, job, held, used, outcome, self._clock()))
        if outcome.cause is Cause.OUT_OF_MEMORY and RetryOn.OOM in job.request.retry_on and held:
            return self._advise(job, name, held)
        return []

    def _advise(self, job: Job, allocation: str, held: int) -> list[MemoryAdvised]:
        try:
            found = self.predictor.next_memory(self._shape(job.spec, job.user, bool(job.group)), held)
        except Exception:
            log.exception("the next amount of memory could not be predicted", job=job.id)
            return []
        return [MemoryAdvised(allocation, min(MOST_COUNT, int(found)))] if found is not None else []

    def _shape(self, spec: JobSpec, user: str, array: bool) -> Shape:
        command = spec.argv, user, self._sizes.get(spec.bundle, 0), array, spec.features
        if self._last is None or self._last[0] != command:
            self._last = command, shape(*command)
        return self._last[1]

    # --- learning -----------------------------------------------------------------------------------------------------

    async def run(self, state: GridState, put: Callable[[Event], None]) -> None:
        """Learn what happened before, then what happens, for ever; and tell the ledger how long jobs that wait will
        run, where that may start one earlier."""
        await self._refill()
        written, pruned = time.monotonic(), -math.inf
        while True:
            await self._pause()
            await self._measure_bundles()
            self.learn_some(AT_ONCE)
            if planned := self.predict_waiting(state):
                put(RunTimesPredicted(planned))
            now = time.monotonic()
            if now - written >= WRITE_EVERY:
                written = now
                await self._write()
            if now - pruned >= PRUNE_EVERY or self._unpruned > WAITING:
                pruned, self._unpruned = now, 0
                await self._in_thread(lambda db: db.prune(self._clock() - self._retention))

    async def _pause(self) -> None:
        """Leave the loop to others, and while there is nothing to do sleep until something is told, or lines are to be
        looked for again."""
        if not (self._waiting or self._unmeasured or self._more):
            self._stirred.clear()
            try:
                await asyncio.wait_for(self._stirred.wait(), to_next_second())
            except TimeoutError:
                return
        await asyncio.sleep(PAUSE)

    def learn_some(self, most: int) -> None:
        """Learn from the oldest entries of the queue, at most `most`."""
        for _ in range(min(most, len(self._waiting))):
            one = self._waiting.popleft()
            try:
                self._learn(one)
            except Exception:  # whatever a job has done: the others are learned
                log.exception("a run could not be learned")

    def _learn(self, one: _Began | _Ended | _Recorded) -> None:
        match one:
            case _Recorded(user, of, usage, at):
                self.predictor.learn(of, usage)
                self._keep(_row(f"{RECORDED}-{secrets.token_hex(8)}", user, of, usage, Resources(), RECORDED, at))
            case _Began(allocation, job, at):
                of = self._shape(job.spec, job.user, bool(job.group))
                if len(self._shapes) < WAITING:
                    self._shapes[allocation] = of
                if not self.predictor.knows(of, at):
                    self.predictor.started(of, allocation, at, self.predictor.planned(of, at))
            case _Ended(allocation, job, held, used, outcome, at):
                known = self._shapes.pop(allocation) if allocation in self._shapes else None
                of = known or self._shape(job.spec, job.user, bool(job.group))
                usage = usage_of(outcome, used, held)
                if usage.how is How.DONE and self.predictor.knows(of, at):
                    self.predictor.ended(of, allocation)
                else:
                    self.predictor.learn(of, usage, allocation, at)
                asked = job.request.resources
                self._keep(_row(allocation, job.user, of, usage, asked, outcome.cause.value, at))

    def _keep(self, row: UsageRow) -> None:
        if self._database is not None:
            self._rows.append(row)

    def predict_waiting(self, state: GridState) -> tuple[tuple[str, float], ...]:
        """Predict the run times of the first jobs of lines, as far as they are known, once each: if nodes are reserved,
        or there are forecasts of idleness. If machines are created, also those of running jobs while others wait."""
        pools = bool(state.policy.scaling.pools) and bool(state.queue.lines)
        self._more = False
        if not state.reservations.by_job and not state.index.forecasts and not pools:
            self._lines = iter(())
            return ()
        now, found = self._clock(), list[tuple[str, float]]()
        looked = 0
        for name in self._lines:
            job = state.jobs.get(name)
            if job is None or name in self._predicted or job.spec.hold or job.spec.boost:
                continue
            if name not in state.queue and not (pools and job.allocation in state.allocations):
                continue
            if (bundle := job.spec.bundle) and bundle not in self._sizes:
                self._unmeasured[bundle] = None
                continue
            self._predicted[name] = None
            if len(self._predicted) > WAITING:
                self._predicted.popitem(last=False)
            try:
                answer = self.predictor.planned(self._shape(job.spec, job.user, bool(job.group)), now)
            except Exception:
                log.exception("a run time could not be predicted", job=name)
                continue
            if answer.level in (Level.SHAPE, Level.PROGRAM) and 0 < answer.value < MOST_FINITE:
                found.append((name, answer.value))
            looked += 1
            if looked == AT_ONCE:
                self._more = True
                return tuple(found)
        if now >= self._look_again:
            self._look_again = now + LOOK_EVERY
            lines = list(islice(state.queue.lines.values(), LINES))
            names = [name for line in lines for _, name in islice(line.heap, FIRST)]
            running = islice(state.allocations.values(), WAITING) if pools else ()
            names += [one.job for one in running if one.job not in self._predicted]
            self._lines, self._more = iter(names), bool(names)
        return tuple(found)

    async def prospects(self, state: GridState, job: Job) -> str:
        """Describe the run time of runs like a job, and the probability that it is over by the time its submitter
        wants; empty: neither is known or wanted."""
        spec, now = job.spec, self._clock()
        if job.state is State.ENDED or spec.hold or spec.boost is not None:
            return ""
        if spec.bundle:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._measure(spec.bundle), PATIENCE)
        of = self._shape(spec, job.user, bool(job.group))
        try:
            planned, begins = self.predictor.planned(of, now), job.started or _begins(state, job, now)
            like_it = planned.level in (Level.SHAPE, Level.PROGRAM)
            said = [f"nine in ten runs like it end within {_words(planned.value)}"] if like_it else []
            if spec.finish_by:
                said.append(self._chance(of, spec.finish_by, begins, bool(job.started), now))
        except Exception:
            log.exception("a run time could not be predicted", job=job.id)
            return ""
        return "; ".join(said)

    def _chance(self, of: Shape, until: float, begins: float, started: bool, now: float) -> str:
        wanted = f"over by {clock(until, now)}"
        chance = self.predictor.within(of, until - begins, now) if until > begins else 0.0
        if chance is None:
            return f"nobody knows whether it is {wanted}: fewer than {MIN_SAMPLES_FOR_STATS} runs like it are known"
        if started and until > begins:  # it has run for a while and is not over
            ran = self.predictor.within(of, now - begins, now) or 0.0
            chance = max(0.0, chance - ran) / (1.0 - ran) if ran < 1.0 else 0.0
        when = "" if started else f", if it starts {'now' if begins <= now else f'at {clock(begins, now)}'}"
        return f"it is {wanted} with a probability of {100 * chance:.0f} %{when}"

    async def _measure_bundles(self) -> None:
        """Measure the bundles of the attempts that are learned, and of jobs that are predicted, next."""
        for bundle in list(islice(self._unmeasured, AT_ONCE)):
            await self._measure(bundle)
            del self._unmeasured[bundle]
        for one in list(islice(self._waiting, AT_ONCE)):
            if isinstance(one, _Began | _Ended) and (bundle := one.job.spec.bundle):
                await self._measure(bundle)

    async def _measure(self, bundle: str) -> None:
        if bundle in self._sizes:
            self._sizes.move_to_end(bundle)
            return
        self._sizes[bundle] = await asyncio.get_running_loop().run_in_executor(self._thread, self._size_of, bundle)
        if len(self._sizes) > SIZES:
            self._sizes.popitem(last=False)

    async def _refill(self) -> None:
        found: list[UsageRow] = []
        await self._in_thread(lambda db: found.extend(db.newest(REFILL)))
        for number, row in enumerate(found):
            if number % AT_ONCE == 0:
                await asyncio.sleep(PAUSE / 5)
            try:
                usage = Usage(row.seconds, row.memory, row.cores, row.gpu_memory, row.held_memory, How(row.ended))
                keys = row.shape, row.program_key, row.user_key
                self.predictor.learn(from_features(*keys, row.text, row.program, row.features), usage)
            except (ValueError, TypeError, ArithmeticError):
                continue
        if found:
            log.info("learned what jobs need from the past", runs=len(found))

    async def _write(self) -> None:
        if self._rows:
            rows, self._rows = list(self._rows), deque(maxlen=WAITING)
            self._unpruned += len(rows)
            if not await self._in_thread(lambda db: db.write(rows)):
                self._rows.extendleft(reversed(rows[-(WAITING - len(self._rows)) :]))

    async def _in_thread(self, work: Callable[[UsageDatabase], object]) -> bool:
        """Whether this was done with the database, in its thread."""
        if (database := self._database) is None:
            return True
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, work, database)
        except (sqlite3.Error, OSError) as error:
            if not self.trouble:  # not repeated every time
                log.warning("what jobs use is not recorded now; all else goes on", error=str(error))
            self.trouble = str(error) or type(error).__name__
            return False
        self.trouble = ""
        return True

    async def close(self) -> None:
        """Learn and write what is left, and end the thread."""
        self.learn_some(WAITING)
        await self._write()
        if (database := self._database) is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, database.close)
        self._thread.shutdown(wait=True)

    # --- answers ------------------------------------------------------------------------------------------------------

    async def answer(self, user: str, asked: Predict) -> Needs:
        """Return the known needs of a command."""
        if asked.bundle:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._measure(asked.bundle), PATIENCE)
        of = shape(asked.argv, user, self._sizes.get(asked.bundle, 0), asked.array, asked.features)
        known, now = self.predictor, self._clock()
        try:
            if not asked.bundle and not asked.unshipped:
                of = known.as_last(of)
            found = known.predict(of, now)
            chance = known.within(of, asked.within, now) if asked.within else None
            step = known.next_memory(of, asked.tried) if asked.tried else None
            slopes = {name: slope for name, _ in of.features if (slope := known.slope(of, name)) is not None}
        except Exception:
            log.exception("a need could not be predicted", shape=of.text)
            return Needs(asked.id, of.text, (), samples=known.learned, trouble="the prediction failed; see the log")
        needs = tuple(
            Need(
                name,
                min(MOST_FINITE, one.value),
                one.tier,
                one.level,
                one.samples,
                -1.0 if one.confidence is None else one.confidence,
                one.why(),
            )
            for name, one in found._asdict().items()
            if one.tier is not Tier.DEFAULT
        )
        return Needs(
            asked.id,
            of.text,
            needs,
            slopes,
            -1.0 if chance is None else chance,
            min(MOST_COUNT, int(step)) if step is not None else 0,
            known.learned,
            self.trouble,
            len(self._waiting),
        )

    def record(self, user: str, told: RecordUse) -> None:
        """Learn from a run that the grid did not see, and record it. Raises BadValue."""
        if told.ended not in list(How):
            raise BadValue(f"{told.ended!r} is no way to end", hint=f"give one of {', '.join(How)}")
        usage = Usage(told.seconds, told.memory, told.cores, told.gpu_memory, told.held, How(told.ended))
        self._note(_Recorded(user, shape(told.argv, user, given=told.features), usage, self._clock()))


def _begins(state: GridState, job: Job, now: float) -> float:
    """Return when a waiting job is expected to start: when its reservation is free, else now."""
    reserved = [one.at for one in state.reservations.by_job.values() if one.job == job.id]
    return max([now, job.begin, *(at for at in reserved if at < math.inf)])


def _words(seconds: float) -> str:
    return format_duration(round(seconds) or seconds)


def usage_of(outcome: Outcome, used: Used | None, held: int) -> Usage:
    """Return the use of an attempt, by what its node reported at its end and while it ran."""
    seconds = max(0.0, outcome.seconds - outcome.suspended)
    memory = max(outcome.peak_memory, used.memory if used is not None else 0)
    cores = used.cpu_peak if used is not None and used.cpu_peak else 0.0
    if not cores and seconds >= 1.0:
        cores = outcome.cpu_seconds / seconds
    gpu_memory = float(used.gpu_memory) if used is not None else 0.0
    return Usage(seconds, memory, cores, gpu_memory, held, how_it_ended(outcome))


def how_it_ended(outcome: Outcome) -> How:
    """Return how an attempt ended, as far as its needs are concerned."""
    known: Mapping[Cause, How] = {Cause.OUT_OF_MEMORY: How.OUT_OF_MEMORY, Cause.TIME_LIMIT: How.TIME_LIMIT}
    done = outcome.cause is Cause.EXITED and outcome.code == 0
    return How.DONE if done else known.get(outcome.cause, How.CUT)


def _row(allocation: str, user: str, of: Shape, usage: Usage, asked: Resources, cause: str, at: float) -> UsageRow:
    text, program = (word.encode(errors="replace").decode() for word in (of.text, of.program))
    return UsageRow(
        allocation, at, user, of.key, of.program_key, of.user_key, text, program, of.features, asked.cpu,
        asked.memory, asked.gpu, usage.seconds, int(usage.memory), usage.cores, int(usage.gpu_memory), int(usage.held),
        usage.how.value, cause,
    )  # fmt: skip
