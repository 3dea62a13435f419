"""A node: what outlives its processes (disk, clock, power) and the jobs' own processes, which are the truth."""

import random
from typing import Any

import msgspec

from distributed_grid.agent.core.spare.thresholds import Limits, lendable
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.nodes import GpuFacts, GpuSample, NodeFacts, OwnerPolicy, Sample
from distributed_grid.simulator.engine import Engine, Link, Process, Violation
from distributed_grid.simulator.judging.judge import Judge
from distributed_grid.simulator.judging.truth import Run, index_of, number_of
from distributed_grid.simulator.plan import GPU_MEMORY, NodePlan

_OWNERS = (OwnerPolicy.CONTINUE, OwnerPolicy.SUSPEND, OwnerPolicy.SUSPEND, OwnerPolicy.RECALL)


class Machine:
    """One node. `boot` is its power: scheduled events are gone when that is cut. `agent` and `supervisor` are the
    present processes, dead or alive."""

    def __init__(self, engine: Engine, judge: Judge, plan: NodePlan) -> None:
        self.engine, self.judge, self.plan = engine, judge, plan
        self.chance = random.Random(plan.seed)
        self.name = f"n{plan.number}"
        self.link = Link(engine, self.chance)
        self.boot = Process()
        self.boots = 1
        self.incarnation = 0
        self.gone = False
        self.agent: Any = None
        self.supervisor: Any = None
        # The disk: the journal with how much of it is synced, the specs of allocations, the newest coordinator seen.
        self.journal: list[list[Any]] = []
        self.synced = 0
        self.specs: dict[str, Launch] = {}
        self.newest: tuple[Any, ...] | None = None
        # What happens to it.
        self.journal_bad = False
        self.tells_use = False
        """Its agents tell what jobs use, as far as slack is concerned."""
        self.sluggish = 0.0
        self.slow_measure = 0.0
        self.dates = False
        """Whether each heartbeat says when it was measured, as real ones do; else those that say the same are one."""
        self.owner_uses = 0.0
        self.runs: dict[str, Run] = {}
        self.main_over: dict[str, None] = {}
        self.noted: set[str] = set()
        """Jobs whose start is in the note of their spawner, which outlives a supervisor."""
        self.ordered: set[str] = set()
        """Jobs that a supervisor ordered a spawner to start: their output files outlive it."""
        self._sample: Sample | None = None
        # An idle node offers sooner than by default, and says more often that its offer holds.
        self.limits = Limits(
            offer_after=1.0,
            offer_expiry=60.0,
            check_interval=plan.says_every,
            # From a chance of its own, so that what is drawn for all else stays as it was.
            owner_policy=random.Random(f"owner {plan.seed}").choice(_OWNERS),
            owner_quiet=3.0,
            owner_most=8.0,
            owner_hold=2.0,
        )
        gpus = tuple(GpuFacts(f"{self.name}-gpu{i}", i, "card", GPU_MEMORY) for i in range(plan.gpus))
        self._facts = NodeFacts(
            name=self.name,
            hostname=self.name,
            boot_id="",
            incarnation=0,
            cores=tuple(range(plan.cores)),
            memory=plan.memory,
            lendable=lendable(self.limits, range(plan.cores), plan.memory, gpus),
            gpus=gpus,
            instance=self.name,
            labels=plan.labels,
            walls=plan.walls,
            owners=plan.owners,
            trusts=plan.trusts,
            ray="2.60.0",
        )

    def facts(self) -> NodeFacts:
        """Return the facts that an agent that starts now reports of the node."""
        return msgspec.structs.replace(self._facts, boot_id=f"boot{self.boots}", incarnation=self.incarnation)

    def clock(self) -> float:
        """Seconds on the node's own clock, which goes a little wrong."""
        return 1000.0 + self.engine.now * self.plan.rate

    def seconds(self, own: float) -> float:
        """Convert seconds of the node's own clock to true ones."""
        return own / self.plan.rate

    def use(self, part: float) -> None:
        """The owner uses this part of all cores from now on, and of the GPUs."""
        self.owner_uses = part
        self._sample = None
        if self.agent is not None and not self.agent.dead:
            self.agent.stir()

    def sample(self) -> Sample:
        """Return the present measurements."""
        if self._sample is None:
            plan, percent = self.plan, round(self.owner_uses * 100)
            self._sample = Sample(
                at=self.clock(),
                cores=dict.fromkeys(range(plan.cores), percent),
                foreign_cpu=self.owner_uses * plan.cores,
                memory_total=plan.memory,
                memory_foreign=int(self.owner_uses * plan.memory * 0.9),
                gpus=tuple(
                    GpuSample(gpu.uuid, float(percent), int(self.owner_uses * GPU_MEMORY), GPU_MEMORY)
                    for gpu in self._facts.gpus
                ),
            )
        return self._sample

    # --- the jobs' processes ------------------------------------------------------------------------------------------

    def spawn(self, allocation: str) -> None:
        """A supervisor makes the process of this allocation."""
        self.ordered.add(allocation)
        launch = self.specs[allocation]
        run = Run(allocation, self.name, launch.grant, self.engine.now)
        plan = self.judge.plans[number_of(run.job)]
        self.engine.note(f"{allocation} runs on {self.name}")
        self.judge.spawned(run, self.plan.cores, self.plan.gpus, self.plan.memory)
        self.runs[allocation] = run
        member = index_of(run.job) if plan.members else 0
        attempt = len(self.judge.of_key[plan.number, member]) - 1 + member  # so that not all of an array end alike
        self.engine.later(plan.seconds, self.boot, self._done, run, plan.codes[attempt % len(plan.codes)], 0.0)

    def _main_ends(self, run: Run, code: int | None, signal: int) -> None:
        if run.allocation in self.main_over or not run.alive:
            return
        self.main_over[run.allocation] = None
        run.code, run.signal = code, signal
        self.engine.note(
            f"{run.allocation} on {self.name} " + (f"is killed by {signal}" if signal else f"exits {code}")
        )
        if signal or not self.judge.plans[number_of(run.job)].daemon:
            self.judge.over(run, code, signal)
        if self.supervisor is not None and not self.supervisor.dead:
            self.supervisor.main_ended(run.allocation, code, signal)

    def _done(self, run: Run, code: int | None, counted: float) -> None:
        """Handle that the main process has had its time, except time frozen that was not counted yet."""
        if run.frozen_at is not None:
            run.done = code, counted
        elif run.frozen_for > counted:
            self.engine.later(run.frozen_for - counted, self.boot, self._done, run, code, run.frozen_for)
        else:
            self._main_ends(run, code, 0)

    def freeze(self, allocation: str) -> None:
        """Stop all processes of an allocation."""
        run = self.runs.get(allocation)
        if run is not None and run.alive and run.frozen_at is None:
            run.frozen_at = self.engine.now
            self.engine.note(f"{allocation} is frozen on {self.name}")

    def thaw(self, allocation: str) -> None:
        """Continue the processes of an allocation."""
        run = self.runs.get(allocation)
        if run is None or run.frozen_at is None:
            return
        run.frozen_for, run.frozen_at = run.frozen_for + self.engine.now - run.frozen_at, None
        self.engine.note(f"{allocation} goes on on {self.name}")
        if run.done is not None:
            (code, counted), run.done = run.done, None
            self._done(run, code, counted)

    def had_its_time(self, allocation: str, limit: float, since: float) -> None:
        """Its supervisor ends it for its time limit: not before it could run for so long, since its intent (by the
        node's clock)."""
        run = self.runs.get(allocation)
        if run is None or not run.alive:
            return
        frozen = run.frozen_for + (self.engine.now - run.frozen_at if run.frozen_at is not None else 0.0)
        ran = self.seconds(self.clock() - since) - frozen
        if ran < self.seconds(limit) - 0.01:
            raise Violation(run.job, f"{run.allocation} is ended for its time limit of {limit:g} s after {ran:.2f} s")

    def terminate(self, allocation: str) -> None:
        """SIGTERM to all of it."""
        run = self.runs.get(allocation)
        if run is not None and run.alive:
            if run.frozen_at is not None:
                raise Violation(run.job, f"{allocation} is asked to end while it is frozen: it cannot hear that")
            self.engine.later(self.judge.plans[number_of(run.job)].dying, self.boot, self._dies, run, 15)

    def kill(self, allocation: str) -> None:
        """SIGKILL to all of it."""
        run = self.runs.get(allocation)
        if run is not None:
            self._dies(run, 9)

    def _dies(self, run: Run, signal: int) -> None:
        if not run.alive:
            return
        if run.allocation in self.main_over:  # what it left behind
            self.judge.over(run, run.code, run.signal)
        else:
            self._main_ends(run, None, signal)

    def lives(self, allocation: str) -> bool:
        """Whether anything of it is alive."""
        run = self.runs.get(allocation)
        return run is not None and run.alive

    # --- power --------------------------------------------------------------------------------------------------------

    def power_cut(self) -> None:
        """Remove all processes at once, and the part of the journal that was not synced."""
        self.boot.dead = True
        for process in (self.agent, self.supervisor):
            if process is not None:
                process.dead = True
        for wire in [*self.link.wires]:
            if wire.ends[0] is self.agent:
                wire.close(0, lose=True, silent=True)
        del self.journal[self.chance.randint(self.synced, len(self.journal)) :]
        self.synced = len(self.journal)
        for run in [*self.runs.values()]:
            if run.alive:
                self.judge.over(run, run.code, run.signal or (0 if run.allocation in self.main_over else -1))
        self.boot = Process()
        self.boots += 1
