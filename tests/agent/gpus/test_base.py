"""What all backends share: patience with a driver that hangs, and whose a process is."""

import threading
import time
from collections.abc import Sequence

from distributed_grid.agent.gpus.base import Processes, TimeoutBackend, cuda
from distributed_grid.protocol.nodes import GpuFacts, GpuSample
from distributed_grid.protocol.resources import GIB


class Sick:
    """A backend whose driver hangs, or throws, when told to."""

    name, error, note = "sick", "", ""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.fail = False
        self.asked = 0

    def facts(self) -> tuple[GpuFacts, ...]:
        self.go.wait(100)
        return (GpuFacts("GPU-s", 0, "m", GIB),)

    def environment(self, uuids: Sequence[str]) -> dict[str, str]:
        return cuda(uuids)

    def sample(self, own: set[int]) -> tuple[GpuSample, ...]:
        self.asked += 1
        self.go.wait(100)
        if self.fail:
            raise RuntimeError("boom")
        return (GpuSample("GPU-s", memory_total=GIB),)


def test_a_driver_that_hangs_makes_its_gpus_unreadable_and_holds_up_nobody() -> None:
    sick = Sick()
    backend = TimeoutBackend(sick, patience=0.5)
    began = time.monotonic()
    while backend.sample(set())[0].error:  # half a second is little on a busy machine
        assert time.monotonic() - began < 60
    sick.go.clear()
    asked, began = sick.asked, time.monotonic()
    for _ in range(5):
        assert backend.sample(set())[0].error.startswith("the driver has not answered for")
    assert time.monotonic() - began < 30
    assert sick.asked == asked + 1, "only one call hangs"
    assert backend.error.startswith("the driver has not answered for")
    sick.go.set()
    while backend.sample(set())[0].error:
        assert time.monotonic() - began < 90
    assert backend.error == ""


def test_a_driver_that_hung_at_the_start_has_no_gpus_and_says_so_for_good() -> None:
    sick = Sick()
    sick.go.clear()
    backend = TimeoutBackend(sick, patience=0.01)
    said = "at the start, the driver has not answered for 0.3 s; restart the agent once it can be read"
    assert (backend.facts(), backend.error) == ((), said)
    sick.go.set()
    deadline = time.monotonic() + 60
    while not sick.asked:  # the call of the start is over
        assert time.monotonic() < deadline
        assert backend.sample(set()) == ()
    assert backend.error == said


def test_a_library_that_throws_makes_its_gpus_unreadable() -> None:
    sick = Sick()
    backend = TimeoutBackend(sick)
    sick.fail = True
    assert backend.sample(set())[0].error == "reading the GPUs failed: RuntimeError: boom"


def test_a_process_of_ours_that_just_ended_is_ours_while_the_driver_still_lists_it() -> None:
    gone = 4_000_000  # above any pid here
    told = Processes()
    assert told.classify("GPU-a", [(gone, 5)], [], {gone})[0].own
    assert told.classify("GPU-a", [(gone, 5)], [], set())[0].own
    assert told.classify("GPU-a", [], [], set()) == ()
    assert not told.classify("GPU-a", [(gone, 5)], [], set())[0].own, "a pid that came back is somebody else's"


def test_a_program_that_draws_and_computes_is_one_that_computes_and_listed_once() -> None:
    found = Processes().classify("GPU-a", [(2, 5)], [(1, 3), (2, 9)], set())
    assert [(one.pid, one.memory, one.graphics) for one in found] == [(1, 3, True), (2, 9, False)]
