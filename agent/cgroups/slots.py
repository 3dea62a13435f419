"""The control group of each slot: its spawner enters it before it does anything else and stays there, so that every job
of the slot is in it from its first instruction, at no cost to a launch.

It says what lives of a slot whose spawner is gone, and ends in one stroke what nothing else ends so: jobs behind walls
`landlock` and `none`, and those that run as somebody's account. The groups are named after slots and after the
agent's state directory, since others on this machine may have been given the same place. Stdlib only.
"""

import os
import zlib
from collections.abc import Callable

from distributed_grid.agent.cgroups.control import Amounts, Cgroups
from distributed_grid.agent.supervisor.job import Job


class SlotGroups:
    """Where groups cannot be had all of this does nothing, and finds nothing."""

    def __init__(self, groups: Cgroups, state_dir: str, log: Callable[[str], None]) -> None:
        self._groups = groups
        self._log = log
        self._refused: dict[str, int] = {}
        self._ours = f"slot-{zlib.crc32(os.fsencode(os.path.abspath(state_dir))):08x}-"

    @property
    def there(self) -> bool:
        """Whether slots have groups."""
        return self._groups.has_home

    def key(self, slot: str) -> str:
        """The name of this slot's groups."""
        return self._ours + slot

    # --- a slot's life ------------------------------------------------------------------------------------------------

    def make(self, slot: str, processes: int) -> tuple[str, ...]:
        """The files by which its spawner enters (Cgroups.make); all in there are so many processes and threads at most
        beside the spawner, where the kernel can count (0: as many as they like)."""
        if not self._groups.has_home:
            return ()
        return tuple(self._groups.make(self.key(slot), Amounts(pids=processes + 1 if processes else 0)))

    def entered(self, slot: str, spawner: int) -> None:
        """The spawner says that it is ready. Where it is in no group that one would prove nothing, and goes."""
        if self._groups.has_home and spawner not in self._groups.members(self.key(slot)):
            self._log(f"slot {slot}: its spawner is in no control group: what its jobs start is found by descent")
            self.left(slot)

    def left(self, slot: str) -> None:
        """Nothing of this slot is left, or the last of it is about to go: its groups go with it, at the next sweeps."""
        self._groups.release(self.key(slot))

    def sweep(self) -> bool:
        """Remove the groups of what is over. False if something is in one of them still."""
        return self._groups.sweep()

    # --- a job --------------------------------------------------------------------------------------------------

    def park(self, job: Job, spawner: int) -> None:
        """Its spawner leaves the job's own groups, where it made the first process."""
        if job.place is not None:
            self._groups.park(spawner, self.key(job.place.name))

    def begins(self, job: Job) -> None:
        """It is about to start: what was refused to earlier jobs of this slot is not counted as its own."""
        if job.place is not None and job.pids:
            self._refused[job.id] = self._groups.forks_refused(self.key(job.place.name))

    def forks_refused(self, job: Job) -> int:
        """How many processes and threads the kernel did not make for it."""
        if job.place is None or job.id not in self._refused:
            return 0
        return self._groups.forks_refused(self.key(job.place.name)) - self._refused[job.id]

    def over(self, job: Job) -> None:
        """Nothing of it is left."""
        self._refused.pop(job.id, None)
        if job.adopted and job.place is not None:
            self.left(job.place.name)

    def members(self, job: Job) -> set[int]:
        """All that is in the groups of this job's slot, its spawner among it, and in the job's own."""
        if job.place is None or not self._groups.has_home:
            return set()
        return self._groups.members(self.key(job.place.name)) | self._groups.members(job.id)

    def kill(self, job: Job) -> bool:
        """End all that is in there, but for a spawner of ours that lives. False where there is no group, or where it
        is not all gone within a moment: call again."""
        place = job.place
        if place is None or not (members := self.members(job)):
            return False
        spare = {place.pid} & members if not (job.orphaned or job.adopted) else set()
        return all([self._groups.kill(key, spare) for key in (self.key(place.name), job.id)])

    # --- what was before ----------------------------------------------------------------------------------------------

    def others(self, known: set[str]) -> dict[str, set[int]]:
        """What lives in the groups of slots that are none of these, by slot: an earlier supervisor made them."""
        found = {key.removeprefix(self._ours) for key in self._groups.all_known() if key.startswith(self._ours)}
        return {slot: self._groups.members(self.key(slot)) for slot in found - known}

    def end(self, slot: str) -> bool:
        """End all that lives in such a slot. False: call again."""
        if not self._groups.kill(self.key(slot)):
            return False
        self.left(slot)
        return True
