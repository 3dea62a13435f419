"""The coordinator's driver: batches of events into the real ledger; their records are committed before anything else of
a batch is performed. Stands for coordinator/driver.py and coordinator/driver.py.
"""

import random

from distributed_grid.coordinator.core.coalesce import newest_commands, newest_records
from distributed_grid.coordinator.core.model import (
    MAY_WAIT,
    RECORDS,
    Command,
    Event,
    Hold,
    Job,
    RecordJob,
    Tick,
)
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.protocol.jobs import Cause
from distributed_grid.simulator.disk import Disk, Snapshot, snapshot
from distributed_grid.simulator.engine import Engine, Process, Violation
from distributed_grid.simulator.judge.always import Judge
from distributed_grid.simulator.judge.order import Watched

BATCH = 256
SOON_SECONDS = 0.05
AGAIN_SECONDS = 1.0
CHECK_EVERY = 40
"""Turns from one look at the whole ledger to the next: looking is dear."""


class Weather:
    """How the coordinator's disk is: seconds that a commit takes at the most, and whether it fails."""

    def __init__(self) -> None:
        self.sluggish = 0.0
        self.slow = 0.0
        self.bad = False


class Driver(Process):
    """One life of a coordinator, from the opening of its store to its kill. `wall` is what the wall clock shows."""

    def __init__(
        self, engine: Engine, disk: Disk, weather: Weather, judge: Judge, chance: random.Random, policy: Policy,
        wall: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.engine, self.disk, self.weather, self.judge, self.chance = engine, disk, weather, judge, chance
        self.trouble = False
        self._queue: list[Event] = []
        self._turn_due = False
        self._turns = 0
        self._records: list[Command] = []
        self._storing: list[Command] = []
        self._commands: list[Command] = []
        self._urgent = False
        self._committing = False
        self._refused = False
        self._soon_due = False
        self._snapshot: Snapshot | None = None
        self._armed = float("inf")
        disk.epoch += 1
        self.epoch = disk.epoch
        self._clock_from = max(wall, disk.clock) - engine.now
        self.ledger = Watched(self.epoch, policy)
        self.ledger.state.preempting.remember(disk.receipts.values())
        self._take(
            self.ledger.restore(
                disk.jobs(),
                disk.allocations(),
                disk.facts(),
                self.clock(),
                ordered=disk.orders(),
                many=disk.groups(),
                past=disk.shares,
            )
        )
        self.ledger.check()
        self._finish_turn()

    def perform(self, commands: list[Command]) -> None:
        """Do what the ledger commands, beside recording."""
        raise NotImplementedError

    def clock(self) -> float:
        """Grid time: it never jumps, whatever the wall clock does."""
        return self._clock_from + self.engine.now

    # --- a turn -------------------------------------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """Something happened."""
        self._queue.append(event)
        if not self._turn_due:
            self._turn_due = True
            self.engine.later(0.0001, self, self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        now, ledger = self.clock(), self.ledger
        batch, self._queue = self._queue[:BATCH], self._queue[BATCH:]
        for event in batch:
            self._take(ledger.handle(event, now))
        self._take(ledger.settle(now))
        self._turns += 1
        if self._turns % CHECK_EVERY == 0:
            ledger.check()
        if self._queue:
            self._turn_due = True
            self.engine.later(0.0001, self, self._turn)
        self._finish_turn()

    def _take(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, RECORDS):
                self._records.append(command)
                if type(command) is RecordJob:
                    self._patient(command.job)
                self._urgent = self._urgent or not (isinstance(command, MAY_WAIT) and command.soon)
            else:
                self._commands.append(command)

    def _patient(self, job: Job) -> None:
        """A job whose node has not lost anything is not ended as lost before that node was silent for long."""
        outcome = job.outcome
        if job.request.gang:  # whose end is told later: with the last of it
            outcome = job.part.outcome if job.part is not None and job.part.at == self.ledger.state.now else None
        if outcome is not None and outcome.cause is Cause.NODE_LOST and job.node:
            policy = self.ledger.state.policy
            silent = self.clock() - self.ledger.state.nodes[job.node].heard
            if silent < policy.disconnected_after + policy.lost_after - 0.001:
                raise Violation(job.id, f"it is given up, {job.node} was heard {silent:.1f} s ago")

    def _finish_turn(self) -> None:
        self._arm()
        if self._committing:
            return
        if self._urgent:
            self._begin_commit()
        else:
            self._perform_all()

    def _begin_commit(self) -> None:
        self._committing = True
        self._storing, self._records, self._urgent = self._records, [], False
        self._hand_over(self._take_commands())

    def _take_commands(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands

    def _hand_over(self, commands: list[Command]) -> None:
        self._snapshot = snapshot(self._storing, self.clock())
        seconds = 0.0005 + self.chance.random() * (0.001 + max(self.weather.sluggish, self.weather.slow))
        self.engine.later(seconds, self, self._commit_returns, commands)

    def _commit_returns(self, commands: list[Command]) -> None:
        if self.weather.bad:
            if self.chance.random() < 0.3:
                self._apply()  # a commit that failed may be there all the same
            self.engine.note("a commit of the coordinator fails")
            self._refused = True
            if not self.trouble:
                self.trouble = True
                self.put(Hold(True))
                self.engine.later(AGAIN_SECONDS, self, self._relieve)
            self.engine.later(AGAIN_SECONDS, self, self._commit_again, commands)
            return
        self._apply()
        self._refused = False
        self._storing, self._snapshot = [], None
        self.perform(commands)
        if self._urgent:
            self._begin_commit()
        else:
            self._committing = False
            self._perform_all()

    def _commit_again(self, commands: list[Command]) -> None:
        self._storing = newest_records([*self._storing, *self._records])
        self._records, self._urgent = [], False
        self._hand_over(newest_commands([*commands, *self._take_commands()]))

    def _relieve(self) -> None:
        if self._refused:
            self.engine.later(AGAIN_SECONDS, self, self._relieve)
        else:
            self.trouble = False
            self.put(Hold(False))

    def _apply(self) -> None:
        if self._snapshot is not None:
            self.disk.apply(self._snapshot)
            for row in self._snapshot.rows:
                self.judge.stored(row)
            self.judge.ends_as_one(self.disk, self._snapshot.rows)
            for node, orders in self._snapshot.orders:
                self.judge.ordered(node, orders)
            for receipt in self._snapshot.receipts:
                self.judge.preemptions.stored(receipt, self.disk.last_of)

    def _perform_all(self) -> None:
        if self._records and not self._soon_due:
            self._soon_due = True
            self.engine.later(SOON_SECONDS, self, self._soon)
        if self._commands:
            self.perform(self._take_commands())

    def _soon(self) -> None:
        self._soon_due = False
        if self._records:
            self._urgent = True
            self._finish_turn()

    def _arm(self) -> None:
        deadline = self.ledger.next_deadline()
        if deadline is not None and deadline < self._armed:
            self._armed = deadline
            self.engine.at(deadline - self._clock_from + 0.001, self, self._tick, deadline)

    def _tick(self, deadline: float) -> None:
        if deadline == self._armed:
            self._armed = float("inf")
            self.put(Tick())

    def lost(self) -> None:
        """kill -9: of what was not committed nothing is left, of a commit under way all or nothing."""
        self.dead = True
        if self.chance.random() < 0.5:
            self._apply()
