"""What the coordinator learns of jobs' needs and answers about them: beside the loop's work in small slices, with a
bounded queue before it. No submission and no job waits for it; where it fails, nothing is known."""

import asyncio
import math
import sqlite3
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from distributed_grid.coordinator.core.commands import MemoryAdvised
from distributed_grid.coordinator.core.model import Allocation, Job
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.predictor.database import UsageDatabase, UsageRow
from distributed_grid.coordinator.predictor.predictor import How, Predictor, Tier, Usage
from distributed_grid.coordinator.predictor.shape import Shape, from_features, shape
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, RetryOn, Used
from distributed_grid.protocol.messages import Exited, Inventory, Need, Needs, Predict, RecordUse, Started
from distributed_grid.protocol.resources import MOST_COUNT, MOST_FINITE
from distributed_grid.runtime.logs import get_logger

WAITING = 10_000
"""Starts and ends that wait to be learned; more are dropped, the oldest first."""
AT_ONCE, PAUSE = 20, 0.05
"""So many are learned, then there is a pause (s): 4 % of a core at the most."""
WRITE_EVERY = 2.0
PRUNE_EVERY = 3600.0
REFILL = 20_000
"""Rows of the past from which the models are learned anew when the coordinator starts."""
PATIENCE = 1.0
"""An answer waits so long for a disk that hangs (s)."""
SIZES = 1000
"""Bundles whose size is remembered."""

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
    of: Shape
    usage: Usage


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
        self._shapes: dict[str, Shape] = {}
        """Of attempts that run."""
        self._ended: OrderedDict[str, None] = OrderedDict()
        """Attempts whose end was heard: it may be told again."""
        self._unpruned = 0

    # --- from nodes ---------------------------------------------------------------------------------------------------

    def heard(self, state: GridState, node: str, message: object) -> list[MemoryAdvised]:
        """Note what an agent tells, before the ledger hears it: the start or the end of an attempt, also of one that
        ended while the node was away. Returns how much memory the next attempts had better ask for, where the ledger
        is to decide about one."""
        match message:
            case Started(allocation):
                if (found := self._at_work(state, node, allocation)) is not None:
                    self._waiting.append(_Began(allocation, state.jobs[found.job], self._clock()))
            case Exited(allocation, outcome):
                return self._over(state, node, allocation, outcome)
            case Inventory(items):
                ended = [one for one in items if one.outcome is not None]
                return [hint for one in ended for hint in self._over(state, node, one.allocation, one.outcome)]
        return []

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
        self._waiting.append(_Ended(name, job, held, used, outcome, self._clock()))
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
        return shape(spec.argv, user, self._sizes.get(spec.bundle, 0), array, spec.features)

    # --- learning -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Learn what happened before, then what happens, for ever."""
        await self._refill()
        written, pruned = time.monotonic(), -math.inf
        while True:
            await asyncio.sleep(PAUSE)
            await self._measure_bundles()
            self.learn_some(AT_ONCE)
            now = time.monotonic()
            if now - written >= WRITE_EVERY:
                written = now
                await self._write()
            if now - pruned >= PRUNE_EVERY or self._unpruned > WAITING:
                pruned, self._unpruned = now, 0
                await self._apart(lambda db: db.prune(self._clock() - self._retention))

    def learn_some(self, most: int) -> None:
        """Learn from the oldest of what waits."""
        for _ in range(min(most, len(self._waiting))):
            one = self._waiting.popleft()
            try:
                self._learn(one)
            except Exception:  # whatever a job has done: the others are learned
                log.exception("a run could not be learned")

    def _learn(self, one: _Began | _Ended | _Recorded) -> None:
        match one:
            case _Recorded(of, usage):
                self.predictor.learn(of, usage)
            case _Began(allocation, job, at):
                of = self._shape(job.spec, job.user, bool(job.group))
                if len(self._shapes) < WAITING:
                    self._shapes[allocation] = of
                self.predictor.started(of, allocation, at, self.predictor.predict(of, at).planned)
            case _Ended(allocation, job, held, used, outcome, at):
                known = self._shapes.pop(allocation) if allocation in self._shapes else None
                of = known or self._shape(job.spec, job.user, bool(job.group))
                usage = usage_of(outcome, used, held)
                self.predictor.learn(of, usage, allocation)
                if self._database is not None:
                    self._rows.append(_row(allocation, job, of, usage, outcome, at))

    async def _measure_bundles(self) -> None:
        """Find the size of what is shipped with those that are learned next."""
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
        await self._apart(lambda db: found.extend(db.newest(REFILL)))
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
            if not await self._apart(lambda db: db.write(rows)):
                self._rows.extendleft(reversed(rows[-(WAITING - len(self._rows)) :]))

    async def _apart(self, work: Callable[[UsageDatabase], object]) -> bool:
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
        """What is known of a command's needs."""
        if asked.bundle:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._measure(asked.bundle), PATIENCE)
        of = shape(asked.argv, user, self._sizes.get(asked.bundle, 0), asked.array, asked.features)
        known, now = self.predictor, self._clock()
        try:
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
        """Learn from a run that the grid did not see. Raises BadValue."""
        if told.ended not in list(How):
            raise BadValue(f"{told.ended!r} is no way to end", hint=f"give one of {', '.join(How)}")
        usage = Usage(told.seconds, told.memory, told.cores, told.gpu_memory, told.held, How(told.ended))
        self._waiting.append(_Recorded(shape(told.argv, user, given=told.features), usage))


def usage_of(outcome: Outcome, used: Used | None, held: int) -> Usage:
    """What an attempt used, by what its node told at its end and while it ran."""
    seconds = max(0.0, outcome.seconds - outcome.suspended)
    memory = max(outcome.peak_memory, used.memory if used is not None else 0)
    cores = used.cpu_peak if used is not None and used.cpu_peak else 0.0
    if not cores and seconds >= 1.0:
        cores = outcome.cpu_seconds / seconds
    return Usage(seconds, memory, cores, 0.0, held, how_it_ended(outcome))


def how_it_ended(outcome: Outcome) -> How:
    """How an attempt ended, as far as its needs are concerned."""
    known: Mapping[Cause, How] = {Cause.OUT_OF_MEMORY: How.OUT_OF_MEMORY, Cause.TIME_LIMIT: How.TIME_LIMIT}
    done = outcome.cause is Cause.EXITED and outcome.code == 0
    return How.DONE if done else known.get(outcome.cause, How.CUT)


def _row(allocation: str, job: Job, of: Shape, usage: Usage, outcome: Outcome, at: float) -> UsageRow:
    asked = job.request.resources
    text, program = (word.encode(errors="replace").decode() for word in (of.text, of.program))
    return UsageRow(
        allocation, at, job.user, of.key, of.program_key, of.user_key, text, program, of.features, asked.cpu,
        asked.memory, asked.gpu, usage.seconds, int(usage.memory), usage.cores, int(usage.gpu_memory), int(usage.held),
        usage.how.value, outcome.cause.value,
    )  # fmt: skip
